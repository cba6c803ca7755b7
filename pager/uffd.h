// One userfaultfd and its ioctls. Every ioctl's errno is classified in one place into what the caller can do about it.
//
// Owned by the Pager; the pager thread calls move/copy/wake/next_fault, the frame pool's populating thread calls
// register_range. Close it last: when the last descriptor closes, threads asleep in a fault wake up and read zeros.
// Sources: userfaultfd(2), ioctl_userfaultfd(2), Documentation/admin-guide/mm/userfaultfd.rst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weir::pager {

enum class UffdSource : uint8_t { kAuto, kUserModeOnly, kDevice, kSystemCall };

// What an ioctl came to.
enum class Outcome : uint8_t {
    kDone,
    kBusy,   // a page is held elsewhere for the moment: try again
    kGone,   // the process is going away
    kFatal,  // an invariant or the kernel; errno is in Uffd::last_error()
};

class Uffd {
  public:
    // Opens by the first rung that works: user-mode-only system call, /dev/userfaultfd, unrestricted system call. Throws
    // std::runtime_error that names each rung, its errno and what to do.
    explicit Uffd(UffdSource wanted);
    ~Uffd();
    Uffd(const Uffd&) = delete;
    Uffd& operator=(const Uffd&) = delete;

    int fd() const { return fd_; }
    const char* source_name() const { return source_name_; }
    bool has_move() const { return has_move_; }

    // Missing-page faults in [address, address + bytes) come here. 0 or -errno.
    int register_range(void* address, size_t bytes) noexcept;

    // Moves whole pages from src to dst, which must be empty and registered here; wakes who waits for dst. (Linux 6.8)
    Outcome move(void* dst, void* src, size_t bytes) noexcept;
    // Copies src into new pages at dst, which must be empty; wakes who waits for dst.
    Outcome copy(void* dst, const void* src, size_t bytes) noexcept;
    void wake(void* address, size_t bytes) noexcept;

    // Address of the next waiting fault; false where none waits.
    bool next_fault(uintptr_t* address) noexcept;

    // errno of the last kFatal outcome.
    int last_error() const { return last_error_; }

  private:
    Outcome classify(int error) noexcept;

    int fd_ = -1;
    const char* source_name_ = "";
    bool has_move_ = false;
    int last_error_ = 0;
};

// 0 where a userfaultfd is opened by this rung and understands us, else the errno; EINVAL for kAuto.
int probe_uffd_open(UffdSource source) noexcept;

}  // namespace weir::pager
