// Float weights into any tensor type, by plain rounding: scales from the extremes of each group, codes to the
// nearest. For synthetic models and tests; a pure function, any thread. Learned rounding is not its business.
#pragma once

#include <cstddef>

#include "kernels/types.h"

namespace weir::kernels {

// Writes row_bytes(type, n) bytes to dst. n must be a multiple of the type's block_elements and src finite; a
// magnitude that a type's half-precision scale cannot hold becomes infinity.
void quantize_weights(Type type, const float* src, void* dst, size_t n) noexcept;

}  // namespace weir::kernels
