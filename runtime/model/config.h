// The dimensions and constants of a decoder, from a GGUF's metadata, checked against its tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/architecture.h"
#include "runtime/model/gguf.h"

namespace weir {

struct ModelConfig {
    Architecture architecture;
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

    float embedding_scale = 1.0f;
    float attention_scale = 1.0f;     // of the scores, before their soft cap
    float attention_soft_cap = 0;     // c: scores become c * tanh(score / c); 0: none
    float logit_soft_cap = 0;         // the same of the logits
    size_t window = 0;                // tokens that a layer with a window sees, the token itself among them
    size_t window_period = 0;         // see Architecture; 0: no layer has a window
    float window_rope_base = 0;       // see Architecture; 0: as the other layers

    size_t n_experts = 0;             // of a layer; 0: one feed-forward block that all tokens go through
    size_t n_experts_used = 0;        // by a token
    size_t expert_ffn_dim = 0;
    size_t shared_ffn_dim = 0;        // 0: no shared expert
    bool softmax_of_chosen = false;   // the router's softmax is over a token's experts, not over all
    bool normalise_experts = false;   // their weights are made to sum to 1
    float expert_scale = 1.0f;        // of the weights, after that

    // Of the feed-forward blocks that there are.
    size_t widest_ffn() const { return n_experts == 0 ? ffn_dim : std::max(expert_ffn_dim, shared_ffn_dim); }
    size_t q_dim() const { return n_heads * head_dim; }
    size_t kv_dim() const { return n_kv_heads * head_dim; }
    bool has_window(size_t layer) const { return window_period != 0 && (layer + 1) % window_period != 0; }
    // Frequencies of the rotary embedding that differ between layers: one set, or two.
    size_t n_ropes() const { return window_period != 0 && window_rope_base != 0 ? 2 : 1; }
};

// A tensor that every layer has: its name behind "blk.N.", and its shape. A matrix has rows and belongs to the walk; a
// vector has none. Experts' matrices lie one behind the other in one tensor.
struct LayerTensor {
    const char* name;
    uint64_t cols = 0;
    uint64_t rows = 0;
    uint64_t experts = 0;
    bool is_matrix() const { return rows != 0; }
    std::vector<uint64_t> dims() const;
};

// In execution order.
std::vector<LayerTensor> layer_tensors(const ModelConfig& config);
std::string layer_tensor_name(size_t layer, const char* name);

// Throws Error for an architecture, a key or a shape that we do not honour, naming it.
ModelConfig read_config(const GgufFile& file);

}  // namespace weir
