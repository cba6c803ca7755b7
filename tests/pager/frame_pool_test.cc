// Frames come, go and come back, and hold memory only while they are counted.
#include "pager/frame_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <set>
#include <thread>

namespace weir::pager {
namespace {

constexpr size_t kFrame = 64 << 10;
constexpr size_t kRoom = 40;

class Pool : public ::testing::Test {
  protected:
    // qemu-user takes the advice to populate and does nothing.
    void SetUp() override {
        constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
        const size_t page = page_size();
        void* const probe = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(probe, MAP_FAILED);
        unsigned char in = 0;
        const bool taken = ::madvise(probe, page, kPopulateWrite) == 0;
        EXPECT_EQ(::mincore(probe, page, &in), 0);
        ::munmap(probe, page);
        if (taken && (in & 1) == 0) GTEST_SKIP() << "this kernel says that it populates, and does not";
    }
    void take_until(size_t n) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (mine_.size() < n && std::chrono::steady_clock::now() < limit) {
            uint32_t frame;
            if (pool_.take(&frame)) {
                EXPECT_TRUE(mine_.insert(frame).second) << "handed out twice: " << frame;
                pool_.frame(frame)[100] = std::byte{1};
            } else {
                std::this_thread::yield();
            }
        }
        EXPECT_EQ(mine_.size(), n);
    }
    void give(size_t n) {
        for (; n > 0; --n) {
            const auto it = std::next(mine_.begin(), static_cast<ptrdiff_t>(n * 7 % mine_.size()));
            pool_.give(*it);
            mine_.erase(it);
        }
    }
    void wait_for_backed(size_t n) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (pool_.backed() != n && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
        EXPECT_EQ(pool_.backed(), n);
    }
    // Bytes of the pool that are in memory, by mincore.
    size_t resident() const {
        const size_t page = page_size();
        std::vector<unsigned char> in(kRoom * kFrame / page);
        EXPECT_EQ(::mincore(pool_.frame(0), kRoom * kFrame, in.data()), 0);
        size_t n = 0;
        for (const unsigned char c : in) n += c & 1;
        return n * page;
    }

    std::atomic<int> progress_{0};
    FramePool pool_{kRoom, 10, kFrame, nullptr, [this] { ++progress_; }};
    std::set<uint32_t> mine_;
};

TEST_F(Pool, PopulatesWhatIsWantedAndNoMore) {
    take_until(10);
    wait_for_backed(10);
    uint32_t frame;
    EXPECT_FALSE(pool_.take(&frame));
    EXPECT_EQ(resident(), 10 * kFrame);
    EXPECT_GT(progress_, 0);
}

TEST_F(Pool, GrowsAndShrinksManyTimes) {
    size_t have = 10;
    take_until(have);
    for (const size_t want : {30, 5, 6, 40, 1, 40, 39, 20, 12}) {
        pool_.want(want);
        if (want < have) give(have - want);
        take_until(want);
        wait_for_backed(want);
        EXPECT_EQ(resident(), want * kFrame);
        have = want;
    }
}

TEST_F(Pool, AFrameThatIsGivenWhileAllAreWantedComesAnew) {
    take_until(10);
    give(3);
    take_until(10);
    wait_for_backed(10);
    EXPECT_EQ(resident(), 10 * kFrame);
}

}  // namespace
}  // namespace weir::pager
