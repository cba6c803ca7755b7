#include "runtime/engine/tune_attention.h"

#include <algorithm>

namespace weir {
namespace {

// [rows, cols] at a stride, turned: [cols, rows].
void turn(const float* from, size_t stride, size_t rows, size_t cols, float* to) {
    for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * stride + c];
}

}  // namespace

TuneAttention::TuneAttention(const kernels::KernelSet& kernels, size_t head_dim, size_t tokens)
    : kernels_(kernels),
      n_(tokens),
      across_(head_dim * tokens),
      weights_(tokens * tokens),
      slope_(tokens * tokens),
      scores_(tokens * tokens),
      turned_(tokens * tokens) {}

size_t TuneAttention::bytes(size_t head_dim, size_t tokens) {
    return (head_dim * tokens + 4 * tokens * tokens) * sizeof(float);
}

// weights_[t][p] = softmax over p of what token t gives position p; 0 where it does not look.
void TuneAttention::weigh(const AttentionShape& shape, const Rows& in) {
    turn(in.k, in.kv_stride, n_, shape.head_dim, across_.data());
    std::ranges::fill(weights_, 0.0f);
    kernels_.multiply_add(kernels::Type::kF32, in.q, in.q_stride, n_, across_.data(), n_, 8, shape.head_dim, n_,
                          weights_.data(), n_);
    for (size_t t = 0; t < n_; ++t) {
        float* const row = weights_.data() + t * n_;
        const size_t begin = t + 1 - std::min(t + 1, shape.window), end = t + 1;
        for (size_t p = begin; p < end; ++p) row[p] *= shape.scale;
        if (shape.soft_cap != 0) {
            kernels_.soft_cap(row + begin, end - begin, shape.soft_cap);
            for (size_t p = begin; p < end; ++p) {
                const float share = row[p] / shape.soft_cap;
                slope_[t * n_ + p] = 1 - share * share;
            }
        }
        kernels_.softmax(row + begin, end - begin);
        std::fill(row, row + begin, 0.0f);
        std::fill(row + end, row + n_, 0.0f);
    }
}

void TuneAttention::forward(const AttentionShape& shape, const Rows& in, float* out) {
    weigh(shape, in);
    for (size_t t = 0; t < n_; ++t) std::fill_n(out + t * in.q_stride, shape.head_dim, 0.0f);
    kernels_.multiply_add(kernels::Type::kF32, weights_.data(), n_, n_, in.v, in.kv_stride, 8, n_, shape.head_dim, out,
                          in.q_stride);
}

void TuneAttention::backward(const AttentionShape& shape, const Rows& in, const float* dout, float* dq, float* dk,
                             float* dv) {
    weigh(shape, in);
    const size_t d = shape.head_dim;
    turn(weights_.data(), n_, n_, n_, turned_.data());
    kernels_.multiply_add(kernels::Type::kF32, turned_.data(), n_, n_, dout, in.q_stride, 8, n_, d, dv, in.kv_stride);

    turn(in.v, in.kv_stride, n_, d, across_.data());
    std::ranges::fill(scores_, 0.0f);
    kernels_.multiply_add(kernels::Type::kF32, dout, in.q_stride, n_, across_.data(), n_, 8, d, n_, scores_.data(), n_);
    for (size_t t = 0; t < n_; ++t) {
        const float* const weight = weights_.data() + t * n_;
        float* const row = scores_.data() + t * n_;
        const float mean = kernels_.dot_f32(weight, row, t + 1);  // what moves all weights alike moves none
        for (size_t p = 0; p <= t; ++p) row[p] = weight[p] * (row[p] - mean) * shape.scale;
        for (size_t p = 0; p <= t && shape.soft_cap != 0; ++p) row[p] *= weight[p] == 0 ? 0 : slope_[t * n_ + p];
        std::fill(row + t + 1, row + n_, 0.0f);
    }
    for (size_t t = 0; t < n_; ++t) std::fill_n(dq + t * in.q_stride, d, 0.0f);
    kernels_.multiply_add(kernels::Type::kF32, scores_.data(), n_, n_, in.k, in.kv_stride, 8, n_, d, dq, in.q_stride);
    turn(scores_.data(), n_, n_, n_, turned_.data());
    kernels_.multiply_add(kernels::Type::kF32, turned_.data(), n_, n_, in.q, in.q_stride, 8, n_, d, dk, in.kv_stride);
}

}  // namespace weir
