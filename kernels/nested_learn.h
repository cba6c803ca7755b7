// Learned rounding of nested blocks. Weights that share an output are rounded one after the other, and what rounding has done to
// the output is made good by those that are still to come, by how inputs go together (Frantar et al. 2023, GPTQ): in two copies
// of the row, one for the errors of level 3 and one for those of level 4, and the code is the one that is best for both
// together. A weight may leave its nearest code as far as the span lets its low half bring it back; scales and minima are
// fit_nested()'s, but for level 2's, which are fitted to the codes that result.
//
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/nested.h"

namespace weir::kernels {

// moments: [k, k] sums of x x^T over inputs x, the upper half; becomes the factor that learn_nested() takes: U, upper, with U^T U
// the inverse of the moments, damped as far as that needs. False where moments are not finite.
bool feedback_factor(const KernelSet& kernels, size_t k, float* moments);

constexpr uint8_t kLearnedSpanLog2 = 1;

// Whose errors count. kThree and kFour are the same method without nesting, to see what nesting costs: codes for that level
// alone, however far from the nearest one; no other level of such blocks is any good.
enum class LearnFor { kAllLevels, kThree, kFour };

// weights: [rows, k], finite, k a multiple of 32; spent. out: [rows, super-blocks of a row]. False as fit_nested().
bool learn_nested(const KernelSet& kernels, float* weights, size_t rows, size_t k, const float* factor, LearnFor learn_for,
                  NestedBlock* out);

}  // namespace weir::kernels
