// What tells one decoder from another: a row of facts for each architecture of GGUF's `general.architecture`. There is one
// forward pass, and it asks this row where the families differ.
//
// Sources: Touvron et al. 2023 (Llama), Jiang et al. 2024 (Mixtral), Yang et al. 2024 and 2025 (Qwen2, Qwen3), Gemma Team 2024
// and 2025 (Gemma 2, 3), Muennighoff et al. 2024 (OLMoE), and what the GGUF convention calls their tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weir {

// Which two elements of a head turn together: (2i, 2i + 1), or (i, i + rope_dims / 2), as GPT-NeoX had it.
enum class RopePairs : uint8_t { kNeighbours, kHalves };

// RMSNorm of queries and keys before they turn: of each head by itself, or of all heads of a token as one row.
enum class QkNorm : uint8_t { kNone, kPerHead, kWhole };

// The function of the gate in the feed-forward block: SwiGLU or GeGLU (Shazeer 2020).
enum class Gate : uint8_t { kSilu, kGelu };

// Whether layers have a mixture of experts in the place of one feed-forward block. kPerhaps: the file says.
enum class Experts : uint8_t { kNever, kPerhaps, kAlways };

struct Architecture {
    const char* name = "";
    RopePairs rope_pairs = RopePairs::kNeighbours;
    Gate gate = Gate::kSilu;
    bool qkv_bias = false;          // q, k and v have biases
    QkNorm qk_norm = QkNorm::kNone;
    bool post_norms = false;        // what attention and feed-forward add is normalised once more
    bool scaled_embedding = false;  // by sqrt(dim)
    bool soft_caps = false;         // of scores and logits: the file must say which; elsewhere it may
    size_t window_period = 0;       // of each so many layers the last sees everything, the others a window; 0: no windows
    float window_rope_base = 0;     // of layers with a window, whose positions are not scaled; 0: as the other layers
    Experts experts = Experts::kNever;
    bool normalised_experts = false;  // the weights of a token's experts sum to 1, where the file does not say otherwise
    bool shared_expert = false;       // one more expert for every token, behind a gate of its own
    size_t wide_layers = 0;         // a model of so many layers scales scores by dim / n_heads, not by head_dim
};

// nullptr where it is none of ours.
const Architecture* find_architecture(std::string_view name);
// "llama, qwen2, ...", for messages.
std::string architecture_names();

}  // namespace weir
