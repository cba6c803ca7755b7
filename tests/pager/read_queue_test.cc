// Both rungs of the read queue: whatever is pushed comes back, once.
#include "pager/read_queue.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace weir::pager {
namespace {

class ReadQueueTest : public testing::TestWithParam<ReaderRung> {
  protected:
    void SetUp() override {
        if (GetParam() == ReaderRung::kIoUring && probe_io_uring() != 0) GTEST_SKIP() << "no io_uring here";
        ASSERT_GE(file_, 0);
        ASSERT_EQ(::unlink(path_.c_str()), 0);
        const std::string text = "sixteen bytes, or";
        ASSERT_EQ(::write(file_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
        queue_ = make_read_queue(GetParam());
        ASSERT_EQ(queue_->start(uffd_, event_), 0);
    }
    void TearDown() override {
        queue_.reset();
        for (const int fd : {file_, uffd_, event_}) ::close(fd);
    }

    std::string path_ = testing::TempDir() + "weir-read-XXXXXX";
    int file_ = ::mkstemp(path_.data());
    int uffd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // never readable
    int event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::unique_ptr<ReadQueue> queue_;
};

// Short bursts that run dry: a read that the pool's threads overlooked has no later one to bring it along.
TEST_P(ReadQueueTest, EveryReadOfABurstComesBackOnce) {
    constexpr size_t kBytes = 16;
    constexpr int kBursts = 1500;
    constexpr auto kPatience = std::chrono::seconds(10);
    const size_t capacity = queue_->capacity();
    std::vector<std::byte> buffers(capacity * kBytes);
    ReadDone done[64];
    for (int burst = 0; burst < kBursts; ++burst) {
        const size_t depth = 2 + static_cast<size_t>(burst) % 6, total = 4 * depth;
        std::vector<int> back(total, 0);
        size_t pushed = 0, in_flight = 0;
        while (pushed < total || in_flight > 0) {
            for (; in_flight < depth && pushed < total; ++in_flight, ++pushed) {
                std::byte* const into = buffers.data() + pushed % capacity * kBytes;
                ASSERT_EQ(queue_->push({pushed, file_, 0, into, kBytes}), 0);
            }
            Wakeup w;  // which may be for nothing
            for (const auto begin = std::chrono::steady_clock::now(); w.n_done == 0 && w.error == 0;) {
                ASSERT_LT(std::chrono::steady_clock::now() - begin, kPatience)
                    << "burst " << burst << ": " << in_flight << " reads never came back";
                w = queue_->wait(done, 100'000);
            }
            ASSERT_EQ(w.error, 0);
            for (size_t i = 0; i < w.n_done; ++i) {
                ASSERT_EQ(done[i].result, static_cast<int32_t>(kBytes));
                ASSERT_EQ(++back[done[i].tag], 1);
            }
            in_flight -= w.n_done;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Rungs, ReadQueueTest, testing::Values(ReaderRung::kIoUring, ReaderRung::kPread),
                         [](const auto& info) { return info.param == ReaderRung::kPread ? "pread" : "io_uring"; });

}  // namespace
}  // namespace weir::pager
