// What the nearest code and learned rounding share.
#pragma once

#include <cstddef>

#include "kernels/nested.h"

namespace weir::kernels {

// Scales and minima of level 2 or 3 by least squares, for codes that are settled. n: 32 to 256 weights, whole groups. False where a
// scale is too large for half precision.
bool fit_level(Level level, const float* weights, size_t n, NestedBlock* block) noexcept;

}  // namespace weir::kernels
