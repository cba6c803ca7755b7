// One userfaultfd and its ioctls. Every ioctl's errno is classified in one place into what the caller can do about it.
//
// Owned by the Pager; the pager thread calls move/copy/wake/next_fault, the frame pool's populating thread calls
// register_range and unregister_range. Close it last: when the last descriptor closes, threads asleep in a fault wake up
// and read zeros. So there are two: where a stray close() in the process takes the one in use, the other takes its place.
// Sources: userfaultfd(2), ioctl_userfaultfd(2), Documentation/admin-guide/mm/userfaultfd.rst.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace weir::pager {

enum class UffdSource : uint8_t { kAuto, kUserModeOnly, kDevice, kSystemCall };

// What an ioctl came to.
enum class Outcome : uint8_t {
    kDone,
    kBusy,      // a page is held elsewhere for the moment: try again
    kNoMemory,  // the kernel has no memory for page tables or pages just now: try again later
    kExists,    // there is a page already where one was to go
    kGone,      // the process is going away
    kFatal,     // an invariant or the kernel; errno is in Uffd::last_error()
};

// ioctl(2) on the uffd: returns what that returns and sets errno. Tests put another in its place. Called by the pager
// thread and by the pool's.
using IoctlCall = std::function<int(int fd, unsigned long request, void* argument)>;

class Uffd {
  public:
    // Opens by the first rung that works: user-mode-only system call, /dev/userfaultfd, unrestricted system call. Throws
    // std::runtime_error that names each rung, its errno and what to do.
    explicit Uffd(UffdSource wanted, IoctlCall call = {});
    ~Uffd();
    Uffd(const Uffd&) = delete;
    Uffd& operator=(const Uffd&) = delete;

    // Another number after restored() has grown.
    int fd() const { return fd_.load(std::memory_order_relaxed); }
    // How often a stray close was made good.
    uint32_t restored() const { return restored_.load(std::memory_order_relaxed); }
    // Both descriptors are gone: faults are not seen any more.
    bool lost() const { return lost_.load(std::memory_order_relaxed); }
    const char* source_name() const { return source_name_; }
    bool has_move() const { return has_move_; }

    // Missing-page faults in [address, address + bytes) come here. 0 or -errno.
    int register_range(void* address, size_t bytes) noexcept;
    // Pages may be missing there, and appear, without anybody being asked. 0 or -errno.
    int unregister_range(void* address, size_t bytes) noexcept;

    // Moves whole pages from src to dst, which must be empty and registered here; wakes who waits for dst. (Linux 6.8)
    // done: bytes that an earlier call moved, and then this one too; where it is not kDone, the rest is asked for by
    // calling again.
    Outcome move(void* dst, void* src, size_t bytes, size_t* done) noexcept;
    // Copies src into new pages at dst, which must be empty; wakes who waits for dst. done: as above.
    Outcome copy(void* dst, const void* src, size_t bytes, size_t* done) noexcept;
    // All or nothing of it, for who does not go on after a part.
    Outcome move(void* dst, void* src, size_t bytes) noexcept {
        size_t done = 0;
        return move(dst, src, bytes, &done);
    }
    Outcome copy(void* dst, const void* src, size_t bytes) noexcept {
        size_t done = 0;
        return copy(dst, src, bytes, &done);
    }
    // 0 or -errno: then whoever sleeps there sleeps on.
    int wake(void* address, size_t bytes) noexcept;

    // Address of the next waiting fault; false where none waits.
    bool next_fault(uintptr_t* address) noexcept;

    // errno of the last outcome but kDone.
    int last_error() const { return last_error_; }

  private:
    Outcome classify(int error) noexcept;
    int call(unsigned long request, void* argument) noexcept;
    bool is_ours(int fd) const noexcept;
    bool restore() noexcept;

    const IoctlCall call_;
    std::atomic<int> fd_{-1};
    int spare_fd_ = -1;
    dev_t device_ = 0;  // of the uffd's inode
    ino_t inode_ = 0;
    std::atomic<uint32_t> restored_{0};
    std::atomic<bool> lost_{false};
    const char* source_name_ = "";
    bool has_move_ = false;
    int last_error_ = 0;
};

// 0 where a userfaultfd is opened by this rung and understands us, else the errno; EINVAL for kAuto.
int probe_uffd_open(UffdSource source) noexcept;

}  // namespace weir::pager
