// The HTTP server: OpenAI's protocol, llama-server's endpoints beside it, and who may use them.
//
// It answers from the moment it is started: /health and the others say 503 until a model is attached. A request holds one
// thread of the server's while it is answered; connections are closed after each, so that nobody holds one for nothing and
// /health and /metrics are answered while all slots are busy and the queue is full.
//
// Threads: the constructor, start(), attach() and stop() belong to the owner. Throws Error where it cannot listen.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/service/model_service.h"

namespace weir {

struct ServerOptions {
    std::string host = "127.0.0.1";
    int port = 8080;                         // 0: any that is free
    std::string unix_socket;                 // instead of the two
    int socket = -1;                         // instead of all three: it listens already, and is the server's to close
    std::vector<std::string> api_keys;       // none: nobody is asked for one
    std::vector<std::string> allowed_hosts;  // names in the Host header besides localhost and addresses
    std::string cors_origin;                 // of web pages that may use it; empty: none but its own
    size_t max_body_bytes = 1 << 20;
    unsigned timeout_s = 30;                 // to send a request, and to take some of an answer
    size_t threads = 32;
    bool dashboard = true;                   // a page at /
};

class HttpServer {
  public:
    explicit HttpServer(const ServerOptions& options);
    ~HttpServer();
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    void start();
    // The model can be used from now on. The service must outlive stop().
    void attach(const ModelService& service);
    // Any thread: who may use it from now on.
    void set_api_keys(std::vector<std::string> keys);
    // No more connections; answers under way are cut off. Drain the scheduler first.
    void stop();
    // "http://127.0.0.1:8080", "unix:PATH", or "the service manager's socket".
    std::string address() const;

  private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

// Keys, one a line; empty lines and lines that begin with # do not count. Throws Error where there are none.
std::vector<std::string> read_api_keys(const std::string& path);

}  // namespace weir
