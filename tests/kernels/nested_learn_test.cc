// Learned rounding: the factor is what it is said to be, outputs come nearer than the nearest code brings them, and no weight goes
// where its low half cannot bring it back.
#include "kernels/nested_learn.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/kernels/nested_fixture.h"

namespace weir::test {
namespace {

// Inputs of which many go together, as activations do: k of them made from a few.
std::vector<float> inputs(size_t n, size_t k, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const size_t few = k / 8;
    std::vector<float> mix(few * k), x(n * k);
    for (float& m : mix) m = normal(random);
    for (size_t t = 0; t < n; ++t) {
        std::vector<float> own(few);
        for (float& o : own) o = normal(random);
        for (size_t i = 0; i < k; ++i) {
            x[t * k + i] = 0.3f * normal(random);
            for (size_t f = 0; f < few; ++f)
                x[t * k + i] += mix[f * k + i] * own[f] / std::sqrt(static_cast<float>(few));
        }
    }
    return x;
}

std::vector<float> moments_of(const std::vector<float>& x, size_t k) {
    std::vector<double> sum(k * k);
    for (size_t t = 0; t * k < x.size(); ++t)
        for (size_t i = 0; i < k; ++i)
            for (size_t j = i; j < k; ++j)
                sum[i * k + j] += static_cast<double>(x[t * k + i]) * static_cast<double>(x[t * k + j]);
    return {sum.begin(), sum.end()};
}

std::vector<float> normal_weights(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.01f, 0.05f);
    std::vector<float> w(n);
    for (float& weight : w) weight = normal(random);
    return w;
}

std::vector<float> at_level(Level level, const std::vector<NestedBlock>& blocks, size_t rows, size_t k,
                            uint8_t fine_steps) {
    const size_t supers = (k + 255) / 256;
    std::vector<float> out(rows * k);
    for (size_t r = 0; r < rows; ++r) {
        std::vector<std::byte> bytes[kPlanes];
        std::byte* row[kPlanes];
        NestedRows view;
        view.fine_steps = fine_steps;
        for (size_t p = 0; p < kPlanes; ++p) {
            bytes[p].resize(plane_row_bytes(static_cast<Plane>(p), k));
            view.plane[p] = row[p] = bytes[p].data();
        }
        for (size_t b = 0; b < supers; ++b) pack_nested(blocks[r * supers + b], b, k, row);
        scalar_set().dequantize_nested(level, view, out.data() + r * k, k);
    }
    return out;
}

// Mean square of what rounding changes in the outputs.
double output_error(const std::vector<float>& w, const std::vector<float>& rounded, const std::vector<float>& x,
                    size_t rows, size_t k) {
    double sum = 0;
    for (size_t r = 0; r < rows; ++r) {
        for (size_t t = 0; t * k < x.size(); ++t) {
            double off = 0;
            for (size_t i = 0; i < k; ++i)
                off += static_cast<double>(w[r * k + i] - rounded[r * k + i]) * static_cast<double>(x[t * k + i]);
            sum += off * off;
        }
    }
    return sum;
}

TEST(NestedLearn, TheFactorIsOfTheInverse) {
    const size_t k = 96;
    const std::vector<float> moments = moments_of(inputs(300, k, 1), k);
    const std::optional<Feedback> feedback = feedback_of(scalar_set(), k, moments);
    ASSERT_TRUE(feedback);
    const std::vector<float>& u = feedback->factor;
    const std::vector<uint32_t>& order = feedback->order;
    for (size_t i = 1; i < k; ++i) EXPECT_GE(moments[order[i - 1] * (k + 1)], moments[order[i] * (k + 1)]);
    double mean = 0;
    for (size_t i = 0; i < k; ++i) mean += static_cast<double>(moments[i * k + i]) / static_cast<double>(k);
    for (size_t i = 0; i < k; ++i) {
        EXPECT_GT(u[i * k + i], 0);
        for (size_t j = 0; j < k; ++j) {
            double product = 0;  // of U^T U and the damped moments
            for (size_t m = 0; m < k; ++m) {
                double inverse = 0;
                for (size_t n = 0; n <= std::min(i, m); ++n)
                    inverse += static_cast<double>(u[n * k + i]) * static_cast<double>(u[n * k + m]);
                product += inverse * (static_cast<double>(moments[std::min(order[m], order[j]) * k + std::max(order[m], order[j])]) +
                                      (m == j ? 0.01 * mean : 0));
            }
            ASSERT_NEAR(product, i == j ? 1.0 : 0.0, 1e-3);
        }
    }
    std::vector<float> broken = moments;
    broken[5 * k + 5] = NAN;
    EXPECT_FALSE(feedback_of(scalar_set(), k, broken));
    EXPECT_TRUE(feedback_of(scalar_set(), k, std::vector<float>(k * k)));  // inputs that never came
}

TEST(NestedLearn, OutputsComeNearer) {
    const size_t rows = 24;
    for (const size_t k : {256, 320, 576}) {
        SCOPED_TRACE(k);
        const std::vector<float> x = inputs(400, k, 2), w = normal_weights(rows * k, 3);
        const std::optional<Feedback> feedback = feedback_of(scalar_set(), k, moments_of(x, k));
        ASSERT_TRUE(feedback);
        const size_t supers = (k + 255) / 256;
        std::vector<NestedBlock> learned(rows * supers), nearest(rows * supers);
        ASSERT_TRUE(learn_nested(scalar_set(), w.data(), rows, k, *feedback, LearnFor::kAllLevels, learned.data()));
        for (size_t r = 0; r < rows; ++r)
            for (size_t b = 0; b < supers; ++b)
                ASSERT_TRUE(fit_nested(w.data() + r * k + b * 256, std::min<size_t>(256, k - b * 256),
                                       &nearest[r * supers + b]));
        for (const Level level : {Level::k3, Level::k4, Level::k8}) {
            const double learned_error =
                output_error(w, at_level(level, learned, rows, k, feedback->fine_steps), x, rows, k);
            EXPECT_LT(learned_error, 0.6 * output_error(w, at_level(level, nearest, rows, k, kMostFineSteps), x, rows, k))
                << static_cast<int>(level);
        }
        // Without nesting a level is at least as near, at what the others cost.
        for (const auto& [level, alone] : {std::pair{Level::k3, LearnFor::kThree}, std::pair{Level::k4, LearnFor::kFour}}) {
            std::vector<NestedBlock> apart(rows * supers);
            ASSERT_TRUE(learn_nested(scalar_set(), w.data(), rows, k, *feedback, alone, apart.data()));
            const double error = output_error(w, at_level(level, apart, rows, k, feedback->fine_steps), x, rows, k);
            EXPECT_LT(error, output_error(w, at_level(level, learned, rows, k, feedback->fine_steps), x, rows, k))
                << static_cast<int>(level);
        }
    }
}

TEST(NestedLearn, LevelEightReachesAsFarAsItBears) {
    const size_t k = 256;
    const std::vector<float> together = moments_of(inputs(400, k, 2), k);
    std::vector<float> apart(k * k);  // inputs that tell nothing of each other: no error can be made good
    for (size_t i = 0; i < k; ++i) apart[i * (k + 1)] = 1;
    EXPECT_EQ(feedback_of(scalar_set(), k, together)->fine_steps, kFewestFineSteps);
    EXPECT_EQ(feedback_of(scalar_set(), k, together, kMoreFineSteps)->fine_steps, kMoreFineSteps);
    const std::optional<Feedback> feedback = feedback_of(scalar_set(), k, apart);
    ASSERT_TRUE(feedback);
    EXPECT_EQ(feedback->fine_steps, kMoreFineSteps);
    // Nothing is carried on: no weight is further away than half a step of level 8, and rounding of the grid.
    const std::vector<float> w = normal_weights(k, 3);
    NestedBlock block;
    ASSERT_TRUE(learn_nested(scalar_set(), w.data(), 1, k, *feedback, LearnFor::kAllLevels, &block));
    const std::vector<float> eight = at_level(Level::k8, {block}, 1, k, feedback->fine_steps);
    for (size_t i = 0; i < k; ++i) {
        const float step = group_scale(block.s4, i / 32).scale / static_cast<float>(4 * feedback->fine_steps);
        ASSERT_LE(std::fabs(w[i] - eight[i]), step * 0.52f) << i;
    }
}

TEST(NestedLearn, TheBlocksOfRowsDoNotMatter) {
    const size_t rows = 7, k = 288, supers = 2;
    const std::optional<Feedback> feedback = feedback_of(scalar_set(), k, moments_of(inputs(100, k, 4), k));
    ASSERT_TRUE(feedback);
    std::vector<float> together = normal_weights(rows * k, 5), alone = together;
    std::vector<NestedBlock> all(rows * supers), one(rows * supers);
    ASSERT_TRUE(learn_nested(scalar_set(), together.data(), rows, k, *feedback, LearnFor::kAllLevels, all.data()));
    for (size_t r = 0; r < rows; ++r)
        ASSERT_TRUE(learn_nested(scalar_set(), alone.data() + r * k, 1, k, *feedback, LearnFor::kAllLevels, one.data() + r * supers));
    for (const Level level : kLevels) EXPECT_EQ(at_level(level, all, rows, k, 1), at_level(level, one, rows, k, 1));
}

}  // namespace
}  // namespace weir::test
