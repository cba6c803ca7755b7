#include "runtime/service/http_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/error.h"
#include "runtime/service/api_error.h"
#include "runtime/service/http_connection.h"
#include "runtime/service/http_guard.h"
#include "runtime/service/http_handlers.h"
#include "runtime/service/openai_answer.h"

namespace weir {
namespace {

using httplib::Request;
using httplib::Response;
using Handler = void (*)(const ModelService&, const Request&, Response&);

void send_error(Response& response, const ApiError& error) {
    response.status = error.status;
    if (error.retry_after_s > 0) response.set_header("Retry-After", std::to_string(error.retry_after_s));
    response.set_content(error_body(error), "application/json");
}

// What is wrong, where the server itself found it.
ApiError error_of(int status) {
    switch (status) {
        case 404: return ApiError(404, "there is nothing at this address, or not by this method");
        case 413: return ApiError(413, "the body is larger than this server takes", {}, "too_large");
        case 414: return ApiError(414, "the address is too long");
        case 408: return ApiError(408, "the request did not come to its end");
        default: return ApiError(status, "the request cannot be understood");
    }
}

// A socket that an earlier server left behind, and nobody listens at, goes; anything else at the path stays.
void clear_socket_path(const std::string& path) {
    struct stat found;
    if (::lstat(path.c_str(), &found) != 0) return;
    if (!S_ISSOCK(found.st_mode)) throw Error(path + ": there is a file, and no socket, at this path");
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool alive = fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    if (fd >= 0) ::close(fd);
    if (alive) throw Error(path + ": another server listens at this socket");
    ::unlink(path.c_str());
}

// Of a body that is too large, what is read and dropped, so that its sender comes to read why.
constexpr size_t kDropped = 64u << 20;

// To send the first byte of a request: connections that are made in advance, and used by nobody, hold a thread no longer.
constexpr int kFirstByteMs = 5000;

// httplib's, which can also take over a socket that listens already, and tells handlers whether their client is still there.
class Listener : public httplib::Server {
  public:
    ~Listener() override {
        if (dead_ >= 0) ::close(dead_);
    }
    void adopt(int fd) {
        set_idle_interval(1, 0);  // how soon let_go() is noticed
        svr_sock_ = fd;
        dead_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    // In place of stop(), which shuts the socket down: that would end it for the service manager too, who keeps it for the next
    // of us. The loop meets a socket that nobody can accept from, closes it and ends.
    void let_go() {
        ending_ = true;
        svr_sock_ = std::exchange(dead_, -1);
    }
    void end() {
        ending_ = true;
        stop();
    }
    HttpConnection::Waiting waiting;

  private:
    // One request each, in place of httplib's own loop.
    bool process_and_close_socket(socket_t fd) override {
        bool done = false, closed = false;
        HttpConnection connection(fd, static_cast<unsigned>(read_timeout_sec_), &waiting);
        if (connection.comes(kFirstByteMs)) {
            done = process_request(connection, true, closed, [&](Request& request) {
                request.progress = [this, &connection](uint64_t, uint64_t) { return !ending_ && connection.is_there(); };
            });
        }
        ::shutdown(fd, SHUT_RDWR);
        ::close(fd);
        return done;
    }

    std::atomic<bool> ending_{false};
    int dead_ = -1;  // made before the loop begins, or ThreadSanitizer misses that the loop was handed it
};

bool is_unix_socket(int fd) {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family == AF_UNIX;
}

}  // namespace

struct HttpServer::Parts {
    explicit Parts(const ServerOptions& o)
        : options(o), local(o.socket >= 0 ? is_unix_socket(o.socket) : !o.unix_socket.empty()), keys(o.api_keys) {}

    ServerOptions options;
    const bool local;  // at a Unix socket: the Host header says nothing there
    mutable std::mutex keys_mutex;
    std::vector<std::string> keys;
    int port = 0;
    std::atomic<const ModelService*> service{nullptr};
    Listener server;
    std::thread listener;
    std::atomic<bool> ended{false};  // the listener's loop

