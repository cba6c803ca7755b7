// Who is stuck and who only waits.
#include "pager/watchdog.h"

#include <gtest/gtest.h>

namespace weir::pager {
namespace {

using Verdict = Judge::Verdict;

// 300 ms: three looks and one for the start.
constexpr uint32_t kStuckMs = 300;
constexpr uint32_t kSlowMs = 1000;

Look waiting(uint64_t turns) {
    Look look;
    look.turns = turns;
    look.waited_for = true;
    return look;
}

TEST(Judge, WhoTurnsIsWell) {
    Judge judge(kStuckMs, kSlowMs);
    for (uint64_t i = 1; i < 100; ++i) EXPECT_EQ(judge.judge(waiting(i)), Verdict::kWell);
}

TEST(Judge, WhoIsNotWaitedForMayRest) {
    Judge judge(kStuckMs, kSlowMs);
    Look look;
    look.turns = 7;
    for (int i = 0; i < 100; ++i) EXPECT_EQ(judge.judge(look), Verdict::kWell);
}

TEST(Judge, SilenceIsPingedAndThenStuck) {
    Judge judge(kStuckMs, kSlowMs);
    EXPECT_EQ(judge.judge(waiting(5)), Verdict::kWell);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(judge.judge(waiting(5)), Verdict::kPing) << i;
    EXPECT_EQ(judge.judge(waiting(5)), Verdict::kStuck);
}

TEST(Judge, AnAnswerToAPingStartsAnew) {
    Judge judge(kStuckMs, kSlowMs);
    for (uint64_t turns = 1; turns < 50; ++turns) {
        EXPECT_EQ(judge.judge(waiting(turns)), Verdict::kWell);
        EXPECT_EQ(judge.judge(waiting(turns)), Verdict::kPing);
    }
}

TEST(Judge, ASpinningThreadIsStuckAndAStarvedOneIsNot) {
    Judge spins(kStuckMs, kSlowMs), starves(kStuckMs, kSlowMs);
    Verdict last = Verdict::kWell;
    for (uint64_t i = 0; i < 20 && last != Verdict::kStuck; ++i) {
        Look look = waiting(5);
        look.state = 'R';
        EXPECT_NE(starves.judge(look), Verdict::kStuck);
        look.cpu_ticks = i * 5;
        last = spins.judge(look);
    }
    EXPECT_EQ(last, Verdict::kStuck);
}

TEST(Judge, TheKernelsOwnSleepIsWaitedFor) {
    Judge judge(kStuckMs, kSlowMs);
    Look look = waiting(5);
    look.state = 'D';
    for (int i = 0; i < 100; ++i) EXPECT_NE(judge.judge(look), Verdict::kStuck);
}

TEST(Judge, AThreadThatIsGoneIsSaidAtOnce) {
    Judge judge(kStuckMs, kSlowMs);
    Look look = waiting(5);
    EXPECT_EQ(judge.judge(look), Verdict::kWell);
    look.state = 0;
    EXPECT_EQ(judge.judge(look), Verdict::kGone);
}

TEST(Judge, SlowReadsAreSaidNowAndThenAndNeverStuck) {
    Judge judge(kStuckMs, kSlowMs);
    int said = 0;
    for (uint64_t i = 1; i <= 100; ++i) {  // 10 s, answering all the while
        Look look = waiting(i);
        look.reads_under_way = 3;
        const Verdict verdict = judge.judge(look);
        EXPECT_TRUE(verdict == Verdict::kWell || verdict == Verdict::kSlow);
        said += verdict == Verdict::kSlow;
    }
    EXPECT_EQ(said, 2);
}

}  // namespace
}  // namespace weir::pager
