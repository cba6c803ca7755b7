// Learned rounding of nested blocks. Weights that share an output are rounded one after the other, the greatest inputs first,
// and what rounding has done to the output is made good by those that are still to come, by how inputs go together (Frantar et
// al. 2023, GPTQ with "act-order"): in three copies of the row, for the errors of levels 3, 4 and 8. The high half is the one
// that is best for levels 3 and 4 together among those from which the low half can still reach what level 8 wants. Scales and
// minima are fit_nested()'s, but for those of level 3, which are fitted to the high halves that both levels want without
// feedback, and level 2's, fitted to the codes that result.
//
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/nested.h"

namespace weir::kernels {

// What learn_nested() takes of inputs. Column order[j] of the weights is the j-th to be rounded; U, [k, k], upper, in that order,
// with U^T U the inverse of the inputs' moments, damped as far as that needs.
struct Feedback {
    std::vector<uint32_t> order;
    std::vector<float> factor;
    uint8_t fine_steps;  // of the blocks that come out (NestedRows): kFewestFineSteps or kMoreFineSteps
};

// The low half reaches over twice as much as the nearest codes need, and steps of level 8 are twice as wide, where carrying
// its errors on leaves less of their effect than the nearest codes have; elsewhere over a third more. KL on val_technical by that of
// the nearest codes, a third everywhere and this: SmolLM2 level 3, 6 windows, 0.90 and 0.78; Gemma 3 270M level 8, 4 windows, 0.68
// and 0.82 (0.00095).
constexpr uint8_t kFewestFineSteps = 2, kMoreFineSteps = 3;

// moments: [k, k] sums of x x^T over inputs x, the upper half. fewest: of the steps that it may choose. Nothing where moments are
// not finite.
std::optional<Feedback> feedback_of(const KernelSet& kernels, size_t k, std::vector<float> moments,
                                    uint8_t fewest = kFewestFineSteps);

// Whose errors count. kThree and kFour are the same method without nesting, to see what nesting costs: codes for that level
// alone, however far from the nearest one; no other level of such blocks is any good.
enum class LearnFor { kAllLevels, kThree, kFour };

// weights: [rows, k], finite, k a multiple of 32. out: [rows, super-blocks of a row]. False as fit_nested().
bool learn_nested(const KernelSet& kernels, const float* weights, size_t rows, size_t k, const Feedback& feedback, LearnFor learn_for,
                  NestedBlock* out);

}  // namespace weir::kernels