    void bind();
    bool admit(const Request& request, Response& response) const;
    void check_form(const Request& request) const;
    template <typename Handle>
    void answer(Response& response, Handle&& handle);
    httplib::Server::Handler guarded(Handler handler);
    httplib::Server::HandlerWithContentReader guarded_body(Handler handler);
    void add_routes();
};

void HttpServer::Parts::bind() {
    if (options.socket >= 0) return server.adopt(options.socket);
    // Not SO_REUSEPORT, which httplib sets by itself: two servers would share a port without a word.
    server.set_socket_options([](int fd) {
        const int on = 1;
        ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    if (options.unix_socket.empty()) {
        errno = 0;
        port = options.port == 0 ? server.bind_to_any_port(options.host) : options.port;
        const bool bound = options.port == 0 ? port > 0 : server.bind_to_port(options.host, port);
        if (!bound) {
            const bool known = errno == EADDRINUSE || errno == EADDRNOTAVAIL || errno == EACCES;
            const std::string why = known ? std::strerror(errno) : "there is no such host";
            throw Error("cannot listen at " + options.host + " port " + std::to_string(options.port) + ": " + why + " (--host, --port)");
        }
        return;
    }
    if (options.unix_socket.size() >= sizeof sockaddr_un{}.sun_path) throw Error(options.unix_socket + ": the path is too long for a socket");
    clear_socket_path(options.unix_socket);
    server.set_address_family(AF_UNIX);
    // The number must not be 0, and means nothing.
    const mode_t before = ::umask(0117);
    const bool bound = server.bind_to_port(options.unix_socket, 1);
    ::umask(before);
    if (!bound) throw Error(options.unix_socket + ": cannot listen at this socket: " + std::strerror(errno));
}

// False where the request must not go on: the response says why.
bool HttpServer::Parts::admit(const Request& request, Response& response) const {
    const std::string host = request.get_header_value("Host"), origin = request.get_header_value("Origin");
    try {
        if (!local && !host_allowed(host, options.allowed_hosts)) {
            throw ApiError(403, "the Host header names a host that this server does not answer for (--allow-host)");
        }
        if (!origin_allowed(origin, host, options.cors_origin)) {
            throw ApiError(403, "web pages of other origins may not use this server (--cors)");
        }
        check_form(request);
        if (request.method == "OPTIONS" || request.path == "/health") return true;
        if (options.dashboard && request.path == "/") return true;  // what it shows it asks for by itself, with a key
        const std::lock_guard lock(keys_mutex);
        if (!key_allowed(request.get_header_value("Authorization"), keys)) {
            throw ApiError(401, "this server asks for an API key: Authorization: Bearer KEY", {}, "invalid_api_key");
        }
        return true;
    } catch (const ApiError& error) {
        send_error(response, error);
        return false;
    }
}

// What httplib would believe, or wait for.
void HttpServer::Parts::check_form(const Request& request) const {
    const bool known = request.method == "GET" || request.method == "HEAD" || request.method == "POST" || request.method == "OPTIONS";
    if (!known) throw ApiError(405, "this server knows GET, HEAD, POST and OPTIONS");
    const std::string length = request.get_header_value("Content-Length");
    uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), bytes);
    if (!length.empty() && (error != std::errc() || end != length.data() + length.size())) {
        throw ApiError(400, "Content-Length is no length");
    }
    if (bytes > options.max_body_bytes + kDropped) throw error_of(413);
}

// Errors become answers.
template <typename Handle>
void HttpServer::Parts::answer(Response& response, Handle&& handle) {
    try {
        const ModelService* const loaded = service.load(std::memory_order_acquire);
        if (loaded == nullptr) throw ApiError(503, "Loading model", {}, "loading");
        handle(*loaded);
    } catch (const ApiError& error) {
        send_error(response, error);
    } catch (const Busy& busy) {
        ApiError error(503, busy.what(), {}, "busy");
        error.retry_after_s = busy.retry_after_s;
        send_error(response, error);
    } catch (const std::exception& error) {
        send_error(response, ApiError(500, error.what()));
    }
}

// A handler that runs when there is a model.
httplib::Server::Handler HttpServer::Parts::guarded(Handler handler) {
    return [this, handler](const Request& request, Response& response) {
        answer(response, [&](const ModelService& loaded) { handler(loaded, request, response); });
    };
}

// One that takes a body. httplib would hold it to its limit by Content-Length alone, not as it is when it is unpacked or comes in
// chunks, and forms, which curl calls what it sends, to a limit of its own.
httplib::Server::HandlerWithContentReader HttpServer::Parts::guarded_body(Handler handler) {
    return [this, handler](const Request& request, Response& response, const httplib::ContentReader& read) {
        // Before anything is said, or who still sends when we close loses what we said.
        std::string body;
        size_t bytes = 0;
        const bool parts = request.is_multipart_form_data();  // httplib has another reader for them, and nobody here
        const bool whole = parts || read([&](const char* piece, size_t n) {
            bytes += n;
            if (bytes <= options.max_body_bytes) body.append(piece, n);
            else body = {};
            return bytes <= options.max_body_bytes + kDropped;
        });
        answer(response, [&](const ModelService& loaded) {
            if (parts) throw ApiError(415, "the body must be JSON");
            if (bytes > options.max_body_bytes) throw error_of(413);
            if (!whole) throw error_of(response.status >= 400 ? response.status : 408);
            // httplib's own, handed on as const, with a body that is ours to fill.
            const_cast<Request&>(request).body = std::move(body);
            handler(loaded, request, response);
        });
    };
}

void HttpServer::Parts::add_routes() {
    server.Get("/health", guarded([](const ModelService&, const Request&, Response& response) {
        response.set_content("{\"status\":\"ok\"}", "application/json");
    }));
    server.Get("/v1/models", guarded(serve_models));
    server.Get("/v1/models/(.+)", guarded(serve_models));
    server.Get("/props", guarded(serve_props));
    server.Get("/slots", guarded(serve_slots));
    server.Get("/metrics", guarded(serve_metrics));
    server.Post("/v1/chat/completions", guarded_body(serve_chat));
    server.Post("/v1/completions", guarded_body(serve_completion));
    server.Post("/v1/embeddings", guarded_body(serve_embeddings));
    server.Post("/tokenize", guarded_body(serve_tokenize));
    server.Post("/detokenize", guarded_body(serve_detokenize));
    server.Post("/apply-template", guarded_body(serve_apply_template));
    server.Post(".*", [](const Request&, Response& response, const httplib::ContentReader&) { send_error(response, error_of(404)); });
    if (options.dashboard) {
        server.Get("/", serve_dashboard_page);
        server.Get("/dashboard/map", guarded(serve_dashboard_map));
        server.Get("/dashboard/data", guarded(serve_dashboard_data));
    }
    server.Options(".*", [this](const Request&, Response& response) {
        response.status = options.cors_origin.empty() ? 404 : 204;
        response.set_header("Access-Control-Allow-Methods", "GET, POST");
        response.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type");
    });
    server.set_pre_routing_handler([this](const Request& request, Response& response) {
        using Result = httplib::Server::HandlerResponse;
        return admit(request, response) ? Result::Unhandled : Result::Handled;
    });
    server.set_error_handler([](const Request&, Response& response) {
        if (response.body.empty()) send_error(response, error_of(response.status));
    });
    if (!options.cors_origin.empty()) {
        server.set_default_headers({{"Access-Control-Allow-Origin", options.cors_origin}, {"Vary", "Origin"}});
    }
}

HttpServer::HttpServer(const ServerOptions& options) : parts_(std::make_unique<Parts>(options)) {
    httplib::Server& server = parts_->server;
    const size_t threads = options.threads;
    server.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
    server.set_read_timeout(static_cast<time_t>(options.timeout_s));
    server.set_payload_max_length(options.max_body_bytes);
    server.set_tcp_nodelay(!parts_->local);
    parts_->server.waiting.most = threads / 2;
    parts_->add_routes();
    parts_->bind();
}

HttpServer::~HttpServer() {
    stop();
    if (parts_->options.socket >= 0) ::close(parts_->options.socket);
    else if (!parts_->options.unix_socket.empty()) ::unlink(parts_->options.unix_socket.c_str());
}

void HttpServer::start() {
    parts_->listener = std::thread([this] {
        parts_->server.listen_after_bind();
        parts_->ended = true;
    });
}

void HttpServer::set_api_keys(std::vector<std::string> keys) {
    const std::lock_guard lock(parts_->keys_mutex);
    parts_->keys = std::move(keys);
}

void HttpServer::attach(const ModelService& service) { parts_->service.store(&service, std::memory_order_release); }

void HttpServer::stop() {
    if (!parts_->listener.joinable()) return;
    // httplib's stop() does nothing before its loop has begun.
    while (!parts_->server.is_running() && !parts_->ended) std::this_thread::yield();
    if (parts_->options.socket >= 0) parts_->server.let_go();
    else parts_->server.end();
    parts_->listener.join();
}

std::string HttpServer::address() const {
    if (parts_->options.socket >= 0) return "the service manager's socket";
    if (!parts_->options.unix_socket.empty()) return "unix:" + parts_->options.unix_socket;
    const std::string& host = parts_->options.host;
    return "http://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(parts_->port);
}

std::vector<std::string> read_api_keys(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw Error(path + ": the file of API keys cannot be read: " + std::strerror(errno));
    std::vector<std::string> keys;
    for (std::string line; std::getline(in, line);) {
        while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
        if (!line.empty() && line.front() != '#') keys.push_back(line);
    }
    if (keys.empty()) throw Error(path + ": there is no API key in this file (one a line)");
    return keys;
}

}  // namespace weir
