// Eight rows interleaved: as keys lie in a KV cache, so that attention multiplies eight positions at a time
// (multiply_add() in kernels.h). Floats and halves: element i of row r at [i * 8 + r]. Quantised rows, for each 32
// elements: the eight scales, then the codes, byte b of row r's block at [b * 8 + r].
#pragma once

#include <cstddef>

#include "kernels/types.h"

namespace weir::kernels {

constexpr size_t kPanelRows = 8;

// Puts n elements of one row, in the type's own layout, into the place of row `r` < 8 of a panel that begins with these
// elements. Types: F32, F16, Q8_0, Q4_0; n a multiple of the type's block_elements. Leaves the other rows alone.
void place_in_panel(Type type, const void* row, size_t n, size_t r, void* panel) noexcept;

}  // namespace weir::kernels
