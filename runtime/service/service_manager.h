// The service manager above us: what it is told (systemd's notify protocol), and the socket that it may hand over.
//
// Spoken directly instead of through libsystemd: it is one datagram and two variables, which sd_notify(3) and
// sd_listen_fds(3) promise to keep and tell programs to speak themselves, and so it is there on images without
// systemd's libraries, in static builds, and under other managers that know the protocol.
//
// Threads: notify() is any thread's. Where nobody manages us, nothing is sent and nothing fails.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace weir {

class ServiceManager {
  public:
    // Reads NOTIFY_SOCKET, WATCHDOG_USEC and LISTEN_FDS and takes them out of the environment: they are not meant for
    // children. Before there are threads. Throws Error where what was handed over is not one stream socket that
    // listens.
    ServiceManager();
    ~ServiceManager();
    ServiceManager(const ServiceManager&) = delete;
    ServiceManager& operator=(const ServiceManager&) = delete;

    // Somebody wants to be told.
    bool listens() const { return !address_.empty(); }
    // One or more lines "VARIABLE=value". A manager that has gone, or does not take it, is no error of ours.
    void notify(std::string_view state) const noexcept;
    // "STATUS=text": one line for who looks. Control characters become blanks.
    void status(std::string_view text) const noexcept;
    // "RELOADING=1", with the time that tells it from an older one.
    void reloading() const noexcept;

    // How often "WATCHDOG=1" must come at least; 0: nobody watches.
    std::chrono::microseconds watchdog() const { return watchdog_; }
    // A socket that listens and is ours to accept from; -1: none. The caller closes it, and never shuts it down: it
    // lives on at the manager's.
    int take_socket() noexcept;

  private:
    std::string address_;  // of the notify socket; a leading 0 byte for an abstract one
    std::chrono::microseconds watchdog_{0};
    int socket_ = -1;
    int notify_fd_ = -1;
};

}  // namespace weir
