// Asynchronous reads, and the pager thread's one wait: completions, the uffd, the wake-up event, a timeout. A seam that
// tests replace. The pager thread alone calls it, start() included (io_uring's single issuer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weir::pager {

struct Read {
    uint64_t tag;  // comes back with the completion; below 2^63
    int fd;
    uint64_t offset;
    std::byte* into;
    uint32_t bytes;
};

struct ReadDone {
    uint64_t tag;
    int32_t result;  // bytes, or -errno
};

struct Wakeup {
    size_t n_done = 0;    // completions written
    bool fault = false;   // the uffd is readable, or no longer what it was
    bool kicked = false;  // the event was signalled; it has been reset
    int error = 0;        // the queue itself is broken: -errno
};

class ReadQueue {
  public:
    virtual ~ReadQueue() = default;
    virtual const char* name() const = 0;
    // Reads that may be in flight at once.
    virtual size_t capacity() const = 0;

    // Prepares on the pager thread. 0 or -errno.
    virtual int start(int uffd, int event_fd) noexcept = 0;
    // The uffd has another number from now on.
    virtual void watch(int uffd) noexcept = 0;
    // Adds a read; the caller never has more than capacity() in flight. 0 or -errno.
    virtual int push(const Read& read) noexcept = 0;
    // Submits what was pushed and blocks until something has happened or timeout_us has passed (below 0: for ever).
    virtual Wakeup wait(std::span<ReadDone> done, int timeout_us) noexcept = 0;
};

enum class ReaderRung : uint8_t { kAuto, kIoUring, kPread };

// io_uring where the kernel gives a ring, else a pool of pread threads. Throws std::runtime_error where the wanted one
// cannot be had.
std::unique_ptr<ReadQueue> make_read_queue(ReaderRung wanted);

std::unique_ptr<ReadQueue> make_uring_queue();
std::unique_ptr<ReadQueue> make_pread_queue();

// 0 where this process may create a ring, else the errno. (seccomp, kernel.io_uring_disabled, memlock)
int probe_io_uring() noexcept;

}  // namespace weir::pager
