#include "pager/uffd.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

// Newer than the headers of Debian 12; numbers from Linux 6.8's include/uapi/linux/userfaultfd.h.
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1u << 16)
struct uffdio_move {
    __u64 dst;
    __u64 src;
    __u64 len;
    __u64 mode;
    __s64 move;
};
#define UFFDIO_MOVE _IOWR(0xAA, 0x05, struct uffdio_move)
#endif

namespace weir::pager {
namespace {

int open_by_system_call(int flags) {
    return static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags));
}

int open_by_device() {
    const int device = ::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device < 0) return -1;
    const int fd = ::ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
    const int error = errno;
    ::close(device);
    errno = error;
    return fd;
}

// One rung of the ladder.
int open_rung(UffdSource source) {
    switch (source) {
        case UffdSource::kUserModeOnly: return open_by_system_call(UFFD_USER_MODE_ONLY);
        case UffdSource::kDevice: return open_by_device();
        case UffdSource::kSystemCall: return open_by_system_call(0);
        case UffdSource::kAuto: break;
    }
    errno = EINVAL;
    return -1;
}

constexpr struct {
    UffdSource source;
    const char* name;
} kRungs[] = {
    {UffdSource::kUserModeOnly, "user-mode-only"},
    {UffdSource::kDevice, "device"},
    {UffdSource::kSystemCall, "syscall"},
};

bool shake_hands(int fd, uint64_t features) {
    struct uffdio_api api = {};
    api.api = UFFD_API;
    api.features = features;
    return ::ioctl(fd, UFFDIO_API, &api) == 0;
}

}  // namespace

Uffd::Uffd(UffdSource wanted, IoctlCall call) : call_(std::move(call)) {
    std::string tried;
    for (const auto& rung : kRungs) {
        if (wanted != UffdSource::kAuto && wanted != rung.source) continue;
        // An API call that fails leaves the descriptor unusable, so each set of features gets a fresh one.
        for (const uint64_t features : {uint64_t{UFFD_FEATURE_MOVE}, uint64_t{0}}) {
            const int fd = open_rung(rung.source);
            if (fd < 0) {
                tried += std::string(tried.empty() ? "" : ", ") + rung.name + ": " + std::strerror(errno);
                break;
            }
            if (shake_hands(fd, features)) {
                fd_ = fd;
                source_name_ = rung.name;
                has_move_ = features != 0;
                spare_fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
                struct stat st;
                if (spare_fd_ < 0 || ::fstat(fd, &st) != 0) {
                    const int error = errno;
                    ::close(fd);
                    throw std::runtime_error(std::string("a second descriptor of the userfaultfd: ") + std::strerror(error));
                }
                device_ = st.st_dev;
                inode_ = st.st_ino;
                return;
            }
            ::close(fd);
        }
    }
    throw std::runtime_error("userfaultfd cannot be had (" + tried +
                             "); allow it in the container's seccomp profile, or give read and write access to "
                             "/dev/userfaultfd, or use --paging advised (weir doctor says more)");
}

int probe_uffd_open(UffdSource source) noexcept {
    const int fd = open_rung(source);
    if (fd < 0) return errno;
    const int error = shake_hands(fd, 0) ? 0 : errno;
    ::close(fd);
    return error;
}

Uffd::~Uffd() {
    for (const int fd : {fd_.load(), spare_fd_})
        if (fd >= 0 && is_ours(fd)) ::close(fd);
}

// Each uffd has an inode of its own since Linux 5.12; before that it is told from files, sockets and pipes.
bool Uffd::is_ours(int fd) const noexcept {
    struct stat st;
    return ::fstat(fd, &st) == 0 && st.st_dev == device_ && st.st_ino == inode_;
}

