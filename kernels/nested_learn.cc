#include "kernels/nested_learn.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/nested_fit.h"

namespace weir::kernels {
namespace {

// Of the mean of the moments' diagonal: what GPTQ adds to it.
constexpr double kDamping = 0.01;
// Columns whose errors are carried on together.
constexpr size_t kFeedbackBlock = 64;
// How the squared errors of levels 3 and 4 weigh against each other. Gemma 3 270M, KL by that of the nearest codes, before the
// greatest inputs came first: 1 to 3 gives 0.80 at level 3 and 0.68 at level 4, 2 to 3 gives 0.76 and 0.70.
constexpr float kThreeWeight = 2.0f, kFourWeight = 3.0f;

// What errors of level 8 may do to outputs, of what those of the nearest codes do.
constexpr double kEightShare = 5.0 / 6;

// Each level has a copy of the weights of its own, in which its errors are carried on.
enum Copy { kThree, kFour, kEight, kCopies };

// What choose_high() holds codes to.
struct Objective {
    float three, four;  // weights of the levels' squared errors
    float reach;        // steps of level 4 that a high half may lie off its weight, beside the nearest
    bool eight;         // level 8 counts: the low half makes good its errors
};

Objective objective_of(LearnFor learn_for, uint8_t fine_steps) {
    switch (learn_for) {
        case LearnFor::kAllLevels: break;
        case LearnFor::kThree: return {1, 0, INFINITY, false};
        case LearnFor::kFour: return {0, 1, INFINITY, false};
    }
    return {kThreeWeight, kFourWeight, 0.5f * kMostFineSteps / static_cast<float>(fine_steps), true};
}

float value_at(const GroupScale& grid, int code) {
    return grid.scale * static_cast<float>(code) + grid.min;
}

// The high half of the least error among those within reach of what level 8 wants: so far the low half can bring it back.
int choose_high(const float (&wanted)[kCopies], const GroupScale& three, const GroupScale& four, const Objective& objective) {
    if (four.scale == 0) return 0;
    const float steps = (wanted[kEight] - four.min) / four.scale;
    const int middle = std::clamp(static_cast<int>(std::nearbyint(steps)), 0, 15);
    const int around = std::isinf(objective.reach) ? 15 : 2;
    int best = middle;
    float least = INFINITY;
    for (int high = std::max(0, middle - around); high <= std::min(15, middle + around); ++high) {
        if (high != middle && std::fabs(steps - static_cast<float>(high)) > objective.reach) continue;
        const float off3 = wanted[kThree] - value_at(three, high >> 1), off4 = wanted[kFour] - value_at(four, high);
        const float error = objective.three * off3 * off3 + objective.four * off4 * off4;
        if (!(error < least)) continue;
        least = error;
        best = high;
    }
    return best;
}

int choose_low(float wanted, int high, const GroupScale& four, float low_steps) {
    const float left = four.scale == 0 ? 0 : (wanted - four.min) / four.scale - static_cast<float>(high);
    return static_cast<int>(std::clamp(std::nearbyint(left * low_steps + 7.5f), 0.0f, 15.0f));
}

// Rows that are rounded together.
class Rows {
  public:
    Rows(const KernelSet& kernels, const float* weights, size_t rows, size_t k, const Feedback& feedback, LearnFor learn_for,
         NestedBlock* out)
        : kernels_(kernels), rows_(rows), k_(k), feedback_(feedback), objective_(objective_of(learn_for, feedback.fine_steps)),
          low_steps_(4.0f * static_cast<float>(feedback.fine_steps)), weights_(weights), out_(out) {
        copies_[0].reserve(rows * k);
        for (size_t r = 0; r < rows; ++r)
            for (const uint32_t at : feedback.order) copies_[0].push_back(weights[r * k + at]);
        for (size_t c = 1; c < kCopies; ++c) copies_[c] = copies_[0];
        errors_.resize(kCopies * rows * kFeedbackBlock);
    }

    bool learn() {
        if (!fit_three()) return false;
        for (size_t first = 0; first < k_; first += kFeedbackBlock) {
            const size_t end = std::min(first + kFeedbackBlock, k_);
            for (size_t r = 0; r < rows_; ++r)
                for (size_t j = first; j < end; ++j) round(r, j, first, end);
            if (end < k_) carry_on(first, end);
        }
        return fit(Level::k2);
    }

  private:
    // Where a row's weight lies: its block, its element there, its group.
    struct Place {
        NestedBlock& block;
        size_t element, group;
    };
    Place place(size_t r, size_t column) const {
        const size_t supers = (k_ + kSuperElements - 1) / kSuperElements, element = column % kSuperElements;
        return {out_[r * supers + column / kSuperElements], element, element / kCellElements};
    }

    // Scales and minima of a level for the codes that there are.
    bool fit(Level level) const {
        for (size_t r = 0; r < rows_; ++r) {
            for (size_t first = 0; first < k_; first += kSuperElements) {
                const size_t n = std::min(kSuperElements, k_ - first);
                if (!fit_level(level, weights_ + r * k_ + first, n, &place(r, first).block)) return false;
            }
        }
        return true;
    }

    // Level 3's for the high halves that would be chosen if no errors were carried on.
    bool fit_three() const {
        for (size_t r = 0; r < rows_; ++r) {
            for (size_t column = 0; column < k_; ++column) {
                const float weight = weights_[r * k_ + column];
                const Place at = place(r, column);
                const GroupScale three = group_scale(at.block.s3, at.group), four = group_scale(at.block.s4, at.group);
                const int high = choose_high({weight, weight, weight}, three, four, objective_);
                at.block.code[at.element] = static_cast<uint8_t>(high << 4);
            }
        }
        return fit(Level::k3);
    }

