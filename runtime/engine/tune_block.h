// One layer of a decoder (attention and feed-forward, as runtime/engine/forward.h has it) on windows of tokens, and the
// gradient of its matrices: for tuning (runtime/engine/tune.h). In float, from dequantised weights; experts are not
// known here.
//
// The gradient stops at the layer's input, which nobody tunes. Called by the team's owner.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "runtime/engine/model.h"
#include "runtime/engine/tune_attention.h"
#include "runtime/engine/tune_products.h"

namespace weir {

// A layer's matrices, in execution order.
enum class BlockPart : size_t { kQ, kK, kV, kOutput, kGate, kUp, kDown };
constexpr size_t kBlockParts = 7;
constexpr bool needs_input_gradient(size_t part) { return part >= static_cast<size_t>(BlockPart::kOutput); }
const Matrix& block_matrix(const Layer& layer, size_t part);

struct BlockWeights {
    std::array<RowPanels, kBlockParts> panels;
    std::array<std::vector<float>, kBlockParts>
        rows;  // [rows, cols]; empty where only forward() runs, or nobody needs them
};

class TuneBlock {
  public:
    // Of at most so many windows at a time, each of `tokens` tokens from position 0 on.
    TuneBlock(const Model& model, const TuneProducts& products, size_t windows, size_t tokens);
    static uint64_t bytes(const ModelConfig& config, size_t windows, size_t tokens, size_t workers);

    // x, y: [windows * tokens, dim]. Keeps what backward() needs.
    void forward(size_t layer, const BlockWeights& weights, const float* x, size_t windows, float* y);
    // Of the forward() that ran last: dy is the gradient of a loss by y. see(part, first row, rows, gradient[rows,
    // cols]) for all rows of all matrices, by any worker.
    using See = std::function<void(size_t part, size_t first, size_t rows, const float* gradient)>;
    void backward(size_t layer, const BlockWeights& weights, const float* dy, size_t windows, const See& see);

  private:
    void norm(const float* x, size_t rows, const std::vector<float>& weight, float* y) const;
    void norm_gradient(const float* x, size_t rows, const std::vector<float>& weight, const float* dy, bool add,
                       float* dx) const;
    void normalise_heads(const Layer& layer, size_t n);
    void turn_heads(const Layer& layer, size_t n, float direction, float* q, float* k) const;
    void attend(const Layer& layer, size_t windows);
    void attend_gradient(const Layer& layer, size_t windows);

    const Model& model_;
    const TuneProducts& products_;
    const size_t tokens_;
    std::vector<std::vector<float>> cos_, sin_;  // of each rope: [tokens, rope_dims / 2]
    std::vector<TuneAttention> attention_;       // by worker
    // Of the last forward(), rows by token, and their gradients.
    std::vector<float> attn_in_, q_, k_, v_;  // q and k before their norms
    std::vector<float> q_turned_, k_turned_;  // and after norms and turning
    std::vector<float> attended_, added_;     // added_: what attention adds, before its norm
    std::vector<float> middle_, ffn_in_, gate_, up_, gated_, down_;
    std::vector<float> d_wide_, d_gate_, d_up_, d_middle_, d_q_, d_k_, d_v_, d_dim_;
};

}  // namespace weir
