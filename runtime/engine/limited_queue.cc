#include "runtime/engine/limited_queue.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

namespace weir {
namespace {

// Completions that one wait takes in.
constexpr size_t kLandings = 64;

uint64_t now_ns() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

class LimitedQueue : public pager::ReadQueue {
  public:
    LimitedQueue(std::unique_ptr<pager::ReadQueue> queue, uint64_t bytes_per_s)
        : queue_(std::move(queue)), ns_per_byte_(1e9 / static_cast<double>(bytes_per_s)), due_ns_(queue_->capacity()) {
        landed_.reserve(queue_->capacity());
    }

    const char* name() const override { return queue_->name(); }
    size_t capacity() const override { return queue_->capacity(); }
    int start(int uffd, int event_fd) noexcept override { return queue_->start(uffd, event_fd); }
    void watch(int uffd) noexcept override { queue_->watch(uffd); }

    // Tags are below capacity(), see Flights.
    int push(const pager::Read& read) noexcept override {
        const int error = queue_->push(read);
        if (error != 0) return error;
        busy_until_ns_ = std::max(busy_until_ns_, now_ns()) + static_cast<uint64_t>(ns_per_byte_ * static_cast<double>(read.bytes));
        due_ns_[read.tag] = busy_until_ns_;
        return 0;
    }

    pager::Wakeup wait(std::span<pager::ReadDone> done, int timeout_us) noexcept override {
        uint64_t first_ns = UINT64_MAX;
        for (const pager::ReadDone& d : landed_) first_ns = std::min(first_ns, due_ns_[d.tag]);
        if (first_ns != UINT64_MAX) {
            const uint64_t now = now_ns();
            const int until_us = first_ns <= now ? 0 : static_cast<int>((first_ns - now) / 1000 + 1);
            timeout_us = timeout_us < 0 ? until_us : std::min(timeout_us, until_us);
        }
        std::array<pager::ReadDone, kLandings> fresh;
        pager::Wakeup w = queue_->wait(fresh, timeout_us);
        landed_.insert(landed_.end(), fresh.begin(), fresh.begin() + static_cast<std::ptrdiff_t>(w.n_done));
        w.n_done = 0;
        const uint64_t now = now_ns();
        std::erase_if(landed_, [&](const pager::ReadDone& d) {
            if (w.n_done == done.size() || due_ns_[d.tag] > now) return false;
            done[w.n_done++] = d;
            return true;
        });
        return w;
    }

  private:
    const std::unique_ptr<pager::ReadQueue> queue_;
    const double ns_per_byte_;
    std::vector<uint64_t> due_ns_;         // by tag
    std::vector<pager::ReadDone> landed_;  // and not due yet
    uint64_t busy_until_ns_ = 0;
};

}  // namespace

std::unique_ptr<pager::ReadQueue> limit_reads(std::unique_ptr<pager::ReadQueue> queue, uint64_t bytes_per_s) {
    return std::make_unique<LimitedQueue>(std::move(queue), bytes_per_s);
}

}  // namespace weir
