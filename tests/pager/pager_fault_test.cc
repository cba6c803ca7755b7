// Reads that go wrong: fail the N-th, N = 1, 2, 3 ..., each kind once and for good. Whatever happens, no wrong byte is
// handed out, nothing hangs, and a failure has a text that names the file and the offset.
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "pager/pager.h"
#include "tests/pager/fault_fixture.h"

namespace weir::test {
namespace {

using pager::PagerOptions;

class ReadFaults : public PagerFaults {
  protected:
    bool walk_with(ReadFault fault, uint64_t nth, bool for_good) {
        PagerOptions o = options();
        o.read_queue = std::make_unique<FaultyQueue>(fault, Nth{nth, for_good}, file_.fd());
        return walk(std::move(o));
    }
};

TEST_F(ReadFaults, WhatPassesIsRetriedAndNoByteIsWrong) {
    WEIR_NEEDS_UFFD();
    for (uint64_t nth = 1; nth <= kPasses * kExtents; ++nth) {
        for (const ReadFault fault : {ReadFault::kShort, ReadFault::kEio, ReadFault::kEioDirect, ReadFault::kEagain,
                                      ReadFault::kEnomem, ReadFault::kNoRoom})
            ASSERT_TRUE(walk_with(fault, nth, false)) << static_cast<int>(fault) << " at " << nth << ": " << failure_;
    }
    EXPECT_TRUE(walk_with(ReadFault::kShort, 1, true)) << failure_;
    EXPECT_TRUE(walk_with(ReadFault::kReorder, 1, true)) << failure_;
    EXPECT_TRUE(walk_with(ReadFault::kSlow, 1, true)) << failure_;
}

TEST_F(ReadFaults, AnErrorIsRetriedOnceAndThenReadThroughThePageCache) {
    WEIR_NEEDS_UFFD();
    EXPECT_TRUE(walk_with(ReadFault::kEio, 5, false));
    EXPECT_EQ(stats_.read_retries, 1u);
    EXPECT_EQ(stats_.buffered_rereads, 0u);
    if (!file_.direct()) GTEST_SKIP() << "no direct reads here: " << file_.why_buffered();
    EXPECT_TRUE(walk_with(ReadFault::kEioDirect, 5, true)) << failure_;
    EXPECT_GT(stats_.buffered_rereads, 0u);
    EXPECT_EQ(stats_.read_retries, 2 * stats_.buffered_rereads);
}

TEST_F(ReadFaults, WhatStaysEndsInOneText) {
    WEIR_NEEDS_UFFD();
    for (uint64_t nth = 1; nth <= kExtents; nth += 3) {
        EXPECT_FALSE(walk_with(ReadFault::kEio, nth, true));
        for (const char* part : {"Input/output error", pattern_.path().c_str(), "offset", "3 attempts"})
            EXPECT_NE(failure_.find(part), std::string::npos) << failure_;
        EXPECT_FALSE(walk_with(ReadFault::kEnd, nth, true));
        EXPECT_NE(failure_.find("shrank"), std::string::npos) << failure_;
        EXPECT_NE(failure_.find(pattern_.path()), std::string::npos) << failure_;
    }
}

TEST_F(ReadFaults, WhatTheKernelHasNoRoomForIsPutOffWithoutABusyLoop) {
    WEIR_NEEDS_UFFD();
    for (const ReadFault fault : {ReadFault::kEagain, ReadFault::kEnomem, ReadFault::kNoRoom}) {
        EXPECT_FALSE(walk_with(fault, 7, true));
        EXPECT_NE(failure_.find("no room"), std::string::npos) << failure_;
        EXPECT_NE(failure_.find(pattern_.path()), std::string::npos) << failure_;
        // At most 16 reads, each of them with pauses that double from 0.2 to 50 ms within 150 ms.
        EXPECT_LT(stats_.read_pauses, 16 * 16u);
    }
}

TEST_F(ReadFaults, SlowReadsAreSaidAndWaitedFor) {
    WEIR_NEEDS_UFFD();
    std::atomic<int> notices{0};
    PagerOptions o = options();
    o.patience.slow_ms = 0;  // every look at which nothing has landed
    o.on_notice = [&](const char* text) {
        EXPECT_NE(std::strstr(text, "storage is slow"), nullptr) << text;
        ++notices;
    };
    o.read_queue = std::make_unique<FaultyQueue>(ReadFault::kLate, Nth{5, false});
    EXPECT_TRUE(walk(std::move(o))) << failure_;
    EXPECT_GT(notices, 0);
}

TEST_F(ReadFaults, AFileThatShrinksFailsTheWalk) {
    WEIR_NEEDS_UFFD();
    ASSERT_EQ(::truncate(pattern_.path().c_str(), 10 * kExtent + 100), 0);
    EXPECT_FALSE(walk_with(ReadFault::kReorder, 1, true));
    EXPECT_NE(failure_.find("expected size"), std::string::npos) << failure_;
}

TEST_F(ReadFaults, AFailureWakesEveryWorkerAtItsGate) {
    WEIR_NEEDS_UFFD();
    PagerOptions o = options();
    o.workers = 3;
    o.read_queue = std::make_unique<FaultyQueue>(ReadFault::kEio, Nth{1, true});
    auto pager = start(std::move(o));
    std::vector<std::jthread> team;
    for (size_t w = 0; w < 3; ++w)
        team.emplace_back([&, w] { EXPECT_FALSE(pager->acquire(w, w * 5, w * 5)); });
    team.clear();
    EXPECT_FALSE(pager->read_small({}));
}

// A thread that sleeps in a fault cannot be told: the process must end with the reason, within moments.
TEST_F(ReadFaults, AnUnanswerableFaultEndsTheProcess) {
    WEIR_NEEDS_UFFD();
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
            PagerOptions o = options();
            o.gates = false;
            o.read_queue = std::make_unique<FaultyQueue>(ReadFault::kEio, Nth{1, true});
            auto pager = start(std::move(o));
            volatile const std::byte* touch = pager->region();
            (void)*touch;
        },
        ::testing::ExitedWithCode(70), "unanswerable: .*Input/output error");
}

}  // namespace
}  // namespace weir::test
