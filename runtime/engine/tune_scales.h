// Scales and minima of one nested matrix at level 2 or 3, as gradient descent moves them: by Adam (Kingma & Ba 2015),
// with the gradient taken where they can be stored. What is moved is kept in full precision; what computes, and is
// stored in the end, is the nearest to it that the format has (a straight-through estimate, Bengio et al. 2013). Codes
// stay as they are.
//
// A group's weights are scale * (code - centre) + middle, centre being half of the highest code, so that either can
// move without the other having to make up for it; steps are in units of the group's first scale, whatever its size.
//
// Rows are independent: functions that take rows may run at once for different ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/nested.h"

namespace weir {

class TuneScales {
  public:
    // cols: whole groups of 32. load() then takes all rows from their planes, n from `first` on at a time.
    TuneScales(kernels::Level level, size_t rows, size_t cols);
    void load(const kernels::KernelSet& kernels, size_t first, size_t n, const kernels::NestedRows& rows);
    static uint64_t bytes(size_t rows, size_t cols);

    size_t rows() const { return rows_; }
    size_t cols() const { return cols_; }
    // [n, cols] as the level has them now.
    void weights(size_t first, size_t n, float* out) const;
    // Adds what the gradient of those weights, [n, cols], means for the scales.
    void add_gradient(size_t first, size_t n, const float* gradient);
    // One step of Adam, number `step` from 1 on, for some rows; their gradients begin anew. Scales that no half holds
    // are left as they were.
    void move(size_t first, size_t n, size_t step, float rate);
    // The rows' scale planes, back to back.
    void pack(size_t first, size_t n, std::byte* out) const;

  private:
    // What is known of a number that descends, by group.
    struct Descent {
        std::vector<float> value, gradient, mean, square;
        void resize(size_t n) {
            for (std::vector<float>* const v : {&value, &gradient, &mean, &square}) v->resize(n);
        }
        float moved(size_t at, float unit, size_t step, float rate);
    };

    void read_stored(size_t row);

    const kernels::Level level_;
    const kernels::Plane plane_;
    const float centre_;
    const size_t rows_, cols_, groups_, supers_;        // groups_, supers_: of a row
    std::vector<uint8_t> codes_;                        // [rows, cols]
    std::vector<kernels::NestedBlock::Scales> stored_;  // [rows, supers]
    std::vector<float> scale_, min_;                    // [rows, groups], of stored_
    std::vector<float> unit_;                           // [rows, groups], the first scales
    Descent scales_, middles_;                          // [rows, groups]
};

}  // namespace weir
