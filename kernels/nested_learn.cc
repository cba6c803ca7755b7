#include "kernels/nested_learn.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/nested_fit.h"

namespace weir::kernels {
namespace {

// Of the mean of the moments' diagonal: what GPTQ adds to it.
constexpr double kDamping = 0.01;
// Columns whose errors are carried on together.
constexpr size_t kFeedbackBlock = 64;
// How the squared errors of levels 3 and 4 weigh against each other. weir-demo-8m, 8192 tokens of calibration text, KL to the source
// by that of the nearest codes (6 windows of val_technical): 2 gives 0.71 at level 3 and 0.83 at level 4, 3 gives 0.75 and 0.79, 4
// gives 0.80 and 0.76.
constexpr float kThreeWeight = 1.0f, kFourWeight = 3.0f;

// What choose_high() holds codes to.
struct Objective {
    float three, four;  // weights of the levels' squared errors
    float reach;        // steps of level 4 that a high half may lie off its weight, beside the nearest
};

Objective objective_of(LearnFor learn_for) {
    switch (learn_for) {
        case LearnFor::kAllLevels: break;
        case LearnFor::kThree: return {1, 0, INFINITY};
        case LearnFor::kFour: return {0, 1, INFINITY};
    }
    return {kThreeWeight, kFourWeight, 0.5f * (1 << kLearnedSpanLog2)};
}

float at(const GroupScale& grid, int code) {
    return grid.scale * static_cast<float>(code) + grid.min;
}

// The high half of the least error among those within reach of the weight: so far the low half can bring it back.
int choose_high(float weight, float for_three, float for_four, const GroupScale& three, const GroupScale& four, const Objective& objective) {
    if (four.scale == 0) return 0;
    const float steps = (weight - four.min) / four.scale;
    const int middle = std::clamp(static_cast<int>(std::nearbyint(steps)), 0, 15);
    const int around = std::isinf(objective.reach) ? 15 : 2;
    int best = middle;
    float least = INFINITY;
    for (int high = std::max(0, middle - around); high <= std::min(15, middle + around); ++high) {
        if (high != middle && std::fabs(steps - static_cast<float>(high)) > objective.reach) continue;
        const float off3 = for_three - at(three, high >> 1), off4 = for_four - at(four, high);
        const float error = objective.three * off3 * off3 + objective.four * off4 * off4;
        if (!(error < least)) continue;
        least = error;
        best = high;
    }
    return best;
}

uint8_t learned_code(float weight, int high, const GroupScale& four) {
    constexpr float kSteps = 16 >> kLearnedSpanLog2;
    const float left = four.scale == 0 ? 0 : (weight - four.min) / four.scale - static_cast<float>(high);
    return static_cast<uint8_t>(high << 4 |
                                static_cast<int>(std::clamp(std::nearbyint(left * kSteps + 7.5f), 0.0f, 15.0f)));
}

}  // namespace

bool feedback_factor(const KernelSet& kernels, size_t k, float* a) {
    double mean = 0;
    for (size_t i = 0; i < k; ++i) mean += static_cast<double>(a[i * k + i]) / static_cast<double>(k);
    if (!std::isfinite(mean)) return false;
    // Inputs that never came change nothing: any positive number does for them.
    const auto damp = static_cast<float>(std::max(kDamping * mean, 1e-20));
    for (size_t i = 0; i < k; ++i) a[i * k + i] += damp;
    // a = R R^T, R upper: from the last column on, each taking its product with itself off what is left.
    std::vector<float> column(k);
    for (size_t j = k; j-- > 0;) {
        const float pivot = a[j * k + j];
        const float root = std::sqrt(std::max(pivot, damp));  // below the damping there is rounding alone
        if (!std::isfinite(root)) return false;
        a[j * k + j] = root;
        for (size_t i = 0; i < j; ++i) column[i] = a[i * k + j] /= root;
        for (size_t i = 0; i < j; ++i) kernels.axpy_f32(-column[i], column.data() + i, j - i, a + i * k + i);
    }
    // U = R^-1, whose transpose with it is the inverse of a: rows from the last on.
    for (size_t i = k; i-- > 0;) {
        float* const row = a + i * k;
        const float pivot = row[i];
        std::copy(row + i + 1, row + k, column.begin());
        std::fill(row + i, row + k, 0.0f);
        for (size_t m = i + 1; m < k; ++m) kernels.axpy_f32(column[m - i - 1], a + m * k + m, k - m, row + m);
        for (size_t m = i + 1; m < k; ++m) row[m] /= -pivot;
        row[i] = 1 / pivot;
    }
    return true;
}

bool learn_nested(const KernelSet& kernels, float* weights, size_t rows, size_t k, const float* factor, LearnFor learn_for,
                  NestedBlock* out) {
    const Objective objective = objective_of(learn_for);
    const size_t supers = (k + kSuperElements - 1) / kSuperElements;
    for (size_t r = 0; r < rows; ++r) {
        for (size_t b = 0; b < supers; ++b) {
            if (!fit_nested(weights + r * k + b * kSuperElements, std::min(kSuperElements, k - b * kSuperElements),
                            out + r * supers + b))
                return false;
        }
    }
    const std::vector<float> nearest(weights, weights + rows * k);  // as they were
    std::vector<float> for_three(nearest), errors(2 * rows * kFeedbackBlock);
    float* const copies[] = {for_three.data(), weights};
    for (size_t first = 0; first < k; first += kFeedbackBlock) {
        const size_t end = std::min(first + kFeedbackBlock, k);
        for (size_t r = 0; r < rows; ++r) {
            float* const error[] = {errors.data() + r * kFeedbackBlock, errors.data() + (rows + r) * kFeedbackBlock};
            for (size_t j = first; j < end; ++j) {
                NestedBlock& block = out[r * supers + j / kSuperElements];
                const size_t e = j % kSuperElements, g = e / kCellElements;
                const GroupScale three = group_scale(block.s3, g), four = group_scale(block.s4, g);
                float* const row[] = {copies[0] + r * k, copies[1] + r * k};
                const int high = choose_high(nearest[r * k + j], row[0][j], row[1][j], three, four, objective);
                block.code[e] = learned_code(nearest[r * k + j], high, four);
                const float* const u = factor + j * k;
                const float off[] = {row[0][j] - at(three, high >> 1), row[1][j] - at(four, high)};
                for (size_t c = 0; c < 2; ++c) {
                    error[c][j - first] = -off[c] / u[j];
                    kernels.axpy_f32(error[c][j - first], u + j + 1, end - j - 1, row[c] + j + 1);
                }
            }
        }
        // What comes behind the block takes all of its errors at once.
        for (size_t c = 0; c < 2 && end < k; ++c) {
            kernels.multiply_add(Type::kF32, errors.data() + c * rows * kFeedbackBlock, kFeedbackBlock, rows,
                                 factor + first * k + end, k, 8, end - first, k - end, copies[c] + end, k);
        }
    }
    for (size_t r = 0; r < rows; ++r) {
        for (size_t b = 0; b < supers; ++b) {
            const size_t at = b * kSuperElements;
            if (!fit_level_two(nearest.data() + r * k + at, std::min(kSuperElements, k - at), out + r * supers + b))
                return false;
        }
    }
    return true;
}

}  // namespace weir::kernels
