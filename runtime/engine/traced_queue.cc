#include "runtime/engine/traced_queue.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/error.h"

namespace weir {
namespace {

// Reads that are remembered: 1 MiB of memory, and some 100 GB of the usual reads. What comes later is counted.
constexpr size_t kMostReads = 64u << 10;

class TracedQueue : public pager::ReadQueue {
  public:
    TracedQueue(std::unique_ptr<pager::ReadQueue> queue, const std::string& path)
        : queue_(std::move(queue)), file_(std::fopen(path.c_str(), "we")) {
        if (file_ == nullptr) throw Error("--trace-io " + path + ": cannot create: " + std::strerror(errno));
        reads_.resize(kMostReads);
    }
    ~TracedQueue() override {
        for (size_t i = 0; i < n_; ++i)
            std::fprintf(file_, "%llu %u\n", static_cast<unsigned long long>(reads_[i].offset), reads_[i].bytes);
        if (lost_ > 0) std::fprintf(file_, "# %llu more\n", static_cast<unsigned long long>(lost_));
        std::fclose(file_);
    }
    TracedQueue(const TracedQueue&) = delete;
    TracedQueue& operator=(const TracedQueue&) = delete;

    const char* name() const override { return queue_->name(); }
    size_t capacity() const override { return queue_->capacity(); }
    int start(int uffd, int event_fd) noexcept override { return queue_->start(uffd, event_fd); }
    void watch(int uffd) noexcept override { queue_->watch(uffd); }
    int push(const pager::Read& read) noexcept override {
        if (n_ < reads_.size()) reads_[n_++] = {read.offset, read.bytes};
        else ++lost_;
        return queue_->push(read);
    }
    pager::Wakeup wait(std::span<pager::ReadDone> done, int timeout_us) noexcept override { return queue_->wait(done, timeout_us); }

  private:
    struct Entry {
        uint64_t offset;
        uint32_t bytes;
    };
    std::unique_ptr<pager::ReadQueue> queue_;
    std::FILE* file_;
    std::vector<Entry> reads_;
    size_t n_ = 0;
    uint64_t lost_ = 0;
};

}  // namespace

std::unique_ptr<pager::ReadQueue> trace_reads(std::unique_ptr<pager::ReadQueue> queue, const std::string& path) {
    return std::make_unique<TracedQueue>(std::move(queue), path);
}

}  // namespace weir
