#include <liburing.h>
#include <sys/poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "pager/check.h"
#include "pager/read_queue.h"

namespace weir::pager {
namespace {

// Reads that a device can use: 8 to 16 Extents of 2 MiB in a few segments each.
constexpr unsigned kReads = 128;
constexpr unsigned kEntries = 256;  // reads, two polls and the timeout fit without a second submit
// The kernel has no memory for requests: what is in flight gives it back, in about the time that a read takes.
constexpr unsigned kNoRoomUs = 500;
constexpr uint64_t kFaultTag = UINT64_MAX;
constexpr uint64_t kEventTag = UINT64_MAX - 1;

int create_ring(struct io_uring* ring) {
    // One thread submits and completions are run when it waits: no interrupts of a worker by task work. (Linux 6.1)
    const int error = ::io_uring_queue_init(kEntries, ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (error != -EINVAL) return error;
    return ::io_uring_queue_init(kEntries, ring, 0);
}

class UringQueue : public ReadQueue {
  public:
    ~UringQueue() override {
        if (started_) ::io_uring_queue_exit(&ring_);
    }

    const char* name() const override { return "io_uring"; }
    size_t capacity() const override { return kReads; }

    int start(int uffd, int event_fd) noexcept override {
        const int error = create_ring(&ring_);
        if (error != 0) return error;
        started_ = true;
        uffd_ = uffd;
        event_fd_ = event_fd;
        return 0;
    }

    void watch(int uffd) noexcept override { uffd_ = uffd; }

    int push(const Read& read) noexcept override {
        struct io_uring_sqe* const sqe = entry();
        if (sqe == nullptr) return -EBUSY;
        ::io_uring_prep_read(sqe, read.fd, read.into, read.bytes, read.offset);
        ::io_uring_sqe_set_data64(sqe, read.tag);
        return 0;
    }

    Wakeup wait(std::span<ReadDone> done, int timeout_us) noexcept override {
        Wakeup w;
        if (!fault_armed_) fault_armed_ = arm(uffd_, kFaultTag);
        if (!event_armed_) event_armed_ = arm(event_fd_, kEventTag);
        CHECK(fault_armed_ && event_armed_);
        struct io_uring_cqe* cqe = nullptr;
        int result;
        if (timeout_us < 0) {
            result = ::io_uring_submit_and_wait(&ring_, 1);
        } else {
            struct __kernel_timespec limit = {timeout_us / 1'000'000, (timeout_us % 1'000'000) * 1000};
            result = ::io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &limit, nullptr);
        }
        if (result == -EAGAIN || result == -EBUSY || result == -ENOMEM) {
            ::usleep(kNoRoomUs);
        } else if (result < 0 && result != -ETIME && result != -EINTR) {
            w.error = result;
            return w;
        }
        unsigned head;
        unsigned seen = 0;
        io_uring_for_each_cqe(&ring_, head, cqe) {
            if (cqe->user_data == kFaultTag) {
                fault_armed_ = false;
                w.fault = true;
            } else if (cqe->user_data == kEventTag) {
                event_armed_ = false;
                w.kicked = true;
            } else {
                if (w.n_done == done.size()) break;
                done[w.n_done++] = {cqe->user_data, cqe->res};
            }
            ++seen;
        }
        ::io_uring_cq_advance(&ring_, seen);
        if (w.kicked) {
            uint64_t count;
            (void)!::read(event_fd_, &count, sizeof count);  // resets it; EAGAIN where it was reset already
        }
        return w;
    }

  private:
    struct io_uring_sqe* entry() noexcept {
        struct io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
        if (sqe != nullptr) return sqe;
        if (::io_uring_submit(&ring_) < 0) return nullptr;
        return ::io_uring_get_sqe(&ring_);
    }

    bool arm(int fd, uint64_t tag) noexcept {
        struct io_uring_sqe* const sqe = entry();
        if (sqe == nullptr) return false;
        ::io_uring_prep_poll_add(sqe, fd, POLLIN);
        ::io_uring_sqe_set_data64(sqe, tag);
        return true;
    }

    struct io_uring ring_ = {};
    bool started_ = false;
    int uffd_ = -1;
    int event_fd_ = -1;
    bool fault_armed_ = false;
    bool event_armed_ = false;
};

}  // namespace

int probe_io_uring() noexcept {
    struct io_uring ring = {};
    const int error = create_ring(&ring);
    if (error != 0) return -error;
    ::io_uring_queue_exit(&ring);
    return 0;
}

std::unique_ptr<ReadQueue> make_uring_queue() { return std::make_unique<UringQueue>(); }

std::unique_ptr<ReadQueue> make_read_queue(ReaderRung wanted) {
    if (wanted == ReaderRung::kPread) return make_pread_queue();
    const int error = probe_io_uring();
    if (error == 0) return make_uring_queue();
    if (wanted == ReaderRung::kIoUring) {
        throw std::runtime_error(std::string("io_uring cannot be had: ") + std::strerror(error) +
                                 "; allow it (kernel.io_uring_disabled, the container's seccomp profile), or use --reader pread");
    }
    return make_pread_queue();
}

}  // namespace weir::pager
