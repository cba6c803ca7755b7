#include "runtime/engine/team.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <vector>

namespace weir {
namespace {

TEST(Team, EveryWorkerRunsOnce) {
    for (const size_t n : {1, 2, 3, 8}) {
        Team team(n);
        std::vector<int> calls(n);
        for (int round = 0; round < 100; ++round) EXPECT_TRUE(team.run([&](size_t worker) { ++calls[worker]; }));
        EXPECT_EQ(calls, std::vector<int>(n, 100));
    }
}

TEST(Team, RunsOnAsManyAsAskedFor) {
    Team team(4);
    std::array<std::atomic<int>, 4> calls{};
    std::array<int, 4> expected{};
    for (int round = 0; round < 3000; ++round) {
        const size_t n = 1 + static_cast<size_t>(round * 7 % 4);
        team.resize(n);
        EXPECT_EQ(team.size(), n);
        EXPECT_TRUE(team.run([&](size_t worker) {
            calls[worker].fetch_add(1, std::memory_order_relaxed);
            team.barrier();
        }));
        for (size_t worker = 0; worker < n; ++worker) ++expected[worker];
    }
    for (size_t worker = 0; worker < 4; ++worker) EXPECT_EQ(calls[worker].load(), expected[worker]);
    EXPECT_EQ(team.capacity(), 4u);
}

TEST(Team, NobodyPassesABarrierEarly) {
    Team team(4);
    constexpr int kRounds = 2000;
    std::atomic<int> arrived{0};
    std::atomic<int> resets{0};
    std::atomic<bool> wrong{false};
    team.run([&](size_t) {
        for (int round = 0; round < kRounds; ++round) {
            arrived.fetch_add(1);
            if (!team.barrier([&] {
                    if (arrived.load() != 4) wrong = true;
                    arrived.store(0);
                    resets.fetch_add(1);
                })) {
                wrong = true;
            }
            if (resets.load() < round + 1) wrong = true;
            if (!team.barrier()) wrong = true;
        }
    });
    EXPECT_FALSE(wrong.load());
    EXPECT_EQ(resets.load(), kRounds);
}

TEST(Team, AnExceptionFreesThoseWhoWait) {
    for (const size_t n : {1, 2, 5}) {
        Team team(n);
        for (int round = 0; round < 50; ++round) {
            const size_t culprit = static_cast<size_t>(round) % n;
            // Some may hear of it at the first barrier already, if they wake up late.
            std::atomic<size_t> left_early{0};
            EXPECT_THROW(team.run([&](size_t worker) {
                const bool passed = team.barrier();
                if (worker == culprit) throw std::runtime_error("no");
                if (!passed || !team.barrier()) left_early.fetch_add(1);
            }),
                         std::runtime_error);
            EXPECT_EQ(left_early.load(), n - 1);
            // And the team works on.
            EXPECT_TRUE(team.run([&](size_t) { team.barrier(); }));
        }
    }
}

TEST(Team, FailureOpensTheBarrierAndIsReported) {
    Team team(3);
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> refused{0};
        EXPECT_FALSE(team.run([&](size_t worker) {
            if (worker == 1) return team.fail();
            while (team.barrier()) {
            }
            refused.fetch_add(1);
        }));
        EXPECT_EQ(refused.load(), 2);
    }
}

TEST(Team, CountsCores) {
    EXPECT_GE(default_thread_count(), 1u);
    EXPECT_LE(default_thread_count(), std::thread::hardware_concurrency());
}

}  // namespace
}  // namespace weir
