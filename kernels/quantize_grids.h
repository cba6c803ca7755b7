// Weights to the formats of kernels/grid_blocks.h. Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace weir::kernels {

// n elements, a multiple of 256. False for a type that is none of those.
bool quantize_grids(Type type, const float* src, uint8_t* dst, size_t n) noexcept;

}  // namespace weir::kernels
