// The scheduler's properties on signals drawn at random, and what prompts leave behind.
#include "schedtool/scheduler.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "schedtool/plan_memory.h"

namespace weir::sched {
namespace {

Signal drawn(std::mt19937& random) {
    return {static_cast<double>(random() % 500) / 100, static_cast<double>(random() % 100) / 100};
}

TEST(Scheduler, MovesOneRungAtATimeWithinItsLadder) {
    for (uint32_t seed = 0; seed < 50; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        const size_t rungs = 1 + random() % 9, first = random() % rungs;
        Scheduler scheduler(rungs, first), again(rungs, first);
        uint64_t switches = 0;
        for (size_t t = 0, before = first; t < 300; ++t) {
            const Signal signal = drawn(random);
            const size_t rung = scheduler.next(signal);
            ASSERT_EQ(again.next(signal), rung);
            ASSERT_LT(rung, rungs);
            ASSERT_LE(rung > before ? rung - before : before - rung, 1u);
            switches += rung != before;
            before = rung;
        }
        EXPECT_EQ(scheduler.switches(), switches);
    }
}

TEST(Scheduler, MoreUnsureSignalsNeverGiveACoarserPlan) {
    for (uint32_t seed = 0; seed < 50; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        Scheduler sure(6, 3), unsure(6, 3);
        for (size_t t = 0; t < 300; ++t) {
            Signal signal = drawn(random);
            const size_t rung = sure.next(signal);
            signal.entropy += static_cast<double>(random() % 3) / 2;
            signal.margin *= static_cast<double>(random() % 2);
            ASSERT_LE(unsure.next(signal), rung);
        }
    }
}

TEST(Scheduler, WhatWaversBetweenTheThresholdsMovesNothing) {
    Scheduler scheduler(5, 2);
    for (size_t t = 0; t < 100; ++t) EXPECT_EQ(scheduler.next({t % 2 == 0 ? 1.1 : 2.4, 0.5}), 2u);
    // Sure tokens count in a row only, and one unsure one is enough.
    for (size_t t = 0; t < 100; ++t) EXPECT_EQ(scheduler.next({t % 3 == 2 ? 1.5 : 0.2, 0.9}), 2u);
    for (size_t t = 0; t < 3; ++t) scheduler.next({0.2, 0.9});
    EXPECT_EQ(scheduler.rung(), 3u);
    EXPECT_EQ(scheduler.next({0.2, 0.01}), 2u);
    EXPECT_EQ(scheduler.switches(), 2u);
}

TEST(Ladder, IsAThinnedList) {
    for (uint32_t seed = 0; seed < 50; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        std::vector<RatedPlan> list{{{}, 100000, 0}};
        for (size_t i = 0, n = random() % 60; i < n; ++i)
            list.push_back({{},
                            list.back().bytes - 1 - random() % 1500,
                            list.back().kl + 1e-4 * static_cast<double>(random() % 20)});
        const size_t rungs = 1 + random() % 9;
        const double most = 0.02;
        const std::vector<RatedPlan> ladder = make_ladder(list, rungs, most);
        ASSERT_GE(ladder.size(), 1u);
        EXPECT_LE(ladder.size(), std::max<size_t>(rungs, 1));
        EXPECT_EQ(ladder.front().bytes, list.front().bytes);
        for (size_t i = 1; i < ladder.size(); ++i) {
            EXPECT_LT(ladder[i].bytes, ladder[i - 1].bytes);
            EXPECT_LE(ladder[i].kl, most);
        }
        if (rungs > 1)
            for (const RatedPlan& plan : list)
                if (plan.kl <= most) {
                    EXPECT_GE(plan.bytes, ladder.back().bytes);
                }
    }
}

std::vector<int32_t> prompt(std::mt19937& random, size_t n) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 30000);
    return ids;
}

// A kind: a long text that all have in common, and a few words of their own.
std::vector<int32_t> of_kind(uint32_t kind, uint32_t one) {
    std::mt19937 common(kind), own(1000 + one);
    std::vector<int32_t> ids = prompt(common, 200);
    for (const int32_t id : prompt(own, 6)) ids.push_back(id);
    return ids;
}

TEST(PlanMemory, PromptsOfAKindBeginWhereTheLastEnded) {
    PlanMemory memory;
    for (uint32_t kind = 0; kind < 100; ++kind) {
        ASSERT_EQ(memory.find(prompt_signature(of_kind(kind, 1))), std::nullopt) << kind;
        memory.remember(prompt_signature(of_kind(kind, 1)), kind % 7);
        EXPECT_EQ(memory.find(prompt_signature(of_kind(kind, 2))), kind % 7) << kind;
    }
    memory.remember(prompt_signature(of_kind(5, 3)), 6);
    EXPECT_EQ(memory.find(prompt_signature(of_kind(5, 4))), 6u);
    EXPECT_EQ(memory.size(), 100u);
}

TEST(PlanMemory, ForgetsWhatWasNotMetForLongest) {
    PlanMemory memory(50);
    for (uint32_t kind = 0; kind < 50; ++kind) memory.remember(prompt_signature(of_kind(kind, 1)), 1);
    memory.remember(prompt_signature(of_kind(0, 2)), 2);
    memory.remember(prompt_signature(of_kind(77, 1)), 3);
    EXPECT_EQ(memory.size(), 50u);
    EXPECT_EQ(memory.find(prompt_signature(of_kind(0, 3))), 2u);
    EXPECT_EQ(memory.find(prompt_signature(of_kind(1, 3))), std::nullopt);
}

TEST(PlanMemory, IsReadBackAsWritten) {
    PlanMemory memory;
    for (uint32_t kind = 0; kind < 60; ++kind) memory.remember(prompt_signature(of_kind(kind, 1)), kind);
    EXPECT_EQ(PlanMemory::parse(memory.text(), "x").text(), memory.text());
    EXPECT_EQ(PlanMemory::parse(memory.text(), "x", 50).size(), 50u);
    for (const char* const text :
         {"", "plans", "weir plan memory 1\nx 1\n", "weir plan memory 1\n0123456789abcdef 1 2\n",
          "weir plan memory 1\n0123456789abcdef 9999\n"})
        EXPECT_THROW(PlanMemory::parse(text, "x"), std::runtime_error) << text;
}

}  // namespace
}  // namespace weir::sched
