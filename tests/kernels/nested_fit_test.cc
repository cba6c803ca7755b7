// What nested blocks take, and how near the nearest code comes.
#include <gtest/gtest.h>

#include "tests/kernels/nested_fixture.h"

namespace weir::test {
namespace {

struct Fitted {
    bool ok = false;
    std::vector<float> at[9];  // by level

    explicit Fitted(const std::vector<float>& w) {
        const size_t k = w.size();
        std::vector<std::byte> bytes[kPlanes];
        std::byte* row[kPlanes];
        NestedRows rows;
        for (size_t p = 0; p < kPlanes; ++p) {
            bytes[p].resize(plane_row_bytes(static_cast<Plane>(p), k));
            rows.plane[p] = row[p] = bytes[p].data();
        }
        for (size_t b = 0; b * kSuperElements < k; ++b) {
            NestedBlock block;
            ok = fit_nested(w.data() + b * kSuperElements, std::min(kSuperElements, k - b * kSuperElements), &block);
            if (!ok) return;
            pack_nested(block, b, k, row);
        }
        for (const Level level : kLevels) {
            std::vector<float>& out = at[static_cast<size_t>(level)];
            out.resize(k);
            scalar_set().dequantize_nested(level, rows, out.data(), k);
        }
    }

    double error(Level level, const std::vector<float>& w) const {
        double sum = 0, all = 0;
        for (size_t i = 0; i < w.size(); ++i) {
            const double off = static_cast<double>(w[i] - at[static_cast<size_t>(level)][i]);
            sum += off * off;
            all += static_cast<double>(w[i]) * static_cast<double>(w[i]);
        }
        return std::sqrt(sum / all);
    }
};

TEST(NestedSizes, LevelsReadTheirBits) {
    EXPECT_EQ(level_row_bytes(Level::k2, 1024) * 8, 1024 * 5 / 2);
    EXPECT_EQ(level_row_bytes(Level::k3, 1024) * 8, 1024 * 7 / 2);
    EXPECT_EQ(level_row_bytes(Level::k4, 1024) * 8, 1024 * 9 / 2);
    EXPECT_EQ(level_row_bytes(Level::k6, 1024) * 8, 1024 * 13 / 2);
    EXPECT_EQ(level_row_bytes(Level::k8, 1024) * 8, 1024 * 17 / 2);
    size_t stored = 0;
    for (size_t p = 0; p < kPlanes; ++p) stored += plane_row_bytes(static_cast<Plane>(p), 1024);
    EXPECT_EQ(stored * 8, 1024 * 19 / 2);
    // Two groups left over take no more than their share, but for the halves.
    EXPECT_EQ(plane_row_bytes(Plane::kP1, 576), 144u);
    EXPECT_EQ(plane_row_bytes(Plane::kP2, 576), 72u);
    EXPECT_EQ(plane_row_bytes(Plane::kS4, 576), 2u * 16 + 4 + 3);
}

TEST(NestedFit, ErrorsFallWithTheLevel) {
    std::mt19937 rng(5);
    for (const size_t k : {size_t{32}, size_t{96}, size_t{576}, size_t{2048}}) {
        const std::vector<float> w = random_floats(k, 0.02f, rng);
        const Fitted fitted(w);
        ASSERT_TRUE(fitted.ok);
        EXPECT_LT(fitted.error(Level::k2, w), 0.45) << k;
        EXPECT_LT(fitted.error(Level::k3, w), 0.20) << k;
        EXPECT_LT(fitted.error(Level::k4, w), 0.09) << k;
        EXPECT_LT(fitted.error(Level::k6, w), 0.025) << k;
        EXPECT_LT(fitted.error(Level::k8, w), 0.0065) << k;
        if (k < 500) continue;  // too few for ratios
        // Two bits more are an error four times smaller.
        EXPECT_NEAR(fitted.error(Level::k4, w) / fitted.error(Level::k6, w), 4, 0.7) << k;
        EXPECT_NEAR(fitted.error(Level::k6, w) / fitted.error(Level::k8, w), 4, 0.7) << k;
    }
}

// Groups of very different sizes, of one sign, of one value, with one outlier: at level 8 no weight is further off than half
// a step of the group's range, or what six bits of the largest group's scale leave.
TEST(NestedFit, Level8HoldsEveryWeight) {
    std::mt19937 rng(7);
    std::vector<float> w = random_floats(512, 0.02f, rng);
    for (size_t i = 0; i < 32; ++i) w[32 + i] *= 0.01f;
    for (size_t i = 0; i < 32; ++i) w[64 + i] = std::fabs(w[64 + i]) + 0.01f;
    for (size_t i = 0; i < 32; ++i) w[96 + i] = -0.03f;
    for (size_t i = 0; i < 32; ++i) w[128 + i] = 0;
    w[170] = 0.5f;
    const Fitted fitted(w);
    ASSERT_TRUE(fitted.ok);
    for (size_t b = 0; b < 2; ++b) {
        float low = 0, high = 0;
        for (size_t i = 256 * b; i < 256 * (b + 1); ++i) low = std::min(low, w[i]), high = std::max(high, w[i]);
        for (size_t i = 256 * b; i < 256 * (b + 1); ++i) EXPECT_NEAR(fitted.at[8][i], w[i], (high - low) / 256) << i;
    }
}

// No weight of a group lies outside what its grid reaches: an ideal one would leave a 496th of the range.
TEST(NestedFit, NothingIsCutOff) {
    std::mt19937 rng(11);
    const std::vector<float> w = random_floats(64 * 256, 0.02f, rng);
    const Fitted fitted(w);
    ASSERT_TRUE(fitted.ok);
    for (size_t g = 0; g < w.size(); g += 32) {
        const auto group = w.begin() + static_cast<ptrdiff_t>(g);
        const auto [low, high] = std::minmax_element(group, group + 32);
        for (size_t i = g; i < g + 32; ++i) EXPECT_NEAR(fitted.at[8][i], w[i], (*high - *low) / 350) << i;
    }
}

TEST(NestedFit, ZerosStayZeros) {
    const std::vector<float> w(288, 0.0f);
    const Fitted fitted(w);
    ASSERT_TRUE(fitted.ok);
    for (const Level level : kLevels) EXPECT_EQ(fitted.at[static_cast<size_t>(level)], w);
}

TEST(NestedFit, WhatNoHalfHoldsIsRefused) {
    std::vector<float> w(256, 1.0f);
    w[3] = 1e9f;
    EXPECT_FALSE(Fitted(w).ok);
}

}  // namespace
}  // namespace weir::test