    // The j-th weight of a row, and its errors to those up to `end`.
    void round(size_t r, size_t j, size_t first, size_t end) {
        const Place at = place(r, feedback_.order[j]);
        const size_t in_copy = r * k_ + j;
        float wanted[kCopies];
        for (size_t c = 0; c < kCopies; ++c) wanted[c] = copies_[c][in_copy];
        const GroupScale three = group_scale(at.block.s3, at.group), four = group_scale(at.block.s4, at.group);
        const int high = choose_high(wanted, three, four, objective_), low = choose_low(wanted[kEight], high, four, low_steps_);
        at.block.code[at.element] = static_cast<uint8_t>(high << 4 | low);
        const float eight = value_at(four, high) + four.scale * (static_cast<float>(low) - 7.5f) / low_steps_;
        const float off[kCopies] = {wanted[kThree] - value_at(three, high >> 1), wanted[kFour] - value_at(four, high),
                                    objective_.eight ? wanted[kEight] - eight : 0};
        const float* const u = feedback_.factor.data() + j * k_;
        for (size_t c = 0; c < kCopies; ++c) {
            const float error = -off[c] / u[j];
            errors_[(c * rows_ + r) * kFeedbackBlock + (j - first)] = error;
            kernels_.axpy_f32(error, u + j + 1, end - j - 1, copies_[c].data() + in_copy + 1);
        }
    }

    // What comes behind a block of columns takes all of its errors at once.
    void carry_on(size_t first, size_t end) {
        for (size_t c = 0; c < kCopies; ++c) {
            kernels_.multiply_add(Type::kF32, errors_.data() + c * rows_ * kFeedbackBlock, kFeedbackBlock, rows_,
                                  feedback_.factor.data() + first * k_ + end, k_, 8, end - first, k_ - end, copies_[c].data() + end, k_);
        }
    }

    const KernelSet& kernels_;
    const size_t rows_, k_;
    const Feedback& feedback_;
    const Objective objective_;
    const float low_steps_;       // of level 8 in one of level 4
    const float* const weights_;  // as they were
    NestedBlock* const out_;
    std::vector<float> copies_[kCopies];  // [row, column in the order of rounding]
    std::vector<float> errors_;  // [copy, row, column of the block]
};

// The greatest first. moments: a symmetric matrix by its upper half, which comes out in that order.
std::vector<uint32_t> put_in_order(size_t k, float* moments) {
    std::vector<uint32_t> order(k);
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](uint32_t i) { return moments[i * k + i]; });
    for (size_t i = 0; i < k; ++i)
        for (size_t j = 0; j < i; ++j) moments[i * k + j] = moments[j * k + i];
    std::vector<float> row(k);
    for (size_t i = 0; i < k; ++i) {
        std::copy_n(moments + i * k, k, row.begin());
        for (size_t j = 0; j < k; ++j) moments[i * k + j] = row[order[j]];
    }
    std::vector<bool> there(k);  // rows, cycle by cycle
    for (size_t first = 0; first < k; ++first) {
        if (there[first]) continue;
        std::copy_n(moments + first * k, k, row.begin());
        size_t at = first;
        for (; order[at] != first; at = order[at]) {
            std::copy_n(moments + order[at] * k, k, moments + at * k);
            there[at] = true;
        }
        std::copy_n(row.begin(), k, moments + at * k);
        there[at] = true;
    }
    return order;
}

// The moments become U. False where they are not finite.
bool factorise(const KernelSet& kernels, size_t k, float* a) {
    double mean = 0;
    for (size_t i = 0; i < k; ++i) mean += static_cast<double>(a[i * k + i]) / static_cast<double>(k);
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

}  // namespace

std::optional<Feedback> feedback_of(const KernelSet& kernels, size_t k, std::vector<float> moments, uint8_t fewest) {
    for (size_t i = 0; i < k; ++i)
        if (!std::isfinite(moments[i * k + i])) return {};
    Feedback out;
    out.order = put_in_order(k, moments.data());
    // What errors of one size do to outputs: where they stay, and where they are carried on.
    double stay = 0, carried = 0;
    for (size_t i = 0; i < k; ++i) stay += static_cast<double>(moments[i * k + i]);
    if (!factorise(kernels, k, moments.data())) return {};
    for (size_t i = 0; i < k; ++i) carried += std::pow(static_cast<double>(moments[i * k + i]), -2);
    const double wider = static_cast<double>(kMostFineSteps) / fewest;
    out.fine_steps = wider * wider * carried <= kEightShare * stay ? fewest : kMoreFineSteps;
    out.factor = std::move(moments);
    return out;
}

bool learn_nested(const KernelSet& kernels, const float* weights, size_t rows, size_t k, const Feedback& feedback,
                  LearnFor learn_for, NestedBlock* out) {
    NestedBlock* block = out;
    for (size_t r = 0; r < rows; ++r) {
        for (size_t first = 0; first < k; first += kSuperElements) {
            if (!fit_nested(weights + r * k + first, std::min(kSuperElements, k - first), block++)) return false;
        }
    }
    return Rows(kernels, weights, rows, k, feedback, learn_for, out).learn();
}

}  // namespace weir::kernels
