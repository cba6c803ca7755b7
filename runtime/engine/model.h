// A decoder's weights by their part in the computation: matrices live in the WeightStore, the small vectors here.
// Names are those of the GGUF convention for architecture `llama`.
//
// Built once by main, immutable afterwards. Throws Error where a tensor is missing or has another shape.
#pragma once

#include <vector>

#include "runtime/engine/weight_store.h"
#include "runtime/model/config.h"

namespace weir {

struct Layer {
    std::vector<float> attn_norm;        // [dim]
    const Matrix* attn_q = nullptr;      // [n_heads * head_dim, dim]
    const Matrix* attn_k = nullptr;      // [kv_dim, dim]
    const Matrix* attn_v = nullptr;      // [kv_dim, dim]
    const Matrix* attn_output = nullptr; // [dim, n_heads * head_dim]
    std::vector<float> ffn_norm;         // [dim]
    const Matrix* ffn_gate = nullptr;    // [ffn_dim, dim]
    const Matrix* ffn_up = nullptr;      // [ffn_dim, dim]
    const Matrix* ffn_down = nullptr;    // [dim, ffn_dim]
};

struct Model {
    ModelConfig config;
    std::vector<Layer> layers;
    std::vector<float> output_norm;      // [dim]
    const Matrix* head = nullptr;        // [n_vocab, dim]: output.weight, or token_embd.weight where they are tied
    std::vector<double> rope_frequency;  // [rope_dims / 2], radians per position
};

Model bind_model(const GgufFile& file, const ModelConfig& config, const WeightStore& store);

}  // namespace weir
