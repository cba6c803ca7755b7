#include "runtime/engine/limited_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace weir {
namespace {

// Has everything at once.
class FastQueue : public pager::ReadQueue {
  public:
    const char* name() const override { return "fast"; }
    size_t capacity() const override { return 8; }
    int start(int, int) noexcept override { return 0; }
    void watch(int) noexcept override {}
    int push(const pager::Read& read) noexcept override {
        if (read.bytes == 0) return -5;
        done_.push_back({read.tag, static_cast<int32_t>(read.bytes)});
        return 0;
    }
    pager::Wakeup wait(std::span<pager::ReadDone> done, int timeout_us) noexcept override {
        waited_us += timeout_us;
        pager::Wakeup w;
        w.kicked = true;
        for (; w.n_done < done_.size(); ++w.n_done) done[w.n_done] = done_[w.n_done];
        done_.clear();
        return w;
    }

    int waited_us = 0;

  private:
    std::vector<pager::ReadDone> done_;
};

TEST(LimitedQueue, ReadsLandOneAfterTheOtherAtItsSpeed) {
    const auto queue = limit_reads(std::make_unique<FastQueue>(), 100'000'000);  // 10 ms for a million bytes
    EXPECT_STREQ(queue->name(), "fast");
    EXPECT_EQ(queue->capacity(), 8u);
    EXPECT_EQ(queue->push({7, 0, 0, nullptr, 0}), -5);
    const auto begin = std::chrono::steady_clock::now();
    for (const uint64_t tag : {3, 1, 2}) EXPECT_EQ(queue->push({tag, 0, 0, nullptr, 1'000'000}), 0);
    std::vector<uint64_t> tags;
    std::vector<double> at_s;
    while (tags.size() < 3) {
        pager::ReadDone done[8];
        const pager::Wakeup w = queue->wait(done, -1);
        EXPECT_TRUE(w.kicked);
        for (size_t i = 0; i < w.n_done; ++i) {
            EXPECT_EQ(done[i].result, 1'000'000);
            tags.push_back(done[i].tag);
            at_s.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
    }
    EXPECT_EQ(tags, (std::vector<uint64_t>{3, 1, 2}));
    for (size_t i = 0; i < 3; ++i) EXPECT_GE(at_s[i], 0.0099 * static_cast<double>(i + 1));
    // Nothing is left, and no more is given than there is room for.
    for (const uint64_t tag : {0, 1}) EXPECT_EQ(queue->push({tag, 0, 0, nullptr, 1}), 0);
    size_t n = 0;
    while (n < 2) {
        pager::ReadDone one[1];
        const size_t got = queue->wait(one, 1000).n_done;
        ASSERT_LE(got, 1u);
        n += got;
    }
}

// Who has nothing to wait for sleeps as long as they want to; else no longer than until the next read is due.
TEST(LimitedQueue, WakesForWhatIsDue) {
    auto fast = std::make_unique<FastQueue>();
    FastQueue* const inner = fast.get();
    const auto queue = limit_reads(std::move(fast), 1'000'000);
    pager::ReadDone done[8];
    (void)queue->wait(done, 77);
    EXPECT_EQ(inner->waited_us, 77);
    EXPECT_EQ(queue->push({0, 0, 0, nullptr, 1'000'000}), 0);  // due in a second
    EXPECT_EQ(queue->wait(done, 0).n_done, 0u);
    inner->waited_us = 0;
    EXPECT_EQ(queue->wait(done, -1).n_done, 0u);
    EXPECT_GT(inner->waited_us, 0);
    EXPECT_LE(inner->waited_us, 1'000'001);
}

}  // namespace
}  // namespace weir
