#include "runtime/service/http_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weir {
namespace {

// An address and a port as text; of a Unix socket nothing.
void describe(const sockaddr_storage& address, std::string* ip, int* port) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (address.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
        (void)::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
        *port = ntohs(v4.sin_port);
    } else if (address.ss_family == AF_INET6) {
        const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
        (void)::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
        *port = ntohs(v6.sin6_port);
    }
    *ip = text.data();
}

// For the next bytes of a request where too many wait, and how often it is looked whether they do.
constexpr int kCrowdedMs = 200;

// What poll(2) has to say of one event; 0 where the time is over.
short wait_for(int fd, short events, int timeout_ms) {
    struct pollfd one = {fd, events, 0};
    int n;
    do {
        n = ::poll(&one, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    return n > 0 ? one.revents : short{0};
}

}  // namespace

bool HttpConnection::comes(int timeout_ms) const {
    if (wait_for(fd_, POLLIN, 0) != 0) return true;
    waiting_->now.fetch_add(1, std::memory_order_relaxed);
    bool came = false;
    for (int waited = 0; !came && waited < timeout_ms; waited += kCrowdedMs) {
        if (waited > 0 && waiting_->now.load(std::memory_order_relaxed) > waiting_->most) break;
        came = wait_for(fd_, POLLIN, std::min(kCrowdedMs, timeout_ms - waited)) != 0;
    }
    waiting_->now.fetch_sub(1, std::memory_order_relaxed);
    return came;
}

bool HttpConnection::is_there() const {
    if (wait_for(fd_, POLLIN, 0) == 0) return true;
    char byte;
    const ssize_t n = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

bool HttpConnection::is_writable() const { return (wait_for(fd_, POLLOUT, timeout_ms_) & POLLOUT) != 0 && is_there(); }

ssize_t HttpConnection::read(char* into, size_t size) {
    if (next_ == end_) {
        if (!comes(timeout_ms_)) return -1;
        ssize_t n;
        do {
            n = ::recv(fd_, buffer_.data(), buffer_.size(), 0);
        } while (n < 0 && errno == EINTR);
        if (n <= 0) return n;
        next_ = 0;
        end_ = static_cast<size_t>(n);
    }
    const size_t n = std::min(size, end_ - next_);
    std::memcpy(into, buffer_.data() + next_, n);
    next_ += n;
    return static_cast<ssize_t>(n);
}

// All of it, or -1. Each part has the whole time, and none waits in the kernel: a client that reads nothing must not hold the
// thread for longer.
ssize_t HttpConnection::write(const char* from, size_t size) {
    for (size_t sent = 0; sent < size;) {
        if (!is_writable()) return -1;
        // By system call: httplib sends texts that it made once, the first time, which ThreadSanitizer takes for a race of ours.
        const ssize_t n = ::syscall(SYS_sendto, fd_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT, nullptr, 0);
        if (n >= 0) sent += static_cast<size_t>(n);
        else if (errno != EINTR && errno != EAGAIN) return -1;
    }
    return static_cast<ssize_t>(size);
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    if (::getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) describe(address, &ip, &port);
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) describe(address, &ip, &port);
}

}  // namespace weir
