#include "runtime/model/architecture.h"

namespace weir {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .experts = Experts::kPerhaps, .normalised_experts = true},
    {.name = "qwen2", .rope_pairs = RopePairs::kHalves, .qkv_bias = true},
    {.name = "qwen3", .rope_pairs = RopePairs::kHalves, .qk_norm = QkNorm::kPerHead},
    {.name = "qwen2moe",
     .rope_pairs = RopePairs::kHalves,
     .qkv_bias = true,
     .experts = Experts::kAlways,
     .shared_expert = true},
    {.name = "qwen3moe",
     .rope_pairs = RopePairs::kHalves,
     .qk_norm = QkNorm::kPerHead,
     .experts = Experts::kAlways,
     .normalised_experts = true},
    {.name = "olmoe", .rope_pairs = RopePairs::kHalves, .qk_norm = QkNorm::kWhole, .experts = Experts::kAlways},
    // Gemma's largest models, 27B, have heads narrower than dim / n_heads and scale scores by the latter. No key tells: the
    // number of layers does.
    {.name = "gemma2",
     .rope_pairs = RopePairs::kHalves,
     .gate = Gate::kGelu,
     .post_norms = true,
     .scaled_embedding = true,
     .soft_caps = true,
     .window_period = 2,
     .wide_layers = 46},
    {.name = "gemma3",
     .rope_pairs = RopePairs::kHalves,
     .gate = Gate::kGelu,
     .qk_norm = QkNorm::kPerHead,
     .post_norms = true,
     .scaled_embedding = true,
     .window_period = 6,
     .window_rope_base = 10000.0f,
     .wide_layers = 62},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
    for (const Architecture& architecture : kArchitectures) {
        if (name == architecture.name) return &architecture;
    }
    return nullptr;
}

std::string architecture_names() {
    std::string names;
    for (const Architecture& architecture : kArchitectures) {
        if (!names.empty()) names += ", ";
        names += architecture.name;
    }
    return names;
}

}  // namespace weir
