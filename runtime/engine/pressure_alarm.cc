#include "runtime/engine/pressure_alarm.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace weir {
namespace {

// A tenth of a second of stalls within two seconds: half of what the policy takes for trouble. Ordinary users may only ask for
// windows of whole multiples of two seconds.
constexpr char kWish[] = "some 100000 2000000";

}  // namespace

PressureAlarm::PressureAlarm(const std::filesystem::path& root) {
    const int fd = ::open((root / "proc/pressure/memory").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    struct statfs where;
    const bool real = ::fstatfs(fd, &where) == 0 && where.f_type == PROC_SUPER_MAGIC;
    if (real && ::write(fd, kWish, sizeof kWish) > 0) {
        fd_ = fd;
    } else {
        ::close(fd);
    }
}

PressureAlarm::~PressureAlarm() {
    if (fd_ >= 0) ::close(fd_);
}

bool PressureAlarm::wait(int call, std::chrono::milliseconds at_most) {
    struct pollfd fds[] = {{call, POLLIN, 0}, {fd_, POLLPRI, 0}};  // one below 0 is passed over
    const auto timeout_ms = static_cast<int>(std::min<std::chrono::milliseconds::rep>(at_most.count(), INT_MAX));
    if (::poll(fds, 2, timeout_ms) <= 0) return false;
    if ((fds[1].revents & (POLLERR | POLLNVAL)) != 0) {  // the kernel has given it up
        ::close(fd_);
        fd_ = -1;
    }
    return (fds[1].revents & POLLPRI) != 0;
}

}  // namespace weir
