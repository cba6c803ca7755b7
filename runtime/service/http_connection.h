// A client's connection as httplib reads and writes it, which can also tell whether the client is still there while nothing
// is read or written: an answer that takes minutes has its status sent when it is done, and nobody computes for who has gone.
//
// The socket is the owner's. One thread. Nothing throws; what fails is said by the results, as httplib::Stream has it.
#pragma once

#include <httplib.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <string>

namespace weir {

class HttpConnection : public httplib::Stream {
  public:
    // Those who wait for bytes of a request, each on a thread of the server's. Where they are more than `most`, none of them
    // gets more than a moment for the next ones: who sends nothing must not keep out who does.
    struct Waiting {
        std::atomic<size_t> now{0};
        size_t most = SIZE_MAX;
    };

    // timeout_s: for the next bytes to come, and for room to write. waiting: of the server; must outlive the connection.
    HttpConnection(int fd, unsigned timeout_s, Waiting* waiting)
        : fd_(fd), timeout_ms_(static_cast<int>(timeout_s) * 1000), waiting_(waiting) {}

    // The client has sent something, within the time.
    bool comes(int timeout_ms) const;
    // It has not closed its side.
    bool is_there() const;

    bool is_readable() const override { return next_ < end_ || comes(timeout_ms_); }
    bool is_writable() const override;
    ssize_t read(char* into, size_t size) override;
    ssize_t write(const char* from, size_t size) override;
    void get_remote_ip_and_port(std::string& ip, int& port) const override;
    void get_local_ip_and_port(std::string& ip, int& port) const override;
    socket_t socket() const override { return fd_; }

  private:
    const int fd_;
    const int timeout_ms_;
    Waiting* const waiting_;
    std::array<char, 2048> buffer_;  // httplib reads headers byte by byte
    size_t next_ = 0, end_ = 0;
};

}  // namespace weir
