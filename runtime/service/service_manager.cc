#include "runtime/service/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>

#include "runtime/error.h"

namespace weir {
namespace {

// sd_listen_fds(3): SD_LISTEN_FDS_START.
constexpr int kFirstSocket = 3;

// A variable of the environment, which is without it afterwards.
std::optional<std::string> take_variable(const char* name) {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    std::optional<std::string> taken(value);
    ::unsetenv(name);
    return taken;
}

// A whole number; nothing where it is none.
std::optional<unsigned long long> number(const std::optional<std::string>& text) {
    if (!text || text->empty() || text->find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    return std::strtoull(text->c_str(), nullptr, 10);
}

int option_of(int fd, int option) {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

// The one socket that was handed to this very process; -1: none was.
int handed_over() {
    const auto pid = number(take_variable("LISTEN_PID")), count = number(take_variable("LISTEN_FDS"));
    ::unsetenv("LISTEN_FDNAMES");
    if (!count || *count == 0 || pid != static_cast<unsigned long long>(::getpid())) return -1;
    if (*count != 1) {
        throw Error("LISTEN_FDS: the service manager handed over " + std::to_string(*count) +
                    " sockets, and one is served; give the unit one ListenStream=");
    }
    if (option_of(kFirstSocket, SO_TYPE) != SOCK_STREAM || option_of(kFirstSocket, SO_ACCEPTCONN) != 1) {
        throw Error(
            "LISTEN_FDS: what the service manager handed over is no stream socket that listens; use ListenStream= and "
            "Accept=no");
    }
    (void)::fcntl(kFirstSocket, F_SETFD, FD_CLOEXEC);
    return kFirstSocket;
}

}  // namespace

ServiceManager::ServiceManager() : socket_(handed_over()) {
    address_ = take_variable("NOTIFY_SOCKET").value_or("");
    // A path, or an abstract name; vsock is for whole machines.
    if (address_.size() >= sizeof sockaddr_un{}.sun_path ||
        (!address_.empty() && address_[0] != '/' && address_[0] != '@'))
        address_.clear();
    if (!address_.empty() && address_[0] == '@') address_[0] = '\0';
    const auto interval = number(take_variable("WATCHDOG_USEC"));
    const auto watched = number(take_variable("WATCHDOG_PID"));
    if (interval && (!watched || *watched == static_cast<unsigned long long>(::getpid()))) {
        watchdog_ = std::chrono::microseconds(*interval);
    }
    if (!address_.empty()) notify_fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

ServiceManager::~ServiceManager() {
    for (const int fd : {socket_, notify_fd_})
        if (fd >= 0) ::close(fd);
}

int ServiceManager::take_socket() noexcept { return std::exchange(socket_, -1); }

void ServiceManager::notify(std::string_view state) const noexcept {
    if (notify_fd_ < 0) return;
    sockaddr_un to = {};
    to.sun_family = AF_UNIX;
    address_.copy(to.sun_path, sizeof to.sun_path);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
    (void)::sendto(notify_fd_, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to), size);
}

void ServiceManager::status(std::string_view text) const noexcept {
    if (!listens()) return;
    std::string state = "STATUS=";
    for (const char c : text) state += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    notify(state);
}

void ServiceManager::reloading() const noexcept {
    struct timespec now = {};
    (void)::clock_gettime(CLOCK_MONOTONIC, &now);
    const auto us =
        static_cast<unsigned long long>(now.tv_sec) * 1'000'000 + static_cast<unsigned long long>(now.tv_nsec) / 1000;
    notify("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(us));
}

}  // namespace weir
