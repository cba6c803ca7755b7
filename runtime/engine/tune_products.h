// Products of float matrices for tuning (runtime/engine/tune.h), by the whole team: y = x W^T, and the two products of
// its gradient. Every output is summed in one order, whoever computes it: the number of threads changes no bit.
//
// Called by the team's owner. Matrices are rows back to back, outputs by inputs.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/engine/team.h"

namespace weir {

// A matrix in the form that the product from the right takes: eight rows side by side, with zeros for those that are
// missing.
struct RowPanels {
    size_t rows = 0, cols = 0;
    std::vector<float> values;  // [ceil(rows / 8)][cols][8]
};

class TuneProducts {
  public:
    TuneProducts(Team& team, const kernels::KernelSet& kernels) : team_(team), kernels_(kernels) {}

    Team& team() const { return team_; }
    const kernels::KernelSet& kernels() const { return kernels_; }

    // Calls work(worker, unit) for each unit, once, on any worker.
    void share(size_t units, const std::function<void(size_t worker, size_t unit)>& work) const;

    void make_panels(const float* w, size_t rows, size_t cols, RowPanels* out) const;
    // y[n, rows] = x[n, cols] W^T
    void forward(const float* x, size_t n, const RowPanels& w, float* y) const;
    // dx[n, cols] = dy[n, rows] W, or added to what is there
    void backward(const float* dy, size_t n, const float* w, size_t rows, size_t cols, bool add, float* dx) const;
    // Some rows of dW = dy^T x at a time, to whom they concern: see(first row, rows, dW[rows, cols]), by any worker.
    void weight_gradient(const float* dy, const float* x, size_t n, size_t rows, size_t cols,
                         const std::function<void(size_t first, size_t rows, const float* gradient)>& see) const;

  private:
    Team& team_;
    const kernels::KernelSet& kernels_;
};

}  // namespace weir