// True where the descriptor in use had been closed, and another is in its place. The number may have been given to
// another file since, so it is left alone.
bool Uffd::restore() noexcept {
    int old = fd();
    if (is_ours(old)) return false;
    const int fresh = is_ours(spare_fd_) ? ::fcntl(spare_fd_, F_DUPFD_CLOEXEC, 0) : -1;
    if (fresh < 0) {
        lost_.store(true, std::memory_order_relaxed);
        return false;
    }
    if (fd_.compare_exchange_strong(old, fresh, std::memory_order_relaxed))
        restored_.fetch_add(1, std::memory_order_relaxed);
    else
        ::close(fresh);  // the pool's thread was faster
    return true;
}

int Uffd::call(unsigned long request, void* argument) noexcept {
    for (;;) {
        const int result = call_ ? call_(fd(), request, argument) : ::ioctl(fd(), request, argument);
        if (result == 0) return 0;
        const int error = errno;
        if ((error == EBADF || error == ENOTTY) && restore()) continue;
        errno = error;
        return result;
    }
}

int Uffd::register_range(void* address, size_t bytes) noexcept {
    struct uffdio_register request = {};
    request.range.start = reinterpret_cast<uintptr_t>(address);
    request.range.len = bytes;
    request.mode = UFFDIO_REGISTER_MODE_MISSING;
    return call(UFFDIO_REGISTER, &request) == 0 ? 0 : -errno;
}

int Uffd::unregister_range(void* address, size_t bytes) noexcept {
    struct uffdio_range range = {};
    range.start = reinterpret_cast<uintptr_t>(address);
    range.len = bytes;
    return call(UFFDIO_UNREGISTER, &range) == 0 ? 0 : -errno;
}

Outcome Uffd::classify(int error) noexcept {
    last_error_ = error;
    switch (error) {
        case EBUSY:
        case EAGAIN: return Outcome::kBusy;
        case ENOMEM:
        case ENOSPC: return Outcome::kNoMemory;
        case EEXIST: return Outcome::kExists;
        case ESRCH: return Outcome::kGone;
        default: return Outcome::kFatal;
    }
}

Outcome Uffd::move(void* dst, void* src, size_t bytes, size_t* done) noexcept {
    while (*done < bytes) {
        struct uffdio_move request = {};
        request.dst = reinterpret_cast<uintptr_t>(dst) + *done;
        request.src = reinterpret_cast<uintptr_t>(src) + *done;
        request.len = bytes - *done;
        const int result = call(UFFDIO_MOVE, &request);
        const int error = errno;
        if (request.move > 0) *done += static_cast<size_t>(request.move);
        // EAGAIN after a part was moved only asks for the rest.
        if (result == 0 || error == EINTR || (error == EAGAIN && request.move > 0)) continue;
        return classify(error);
    }
    return Outcome::kDone;
}

Outcome Uffd::copy(void* dst, const void* src, size_t bytes, size_t* done) noexcept {
    while (*done < bytes) {
        struct uffdio_copy request = {};
        request.dst = reinterpret_cast<uintptr_t>(dst) + *done;
        request.src = reinterpret_cast<uintptr_t>(src) + *done;
        request.len = bytes - *done;
        const int result = call(UFFDIO_COPY, &request);
        const int error = errno;
        if (request.copy > 0) *done += static_cast<size_t>(request.copy);
        if (result == 0 || error == EINTR || (error == EAGAIN && request.copy > 0)) continue;
        return classify(error);
    }
    return Outcome::kDone;
}

int Uffd::wake(void* address, size_t bytes) noexcept {
    struct uffdio_range range = {};
    range.start = reinterpret_cast<uintptr_t>(address);
    range.len = bytes;
    return call(UFFDIO_WAKE, &range) == 0 ? 0 : -errno;
}

bool Uffd::next_fault(uintptr_t* address) noexcept {
    struct uffd_msg message;
    for (;;) {
        const ssize_t n = ::read(fd(), &message, sizeof message);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return false;
        if (n != static_cast<ssize_t>(sizeof message) || message.event != UFFD_EVENT_PAGEFAULT) {
            if (!restore() && n != static_cast<ssize_t>(sizeof message)) return false;
            continue;
        }
        *address = static_cast<uintptr_t>(message.arg.pagefault.address);
        return true;
    }
}

}  // namespace weir::pager
