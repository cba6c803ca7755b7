// The pager against the kernel: every byte right, at every budget, by every rung, with several workers.
#include <gtest/gtest.h>
#include <random>
#include <chrono>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>

#include "pager/pager.h"
#include "pager/residency_policy.h"
#include "pager/system.h"
#include "tests/pager/faulty.h"
#include "tests/pager/live.h"

namespace weir::pager {
namespace {

using test::PatternFile;

struct Case {
    const char* name;
    size_t extent_bytes;
    size_t frames_percent;
    size_t workers;
    bool gates;
    InstallRung install;
    ReaderRung reader;
    IoMode io;
};

void fatal(const char* text) {
    std::fprintf(stderr, "unanswerable: %s\n", text);
    std::_Exit(70);
}

class PagerLive : public ::testing::TestWithParam<Case> {};

// Walks `passes` passes as a decode team does: every worker touches its part of each Extent.
struct Walk {
    Pager& pager;
    const std::vector<ImageRange>& ranges;
    uint64_t file_bytes;
    uint64_t image_bytes;
    size_t extent_bytes;
    size_t workers;
    bool plans = true;

    bool run(size_t first_pass, size_t passes) {
        const size_t n = pager.n_extents();
        std::atomic<bool> right{true};
        std::barrier gate(static_cast<ptrdiff_t>(workers));
        std::vector<std::jthread> team;
        for (size_t w = 0; w < workers; ++w) {
            team.emplace_back([&, w] {
                for (size_t pass = first_pass; pass < first_pass + passes; ++pass) {
                    if (w == 0 && plans) {
                        if (pass == first_pass) pager.plan(pass * n, 0, n);
                        if (pass + 1 < first_pass + passes) pager.plan((pass + 1) * n, 0, n);
                    }
                    gate.arrive_and_wait();  // as in an engine: nobody walks before the pass is announced
                    for (size_t e = 0; e < n; ++e) {
                        if (!pager.acquire(w, e, e)) right = false;
                        const uint64_t begin = e * extent_bytes;
                        const uint64_t end = std::min<uint64_t>(begin + extent_bytes, image_bytes);
                        const uint64_t part = (end - begin) / workers / 8 * 8;
                        const uint64_t from = begin + w * part;
                        const uint64_t to = w + 1 == workers ? end : from + part;
                        if (!test::image_is_right(pager.region(), ranges, from, to, file_bytes)) right = false;
                        pager.publish(w, pass * n + e + 1);
                    }
                    gate.arrive_and_wait();
                }
            });
        }
        team.clear();
        return right;
    }
};

TEST_P(PagerLive, EveryByteIsRightOverManyPasses) {
    WEIR_NEEDS_UFFD();
    const Case& c = GetParam();
    const PatternFile pattern(48 * c.extent_bytes + 12345);
    const File file = File::open(pattern.path(), c.io);
    const auto ranges = test::shuffled_ranges(pattern.bytes(), c.extent_bytes / 4 * 3 / page_size() * page_size());
    const uint64_t image = ranges.back().place + ranges.back().bytes;
    Layout layout = cut_layout(ranges, c.extent_bytes);
    const size_t n = layout.n_extents();

    PagerOptions o;
    o.workers = c.workers;
    o.frames = n * c.frames_percent / 100;
    o.gates = c.gates;
    o.install = c.install;
    o.reader = c.reader;
    o.on_unanswerable = fatal;
    const size_t frames = o.frames;
    auto pager = Pager::start(file, std::move(layout), std::move(o));
    Walk walk{*pager, ranges, pattern.bytes(), image, c.extent_bytes, c.workers};
    ASSERT_TRUE(walk.run(0, 2));
    const PagerStats before = pager->stats();
    constexpr size_t kPasses = 4;
    ASSERT_TRUE(walk.run(2, kPasses));
    const PagerStats after = pager->stats();

    EXPECT_LE(after.peak_frames, frames);
    if (c.gates) {
        EXPECT_EQ(after.faults - before.faults, 0u);
    }
    // M - R per pass, and what the ring read ahead at the end of the first walk. Without gates a worker that fell behind
    // may fault on what was evicted in front of it, and a fault may push out what was prefetched: read again.
    const uint64_t streamed = (n - after.pinned_extents) * c.extent_bytes;
    const uint64_t share = c.gates ? 102 : 150;
    EXPECT_LE(after.bytes_read - before.bytes_read, kPasses * streamed * share / 100 + after.ring_frames * c.extent_bytes);
    if (c.frames_percent >= 110) {
        EXPECT_EQ(after.bytes_read, before.bytes_read);
    }
}

const size_t kSmall = std::max<size_t>(64 << 10, 4 * page_size());  // a few pages, whatever a page is
constexpr size_t kHuge = 2 << 20;

INSTANTIATE_TEST_SUITE_P(
    Rungs, PagerLive,
    ::testing::Values(
        Case{"Move2M75", kHuge, 75, 2, true, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Move2M25", kHuge, 25, 2, true, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Move2M110", kHuge, 110, 2, true, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Move2MFaults", kHuge, 50, 2, false, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Move64K50", kSmall, 50, 1, true, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Move64KFaults", kSmall, 30, 2, false, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Move64KFourWorkers", kSmall, 25, 4, true, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Copy64K50", kSmall, 50, 2, true, InstallRung::kCopy, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Copy2M25", kHuge, 25, 2, true, InstallRung::kCopy, ReaderRung::kAuto, IoMode::kAuto},
        Case{"CopyFaults", kSmall, 30, 2, false, InstallRung::kCopy, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Copy110", kSmall, 110, 2, true, InstallRung::kCopy, ReaderRung::kAuto, IoMode::kAuto},
        Case{"Pread2M50", kHuge, 50, 2, true, InstallRung::kAuto, ReaderRung::kPread, IoMode::kAuto},
        Case{"PreadFaults", kSmall, 50, 2, false, InstallRung::kAuto, ReaderRung::kPread, IoMode::kAuto},
        Case{"Buffered", kSmall, 50, 2, true, InstallRung::kAuto, ReaderRung::kAuto, IoMode::kBuffered}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

class PagerPlans : public ::testing::Test {
  protected:
    void open(size_t frames, size_t workers, bool gates, std::unique_ptr<ReadQueue> queue = nullptr) {
        ranges_ = {{0, 0, 64 * kSmall}};
        PagerOptions o;
        o.workers = workers;
        o.frames = frames;
        o.gates = gates;
        o.on_unanswerable = fatal;
        o.read_queue = std::move(queue);
        pager_ = Pager::start(file_, cut_layout(ranges_, kSmall), std::move(o));
    }
    PatternFile pattern_{64 * kSmall};
    File file_ = File::open(pattern_.path(), IoMode::kAuto);
    std::vector<ImageRange> ranges_;
    std::unique_ptr<Pager> pager_;
};

TEST_F(PagerPlans, NoPlanAtAllCostsTimeNotCorrectness) {
    WEIR_NEEDS_UFFD();
    uint64_t faults[2];
    for (const bool gates : {false, true}) {
        open(12, 2, gates);
        Walk walk{*pager_, ranges_, pattern_.bytes(), 64 * kSmall, kSmall, 2, false};
        EXPECT_TRUE(walk.run(0, 3));
        EXPECT_LE(pager_->stats().peak_frames, 12u);
        faults[gates] = pager_->stats().faults;
    }
    EXPECT_GT(faults[false], 0u);
    // Without a plan every Extent counts as wanted now, and the oldest goes when room is needed: a worker that lags may
    // still be reading it, and faults. That is rare.
    EXPECT_LE(20 * faults[true], faults[false]);
}

TEST_F(PagerPlans, RandomTouchesOfManyThreadsAreServed) {
    WEIR_NEEDS_UFFD();
    open(9, 4, false);
    std::atomic<bool> right{true};
    std::vector<std::jthread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) {
        threads.emplace_back([&, seed] {
            uint32_t x = seed * 2654435761u;
            for (int i = 0; i < 400; ++i) {
                x = x * 1664525u + 1013904223u;
                const uint64_t at = (x >> 8) % (64 * kSmall / 8) * 8;
                if (!test::image_is_right(pager_->region(), ranges_, at, at + 8, pattern_.bytes())) right = false;
                pager_->publish(seed - 1, static_cast<uint64_t>(i));
            }
        });
    }
    threads.clear();
    EXPECT_TRUE(right);
    EXPECT_LE(pager_->stats().peak_frames, 9u);
}

TEST_F(PagerPlans, AWrongPlanIsOverruledByDemands) {
    WEIR_NEEDS_UFFD();
    open(9, 1, true);
    // The plan says the second half; the worker walks the first.
    pager_->plan(0, 32, 32);
    for (size_t e = 0; e < 32; ++e) {
        ASSERT_TRUE(pager_->acquire(0, e, e));
        EXPECT_TRUE(test::image_is_right(pager_->region(), ranges_, e * kSmall, (e + 1) * kSmall, pattern_.bytes()));
        pager_->publish(0, e + 1);
    }
}

TEST_F(PagerPlans, WhatIsForgottenIsNotRead) {
    WEIR_NEEDS_UFFD();
    open(9, 1, true);
    pager_->plan(0, 0, 64);
    pager_->plan(64, 0, 64);
    pager_->forget(32);
    for (size_t e = 0; e < 32; ++e) {
        ASSERT_TRUE(pager_->acquire(0, e, e));
        pager_->publish(0, e + 1);
    }
    ::usleep(20'000);  // time to read on, if it would
    EXPECT_EQ(pager_->stats().bytes_read, 32 * kSmall);
    pager_->plan(32, 40, 8);
    for (size_t e = 40; e < 48; ++e) {
        ASSERT_TRUE(pager_->acquire(0, e, e));
        pager_->publish(0, e - 7);
    }
    ::usleep(20'000);
    EXPECT_EQ(pager_->stats().bytes_read, 40 * kSmall);
}

TEST_F(PagerPlans, AGateWithADeadlineIsLeftInTime) {
    WEIR_NEEDS_UFFD();
    using Clock = std::chrono::steady_clock;
    open(9, 1, true, std::make_unique<test::FaultyQueue>(test::ReadFault::kSlow, test::Nth{1, true}));
    for (size_t e = 0; e < 4; ++e) {
        EXPECT_FALSE(pager_->acquire_by(0, e, Clock::now()));
        EXPECT_FALSE(pager_->acquire_by(0, e, Clock::now() + std::chrono::milliseconds(1)));
        ASSERT_TRUE(pager_->acquire_by(0, e, Clock::now() + std::chrono::hours(1)));
        EXPECT_TRUE(test::image_is_right(pager_->region(), ranges_, e * kSmall, (e + 1) * kSmall, pattern_.bytes()));
        EXPECT_TRUE(pager_->acquire_by(0, e, Clock::now() - std::chrono::hours(1)));  // it is here
        pager_->publish(0, e + 1);
    }
    open(9, 1, true, std::make_unique<test::FaultyQueue>(test::ReadFault::kEio, test::Nth{1, true}));
    EXPECT_FALSE(pager_->acquire_by(0, 0, Clock::now() + std::chrono::hours(1)));
    EXPECT_TRUE(pager_->failed());
}

// Of every pass odd Extents may come late, and half-way those that did not come yet are given up: they land when they are behind,
// or in the pass after. What is here is right, and frames are kept to.
TEST_F(PagerPlans, WhatComesLateIsLeftBehind) {
    WEIR_NEEDS_UFFD();
    using Clock = std::chrono::steady_clock;
    constexpr uint64_t kPasses = 60;
    for (const bool slow : {false, true}) {
        open(9, 2, true, slow ? std::make_unique<test::FaultyQueue>(test::ReadFault::kReorder, test::Nth{1, true}) : nullptr);
        std::atomic<bool> right{true};
        std::atomic<uint64_t> late{0}, taken{0};
        std::barrier barrier(2);
        const auto walk = [&](size_t worker) {
            std::mt19937 random(static_cast<uint32_t>(worker));
            for (uint64_t pass = 0; pass < kPasses; ++pass) {
                barrier.arrive_and_wait();
                if (worker == 0) pager_->plan(pass * 64, 0, 64);
                for (size_t e = 0; e < 64; ++e) {
                    pager_->publish(worker, pass * 64 + e);
                    const auto deadline = Clock::now() + std::chrono::microseconds(random() % 200);
                    const bool here = e % 2 == 0 ? pager_->acquire(worker, e, e) : pager_->acquire_by(worker, e, deadline);
                    if (here) {
                        ++taken;
                        if (!test::image_is_right(pager_->region(), ranges_, e * kSmall, e * kSmall + 64, pattern_.bytes())) right = false;
                    } else {
                        ++late;
                        if (e % 2 == 0) right = false;
                    }
                    if (worker != 0 || e != 31) continue;
                    pager_->forget(pass * 64 + 32);
                    for (size_t even = 32; even < 64; even += 2) pager_->plan(pass * 64 + even, even, 1);
                }
                barrier.arrive_and_wait();
                pager_->publish(worker, (pass + 1) * 64);
            }
        };
        std::jthread other([&] { walk(1); });
        walk(0);
        other.join();
        EXPECT_TRUE(right);
        EXPECT_EQ(late + taken, 2 * 64 * kPasses);
        EXPECT_GT(late, 0u);
        // An Extent that was given up and is wanted nevertheless counts as one that nobody planned: rarely it goes while it is read.
        EXPECT_LE(50 * pager_->stats().faults, taken);
        EXPECT_LE(pager_->stats().peak_frames, 9u);
    }
}

TEST_F(PagerPlans, AWorkerWithoutAPlanIsNotHeldUpByOneThatStandsStill) {
    WEIR_NEEDS_UFFD();
    open(9, 2, true);
    for (size_t e = 0; e < 64; ++e) {  // worker 0 stays at 0 all the while
        ASSERT_TRUE(pager_->acquire(1, e, e));
        pager_->publish(1, e + 1);
    }
    EXPECT_LE(pager_->stats().peak_frames, 9u);
}

TEST_F(PagerPlans, SmallReadsComeWhileThePagerStreams) {
    WEIR_NEEDS_UFFD();
    open(9, 1, true);
    pager_->plan(0, 0, 64);
    const size_t page = page_size();
    std::vector<SmallRead> reads;
    auto* const buffer = static_cast<std::byte*>(std::aligned_alloc(page, 100 * page));
    for (size_t i = 0; i < 100; ++i) reads.push_back({i * 3 % (64 * kSmall / page) * page, static_cast<uint32_t>(page), buffer + i * page});
    ASSERT_TRUE(pager_->read_small(reads));
    for (size_t i = 0; i < 100; ++i) {
        uint64_t word;
        std::memcpy(&word, buffer + i * page, 8);
        EXPECT_EQ(word, PatternFile::word(reads[i].file_offset));
    }
    std::free(buffer);
}

TEST_F(PagerPlans, StopsWithReadsInFlightAndNobodyWaiting) {
    WEIR_NEEDS_UFFD();
    for (int i = 0; i < 20; ++i) {
        open(12, 1, true);
        pager_->plan(0, 0, 64);
        pager_.reset();
    }
}

}  // namespace
}  // namespace weir::pager
