// Reads by a few threads with pread, where io_uring is not to be had. Slots with an atomic state each join them to the
// pager thread, which neither locks nor allocates: it queues into a free slot, posts a semaphore, and finds finished
// slots when the pool's event says so.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <semaphore>
#include <thread>
#include <vector>

#include "pager/check.h"
#include "pager/read_queue.h"

namespace weir::pager {
namespace {

constexpr size_t kSlots = 64;
// Four blocking readers of 2 MiB each reach what one device gives to this rung; more only cost switches.
constexpr size_t kThreads = 4;

class PreadQueue : public ReadQueue {
  public:
    ~PreadQueue() override {
        stop_.store(true, std::memory_order_release);
        work_.release(kThreads);
        for (std::jthread& t : threads_) t.join();
        if (done_fd_ >= 0) ::close(done_fd_);
    }

    const char* name() const override { return "pread"; }
    size_t capacity() const override { return kSlots; }

    int start(int uffd, int event_fd) noexcept override {
        uffd_ = uffd;
        event_fd_ = event_fd;
        done_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (done_fd_ < 0) return -errno;
        for (size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { serve(); });
        return 0;
    }

    void watch(int uffd) noexcept override { uffd_ = uffd; }

    int push(const Read& read) noexcept override {
        for (Slot& slot : slots_) {
            if (slot.state.load(std::memory_order_acquire) != kFree) continue;
            slot.read = read;
            slot.sequence = ++sequence_;
            slot.state.store(kQueued, std::memory_order_release);  // acquire in serve()
            work_.release();
            return 0;
        }
        return -EBUSY;
    }

    Wakeup wait(std::span<ReadDone> done, int timeout_us) noexcept override {
        Wakeup w;
        struct pollfd fds[] = {{uffd_, POLLIN, 0}, {event_fd_, POLLIN, 0}, {done_fd_, POLLIN, 0}};
        const struct timespec limit = {timeout_us / 1'000'000, (timeout_us % 1'000'000) * 1000L};
        const int n = ::ppoll(fds, 3, timeout_us < 0 ? nullptr : &limit, nullptr);
        if (n < 0 && errno != EINTR) {
            w.error = -errno;
            return w;
        }
        if (n <= 0) return w;
        w.fault = fds[0].revents != 0;  // POLLNVAL where it was closed
        uint64_t count;
        if ((fds[1].revents & POLLIN) != 0) {
            w.kicked = true;
            (void)!::read(event_fd_, &count, sizeof count);
        }
        if ((fds[2].revents & POLLIN) != 0) {
            (void)!::read(done_fd_, &count, sizeof count);  // before the scan, so that a later one signals again
            bool more = false;
            for (Slot& slot : slots_) {
                if (slot.state.load(std::memory_order_acquire) != kDone) continue;
                if (w.n_done == done.size()) {
                    more = true;
                    break;
                }
                done[w.n_done++] = {slot.read.tag, slot.result};
                slot.state.store(kFree, std::memory_order_release);
            }
            if (more) signal_done();
        }
        return w;
    }

  private:
    enum State : uint32_t { kFree, kQueued, kRunning, kDone };
    struct Slot {
        std::atomic<uint32_t> state{kFree};
        std::atomic<uint64_t> sequence{0};
        Read read{};
        int32_t result = 0;
    };

    void signal_done() noexcept {
        const uint64_t one = 1;
        (void)!::write(done_fd_, &one, sizeof one);  // EAGAIN only where it is signalled already
    }

    // The oldest queued slot, claimed; nullptr where the scan met none.
    Slot* claim() noexcept {
        for (;;) {
            Slot* oldest = nullptr;
            for (Slot& slot : slots_) {
                if (slot.state.load(std::memory_order_acquire) != kQueued) continue;
                if (oldest == nullptr || slot.sequence < oldest->sequence) oldest = &slot;
            }
            if (oldest == nullptr) return nullptr;
            uint32_t expected = kQueued;
            if (oldest->state.compare_exchange_strong(expected, kRunning, std::memory_order_acq_rel)) return oldest;
        }
    }

    void serve() noexcept {
        ::pthread_setname_np(::pthread_self(), "weir-reader");
        for (;;) {
            work_.acquire();
            if (stop_.load(std::memory_order_acquire)) return;
            // Whoever got past the semaphore has a queued slot to serve, but one scan can miss it: it was queued behind the
            // scan, while another thread took the one ahead. Giving up would lose the read for ever.
            Slot* slot;
            while ((slot = claim()) == nullptr)
                if (stop_.load(std::memory_order_acquire)) return;
            const Read& r = slot->read;
            ssize_t n;
            do {
                n = ::pread(r.fd, r.into, r.bytes, static_cast<off_t>(r.offset));
            } while (n < 0 && errno == EINTR);
            slot->result = n < 0 ? -errno : static_cast<int32_t>(n);
            slot->state.store(kDone, std::memory_order_release);  // acquire in wait()
            signal_done();
        }
    }

    std::array<Slot, kSlots> slots_;
    std::counting_semaphore<> work_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::jthread> threads_;
    uint64_t sequence_ = 0;
    int uffd_ = -1;
    int event_fd_ = -1;
    int done_fd_ = -1;
};

}  // namespace

std::unique_ptr<ReadQueue> make_pread_queue() { return std::make_unique<PreadQueue>(); }

}  // namespace weir::pager
