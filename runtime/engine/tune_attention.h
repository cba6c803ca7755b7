// Attention of one query head over one window of tokens, and its gradient: softmax(soft_cap(scale * q K^T)) V, each
// token over the positions that it sees (Vaswani et al. 2017). Plain and in float: for tuning (runtime/engine/tune.h).
//
// One object to a worker: it holds scratch of tokens * tokens floats, several times.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/engine/attention.h"

namespace weir {

class TuneAttention {
  public:
    // Rows of q, out and their gradients are q_stride floats apart, of keys and values kv_stride; all are turned
    // already.
    struct Rows {
        const float* q;
        const float* k;
        const float* v;
        size_t q_stride, kv_stride;
    };

    TuneAttention(const kernels::KernelSet& kernels, size_t head_dim, size_t tokens);
    static size_t bytes(size_t head_dim, size_t tokens);

    // out: [tokens, head_dim], may not be q.
    void forward(const AttentionShape& shape, const Rows& in, float* out);
    // dq is written, dk and dv are added to. For the same inputs as forward(), which need not have run.
    void backward(const AttentionShape& shape, const Rows& in, const float* dout, float* dq, float* dk, float* dv);

  private:
    void weigh(const AttentionShape& shape, const Rows& in);

    const kernels::KernelSet& kernels_;
    const size_t n_;
    std::vector<float> across_;   // [head_dim, n] keys, then values, turned
    std::vector<float> weights_;  // [n, n]
    std::vector<float> slope_;    // [n, n] of the soft cap
    std::vector<float> scores_;   // [n, n] gradients of the scores
    std::vector<float> turned_;   // [n, n]
};

}  // namespace weir
