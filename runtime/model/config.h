// The dimensions and constants of a decoder, from a GGUF's metadata, checked against its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/model/gguf.h"

namespace weir {

struct ModelConfig {
    std::string architecture;  // "llama"
    std::string name;          // general.name, may be empty
    size_t n_layers = 0;
    size_t dim = 0;            // embedding_length
    size_t n_heads = 0;
    size_t n_kv_heads = 0;
    size_t head_dim = 0;       // attention.key_length, or dim / n_heads
    size_t rope_dims = 0;      // how many of head_dim are rotated
    size_t ffn_dim = 0;
    size_t n_vocab = 0;        // rows of token_embd
    size_t n_ctx_train = 0;
    float rms_eps = 1e-5f;
    float rope_base = 10000.0f;
    float rope_scale = 1.0f;   // linear scaling: positions are multiplied by this (1 / rope.scaling.factor)
    bool tied_head = false;    // no output.weight: the head is token_embd

    size_t kv_dim() const { return n_kv_heads * head_dim; }
};

// Throws Error for an architecture, a key or a shape that we do not honour, naming it.
ModelConfig read_config(const GgufFile& file);

}  // namespace weir
