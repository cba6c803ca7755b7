// How quantize() packs an activation row for the integer forms: structures of 256 elements, the last one
// padded with zeros, so that kernels always take whole ones. One form for all instruction sets, equal to the
// bit.
//
// The order of the elements serves the AVX2 kernels. Cells of 32 elements b and b + 4 share vectors of 32
// bytes, because that is how the nibbles of both halves of a K block, and of two 32-element blocks, come out
// of a register; eight block sums then fall out of three horizontal adds in the order of their cells.
// Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"

namespace weir::kernels {

// Entry b of an array belongs to cell b. sum[b] = scale[b] * (sum of the cell's codes): what a weight's min
// is multiplied with; low and high for elements 0 to 15 and 16 to 31 of the cell.
struct Int8Super {
    float scale[kCellsPerSuper];
    float sum[kCellsPerSuper];
    float sum_low[kCellsPerSuper];
    float sum_high[kCellsPerSuper];
    int8_t codes[kSuperElements];  // -127 to 127, see int8_place()
};

// A code is there twice: as one number, and as two bytes, code = 256 * high + low, for kernels that multiply bytes.
struct Int16Super {
    float scale[kCellsPerSuper];
    float sum[kCellsPerSuper];
    float sum_low[kCellsPerSuper];
    float sum_high[kCellsPerSuper];
    int16_t codes[kSuperElements];  // -32639 to 32639, see int16_place()
    int8_t high[kSuperElements];    // -127 to 127, see int8_place()
    int8_t low[kSuperElements];     // -128 to 127, likewise
};

static_assert(sizeof(Int8Super) == 384 && sizeof(Int16Super) == 1152);

constexpr float kInt8Max = 127.0f;
constexpr float kInt16Max = 127 * 256 + 127;  // the largest whose high byte, rounded, is a signed byte

// A cell whose largest magnitude is below this is packed as zeros: its scale, or the scale's reciprocal,
// would leave the range of normal floats.
constexpr float kSmallestMagnitude = 0x1p-100f;

// Where element i (0 to 31) of cell b (0 to 7) lies in codes.
static inline constexpr size_t int8_place(size_t b, size_t i) {
    return (b % 4 * 2 + i / 16) * 32 + b / 4 * 16 + i % 16;
}

// Even elements apart from odd ones: a vector of bytes splits into those by a mask and a shift.
static inline constexpr size_t int16_place(size_t b, size_t i) {
    return (b % 4 * 2 + i / 16) * 32 + i % 2 * 16 + b / 4 * 8 + i % 16 / 2;
}

}  // namespace weir::kernels
