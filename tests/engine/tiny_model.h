// Small random models of every architecture, written as GGUF files: every shape that the engine must honour, in
// milliseconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace weir::test {

struct TinyShape {
    std::string architecture = "llama";
    size_t n_layers = 2;
    size_t dim = 64;
    size_t n_heads = 4;
    size_t n_kv_heads = 2;
    size_t head_dim = 0;  // 0: dim / n_heads
    size_t rope_dims = 0; // 0: all of head_dim
    size_t ffn_dim = 96;
    size_t n_vocab = 300;
    size_t n_ctx = 64;
    kernels::Type body = kernels::Type::kF32;
    kernels::Type down = kernels::Type::kF32;
    kernels::Type embedding = kernels::Type::kF32;
    kernels::Type head = kernels::Type::kF32;
    bool tied = false;
    bool rope_factors = false;
    float rope_linear_factor = 1.0f;
    size_t window = 0;                // for architectures whose layers have one
    float attention_soft_cap = 0;
    float logit_soft_cap = 0;
    size_t n_experts = 0;             // for architectures with experts, as what follows
    size_t n_experts_used = 2;
    size_t expert_ffn_dim = 0;        // 0: ffn_dim, and no key
    size_t shared_ffn_dim = 0;
    std::optional<bool> expert_weights_norm;  // no value: no key
    float expert_weights_scale = 0;
    size_t expert_gating = 0;
    int nan_layer = -1;   // one weight of this layer's nan_part is NaN (body F32)
    std::string nan_part = "ffn_up.weight";
    std::string chat_template;
    size_t parts = 1;     // files that it is split into
    uint32_t seed = 1;
};

// Some 20 MB, so that paging has something to do, in a context that leaves room to go on for long.
inline TinyShape paged_shape() {
    TinyShape shape;
    shape.n_layers = 8;
    shape.dim = 256;
    shape.ffn_dim = 768;
    shape.n_ctx = 2000;
    return shape;
}

// A SentencePiece vocabulary of control and byte tokens, then words of letters, comes with it. Parts have the path, less its
// ".gguf", as their stem.
void write_tiny_model(const std::filesystem::path& path, const TinyShape& shape);

// A file in the test's temporary folder that is gone with the object.
class TinyModelFile {
  public:
    explicit TinyModelFile(const TinyShape& shape);
    ~TinyModelFile();
    TinyModelFile(const TinyModelFile&) = delete;
    TinyModelFile& operator=(const TinyModelFile&) = delete;
    std::string path() const { return paths_.front(); }
    const std::vector<std::string>& paths() const { return paths_; }

  private:
    std::vector<std::string> paths_;
};

}  // namespace weir::test
