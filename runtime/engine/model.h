// A decoder's weights by their part in the computation: matrices live in the WeightStore, the small vectors here.
// Names are those of the GGUF convention. What an architecture does not have is empty.
//
// Built once by main, immutable afterwards. Throws Error where a tensor is missing or has another shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/weight_store.h"
#include "runtime/model/config.h"

namespace weir {

// How a layer attends.
struct AttentionRule {
    float scale = 1.0f;         // of the scores
    float soft_cap = 0;         // c: scores become c * tanh(score / c); 0: none
    size_t window = SIZE_MAX;   // a token sees itself and the window - 1 tokens before it
    size_t rope = 0;            // which of the Model's frequencies turn its queries and keys
};

struct Layer {
    AttentionRule attention;
    std::vector<float> attn_norm;        // [dim]
    const Matrix* attn_q = nullptr;      // [n_heads * head_dim, dim]
    const Matrix* attn_k = nullptr;      // [kv_dim, dim]
    const Matrix* attn_v = nullptr;      // [kv_dim, dim]
    const Matrix* attn_output = nullptr; // [dim, n_heads * head_dim]
    std::vector<float> q_bias, k_bias, v_bias;      // [q_dim], [kv_dim], [kv_dim]
    std::vector<float> q_norm, k_norm;              // [head_dim], or [q_dim] and [kv_dim] where heads are not apart
    std::vector<float> post_attention_norm;         // [dim]
    std::vector<float> ffn_norm;         // [dim]
    const Matrix* ffn_gate = nullptr;    // [ffn_dim, dim]
    const Matrix* ffn_up = nullptr;      // [ffn_dim, dim]
    const Matrix* ffn_down = nullptr;    // [dim, ffn_dim]
    // With experts, in the place of the three above. An expert's rows lie together.
    const Matrix* router = nullptr;       // [n_experts, dim]
    std::vector<float> shared_weight;     // [dim], of the shared expert, by a sigmoid
    const Matrix* shared_gate = nullptr;  // [shared_ffn_dim, dim]
    const Matrix* shared_up = nullptr;    // [shared_ffn_dim, dim]
    const Matrix* shared_down = nullptr;  // [dim, shared_ffn_dim]
    const Matrix* expert_gate = nullptr;  // [n_experts * expert_ffn_dim, dim]
    const Matrix* expert_up = nullptr;    // [n_experts * expert_ffn_dim, dim]
    const Matrix* expert_down = nullptr;  // [n_experts * dim, expert_ffn_dim]
    std::vector<float> post_ffw_norm;    // [dim]
};

struct Model {
    ModelConfig config;
    std::vector<Layer> layers;
    std::vector<float> output_norm;      // [dim]
    const Matrix* head = nullptr;        // [n_vocab, dim]: output.weight, or token_embd.weight where they are tied
    std::vector<std::vector<double>> rope_frequencies;  // [n_ropes][rope_dims / 2], radians per position
};

Model bind_model(const GgufFile& file, const ModelConfig& config, const WeightStore& store);

}  // namespace weir
