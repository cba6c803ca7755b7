// The choice of how many workers decode, on made-up machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "runtime/engine/worker_count.h"

namespace {

using weir::WorkerCount;

// Runs `tokens` tokens on a machine that takes seconds(n) with n workers; returns how many workers each had.
std::vector<size_t> decode(WorkerCount& count, size_t tokens, const std::function<double(size_t)>& seconds, double wait_share) {
    std::vector<size_t> used;
    for (size_t i = 0; i < tokens; ++i) {
        used.push_back(count.workers());
        count.took(seconds(used.back()), wait_share);
    }
    return used;
}

size_t tokens_with(const std::vector<size_t>& used, size_t n) {
    return static_cast<size_t>(std::count(used.begin(), used.end(), n));
}

TEST(WorkerCount, ComputeBoundUsesAll) {
    WorkerCount count(4);
    EXPECT_EQ(tokens_with(decode(count, 1000, [](size_t n) { return 1.0 / static_cast<double>(n); }, 0.05), 4), 1000u);
}

TEST(WorkerCount, OneWorkerHasNoChoice) {
    WorkerCount count(1);
    EXPECT_EQ(tokens_with(decode(count, 100, [](size_t) { return 1.0; }, 0.9), 1), 100u);
}

TEST(WorkerCount, FewerWhereThatIsFaster) {
    WorkerCount count(2);
    const auto used = decode(count, 1000, [](size_t n) { return n == 1 ? 0.9 : 1.0; }, 0.5);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(used[i], 2u);
    for (size_t i = 3; i < 8; ++i) EXPECT_EQ(used[i], 1u) << "decided within eight tokens";
    EXPECT_GE(tokens_with(used, 1), 950u);
}

TEST(WorkerCount, AllWhereFewerAreSlower) {
    WorkerCount count(2);
    const auto used = decode(count, 1000, [](size_t n) { return n == 1 ? 1.1 : 1.0; }, 0.5);
    EXPECT_LE(tokens_with(used, 1), 40u) << "trials get rarer";
}

TEST(WorkerCount, LittleGainIsNoise) {
    WorkerCount count(2);
    const auto used = decode(count, 1000, [](size_t n) { return n == 1 ? 0.99 : 1.0; }, 0.5);
    EXPECT_LE(tokens_with(used, 1), 40u);
}

TEST(WorkerCount, FindsTheBestOfEight) {
    WorkerCount count(8);
    const auto seconds = [](size_t n) { return n == 2 ? 0.8 : n == 4 ? 0.9 : 1.0; };
    const auto used = decode(count, 1000, seconds, 0.5);
    EXPECT_GE(tokens_with(used, 2), 850u);
}

TEST(WorkerCount, AllAgainWhenReadsNoLongerBound) {
    WorkerCount count(2);
    decode(count, 100, [](size_t n) { return n == 1 ? 0.9 : 1.0; }, 0.5);
    const auto used = decode(count, 1000, [](size_t n) { return 1.0 / static_cast<double>(n); }, 0.0);
    EXPECT_GE(tokens_with(used, 2), 900u);
}

}  // namespace
