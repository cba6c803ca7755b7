// Reads that go wrong: fail the N-th, N = 1, 2, 3 ..., each kind once and for good. Whatever happens, no wrong byte is
// handed out, nothing hangs, and a failure has a text that names the file and the offset.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "pager/pager.h"
#include "pager/system.h"
#include "tests/pager/live.h"

namespace weir::pager {
namespace {

using test::PatternFile;

enum class Kind { kShort, kEio, kEagain, kEnd, kReorder };

// The real queue, with results changed on their way back.
class FaultyQueue : public ReadQueue {
  public:
    FaultyQueue(Kind kind, uint64_t nth, bool for_good)
        : inner_(make_read_queue(ReaderRung::kAuto)), kind_(kind), nth_(nth), for_good_(for_good) {}

    const char* name() const override { return "faulty"; }
    size_t capacity() const override { return inner_->capacity(); }
    int start(int uffd, int event_fd) noexcept override { return inner_->start(uffd, event_fd); }
    int push(const Read& read) noexcept override { return inner_->push(read); }

    Wakeup wait(std::span<ReadDone> done, int timeout_us) noexcept override {
        Wakeup w = inner_->wait(done, timeout_us);
        for (size_t i = 0; i < w.n_done; ++i) {
            ++count_;
            if (count_ < nth_ || (count_ > nth_ && !for_good_) || done[i].result <= 0) continue;
            switch (kind_) {
                case Kind::kShort: done[i].result = half(done[i].result); break;
                case Kind::kEio: done[i].result = -EIO; break;
                case Kind::kEagain: done[i].result = for_good_ && count_ % 2 == 0 ? done[i].result : -EAGAIN; break;
                case Kind::kEnd: done[i].result = 0; break;
                case Kind::kReorder: break;
            }
        }
        if (kind_ == Kind::kReorder) std::reverse(done.begin(), done.begin() + static_cast<ptrdiff_t>(w.n_done));
        return w;
    }

  private:
    // Half of it, whole pages, and never nothing: that would be the end of the file.
    static int32_t half(int32_t bytes) {
        const size_t pages = static_cast<size_t>(bytes) / page_size();
        return pages < 2 ? bytes : static_cast<int32_t>(pages / 2 * page_size());
    }

    std::unique_ptr<ReadQueue> inner_;
    Kind kind_;
    uint64_t nth_;
    bool for_good_;
    uint64_t count_ = 0;
};

constexpr size_t kExtent = 64 << 10;
constexpr size_t kExtents = 24;

[[noreturn]] void end(const char* text) {
    std::fprintf(stderr, "unanswerable: %s\n", text);
    std::_Exit(70);
}

class PagerFaults : public ::testing::Test {
  protected:
    // Walks three passes with a gate; true where everything came, false where the pager gave up.
    bool walk(Kind kind, uint64_t nth, bool for_good) {
        const std::vector<ImageRange> ranges = {{0, 0, kExtents * kExtent}};
        PagerOptions o;
        o.frames = 10;
        o.on_unanswerable = end;
        o.read_queue = std::make_unique<FaultyQueue>(kind, nth, for_good);
        auto pager = Pager::start(file_, cut_layout(ranges, kExtent), std::move(o));
        for (size_t pass = 0; pass < 3; ++pass) {
            pager->plan(pass * kExtents, 0, kExtents);
            for (size_t e = 0; e < kExtents; ++e) {
                if (!pager->acquire(0, e, e)) {
                    failure_ = pager->failure();
                    return false;
                }
                EXPECT_TRUE(test::image_is_right(pager->region(), ranges, e * kExtent, (e + 1) * kExtent, pattern_.bytes()))
                    << "pass " << pass << " extent " << e;
                pager->publish(0, pass * kExtents + e + 1);
            }
        }
        return true;
    }

    PatternFile pattern_{kExtents * kExtent};
    File file_ = File::open(pattern_.path(), IoMode::kAuto);
    std::string failure_;
};

TEST_F(PagerFaults, WhatPassesIsRetriedAndNoByteIsWrong) {
    WEIR_NEEDS_UFFD();
    for (uint64_t nth = 1; nth <= 2 * kExtents; ++nth) {
        EXPECT_TRUE(walk(Kind::kShort, nth, false)) << failure_;
        EXPECT_TRUE(walk(Kind::kEio, nth, false)) << failure_;
        EXPECT_TRUE(walk(Kind::kEagain, nth, false)) << failure_;
    }
    EXPECT_TRUE(walk(Kind::kShort, 1, true)) << failure_;
    EXPECT_TRUE(walk(Kind::kEagain, 1, true)) << failure_;
    EXPECT_TRUE(walk(Kind::kReorder, 1, true)) << failure_;
}

TEST_F(PagerFaults, WhatStaysEndsInOneText) {
    WEIR_NEEDS_UFFD();
    for (uint64_t nth = 1; nth <= kExtents; nth += 3) {
        EXPECT_FALSE(walk(Kind::kEio, nth, true));
        EXPECT_NE(failure_.find("Input/output error"), std::string::npos) << failure_;
        EXPECT_NE(failure_.find(pattern_.path()), std::string::npos) << failure_;
        EXPECT_NE(failure_.find("offset"), std::string::npos) << failure_;
        EXPECT_FALSE(walk(Kind::kEnd, nth, true));
        EXPECT_NE(failure_.find("shrank"), std::string::npos) << failure_;
    }
}

TEST_F(PagerFaults, AFileThatShrinksFailsTheWalk) {
    WEIR_NEEDS_UFFD();
    ASSERT_EQ(::truncate(pattern_.path().c_str(), 10 * kExtent + 100), 0);
    EXPECT_FALSE(walk(Kind::kReorder, 1, true));
    EXPECT_NE(failure_.find("expected size"), std::string::npos) << failure_;
}

TEST_F(PagerFaults, AFailureWakesEveryWorkerAtItsGate) {
    WEIR_NEEDS_UFFD();
    const std::vector<ImageRange> ranges = {{0, 0, kExtents * kExtent}};
    PagerOptions o;
    o.frames = 10;
    o.workers = 3;
    o.on_unanswerable = end;
    o.read_queue = std::make_unique<FaultyQueue>(Kind::kEio, 1, true);
    auto pager = Pager::start(file_, cut_layout(ranges, kExtent), std::move(o));
    std::vector<std::jthread> team;
    for (size_t w = 0; w < 3; ++w)
        team.emplace_back([&, w] { EXPECT_FALSE(pager->acquire(w, w * 5, w * 5)); });
    team.clear();
    EXPECT_FALSE(pager->read_small({}));
}

// A thread that sleeps in a fault cannot be told: the process must end with the reason, within moments.
TEST_F(PagerFaults, AnUnanswerableFaultEndsTheProcess) {
    WEIR_NEEDS_UFFD();
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
            PagerOptions o;
            o.frames = 10;
            o.gates = false;
            o.on_unanswerable = end;
            o.read_queue = std::make_unique<FaultyQueue>(Kind::kEio, 1, true);
            auto pager = Pager::start(file_, cut_layout(std::vector<ImageRange>{{0, 0, kExtents * kExtent}}, kExtent),
                                      std::move(o));
            volatile const std::byte* touch = pager->region();
            (void)*touch;
        },
        ::testing::ExitedWithCode(70), "unanswerable: .*Input/output error");
}

}  // namespace
}  // namespace weir::pager
