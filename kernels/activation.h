// How quantize() packs an activation row for the integer forms: structures of 256 elements, the last one
// padded with zeros, so that kernels always take whole ones. One form for all instruction sets, equal to the
// bit.
//
// The 8-bit form is a row of Supers. The fine form of a row of n Supers is made of bytes, code = 128 * high + low: n
// Supers with the high ones, then the low ones, then a byte per Super that says which cells are fine. Cells that are not
// have 7 bits, and zeros for low bytes; a kernel leaves out the products with those, and the high ones lie as close as in
// the 8-bit form. Behind them the same codes lie once more, whole: a kernel to which 16 bits cost what 8 do asks nobody
// which cells are fine.
//
// The order of the elements serves the AVX2 kernels. Cells of 32 elements b and b + 4 share vectors of 32
// bytes, because that is how the nibbles of both halves of a K block, and of two 32-element blocks, come out
// of a register; eight block sums then fall out of three horizontal adds in the order of their cells.
// Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"
#include "kernels/kernels.h"

namespace weir::kernels {

// Entry b of an array belongs to cell b. sum[b] = scale[b] * (sum of the cell's codes): what a weight's min
// is multiplied with; low and high for elements 0 to 15 and 16 to 31 of the cell.
struct Super {
    float scale[kCellsPerSuper];
    float sum[kCellsPerSuper];
    float sum_low[kCellsPerSuper];
    float sum_high[kCellsPerSuper];
    int8_t codes[kSuperElements];  // -127 to 127, see int8_place(); in the fine form the high bytes
};

static_assert(sizeof(Super) == 384);

// Where the low bytes (-64 to 63, kSuperElements for each Super, see int8_place()), the fine cells (a byte for each
// Super, bit b for cell b) and the whole codes (kSuperElements int16 for each Super, in the order of the row) of a row in
// the fine form lie, and its size, a multiple of 64.
static inline constexpr size_t low_at(size_t supers) {
    return supers * sizeof(Super);
}
static inline constexpr size_t fine_at(size_t supers) {
    return supers * (sizeof(Super) + kSuperElements);
}
static inline constexpr size_t whole_at(size_t supers) {
    return (fine_at(supers) + supers + 63) / 64 * 64;
}
static inline constexpr size_t fine_row_bytes(size_t supers) {
    return whole_at(supers) + supers * kSuperElements * sizeof(int16_t);
}

constexpr float kInt8Max = 127.0f;
constexpr int kHighUnit = 128;
constexpr float kFineMax = 127 * kHighUnit + 63;  // the largest whose high byte, rounded, is a signed byte

// A cell of the fine form is fine where its largest magnitude is above this many times the mean of all cells' of the
// row: it is the outliers' cells whose rounding costs answers, for the error goes with the scale. SmolLM2 Q4_1, mean
// distance to the float logits (golden_test, all inputs so): 1.25 0.060 with 21 % of the cells fine, 1.5 0.069 with 15 %,
// 1.75 0.075, 2 0.081 with 8 %; all cells fine 0.001, none 0.156. Of normally distributed values six cells in a hundred
// are above 1.5, one above 1.75, and a tile's four tokens pay for each other's.
constexpr double kFineRatio = 1.75;

// `sum` of the largest magnitudes of `cells` cells, added up in their order. False for what is not a number.
static inline bool is_fine(float largest, double sum, size_t cells, double ratio) {
    return static_cast<double>(largest) * static_cast<double>(cells) > ratio * sum;
}
// kWhole is the fine form with all cells fine that are not zeros.
static inline constexpr double fine_ratio(Activation a) {
    return a == Activation::kWhole ? 0 : kFineRatio;
}
// The forms that are laid out as the fine form is.
static inline constexpr bool has_low_bytes(Activation a) {
    return a == Activation::kFine || a == Activation::kWhole;
}

// A cell whose largest magnitude is below this is packed as zeros: its scale, or the scale's reciprocal,
// would leave the range of normal floats.
constexpr float kSmallestMagnitude = 0x1p-100f;

// Where element i (0 to 31) of cell b (0 to 7) lies in codes.
static inline constexpr size_t int8_place(size_t b, size_t i) {
    return (b % 4 * 2 + i / 16) * 32 + b / 4 * 16 + i % 16;
}

}  // namespace weir::kernels
