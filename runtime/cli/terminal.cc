#include "runtime/cli/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "runtime/error.h"
#include "runtime/severity.h"

namespace weir {
namespace {

// Set by the handler, read by StopSignals::asked(). A handler reaches nothing but globals.
std::atomic<int> stop_asked{0};
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<bool> stop_patient{false};
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};  // the last one for the patient only

void restore_stop_signals() {
    for (const int number : kStopSignals) std::signal(number, SIG_DFL);
}

extern "C" void on_stop_signal(int number) {
    stop_asked.store(number, std::memory_order_relaxed);
    if (!stop_patient.load(std::memory_order_relaxed)) restore_stop_signals();
}

}  // namespace

void prepare_process() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    for (int fd = 0; fd <= 2; ++fd) {
        if (::fcntl(fd, F_GETFD) >= 0) continue;
        // The lowest free number is this one. Writing to it fails, as it should for who closed it.
        if (::open("/dev/null", O_RDONLY) != fd) throw Error("cannot open /dev/null in place of a closed stream");
    }
}

void write_stdout(std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
        if (n >= 0) {
            text.remove_prefix(static_cast<size_t>(n));
        } else if (errno == EPIPE || errno == EBADF) {
            throw OutputClosed();
        } else if (errno != EINTR) {
            throw Error(std::string("cannot write to stdout: ") + std::strerror(errno));
        }
    }
}

void complain(std::string_view message) noexcept {
    constexpr size_t kLongest = 4000;
    char line[kLongest + 16] = "";
    size_t n = static_cast<size_t>(std::snprintf(line, sizeof line, "%sweir: ", severity_prefix(Severity::kError)));
    for (const char c : message.substr(0, kLongest)) {
        const auto byte = static_cast<unsigned char>(c);
        line[n++] = byte < 0x20 || byte == 0x7f ? ' ' : c;
    }
    line[n++] = '\n';
    // There is nobody left to tell that this failed.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, n);
}

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

std::string read_text(const std::string& path, const char* what) {
    constexpr size_t kMost = 256u << 20;
    const auto fail = [&](const std::string& why) { throw Error((path == "-" ? "standard input" : path) + ": cannot read " + what + ": " + why); };
    const int fd = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(std::strerror(errno));
    std::string text;
    ssize_t n = 1;
    int error = 0;
    while (n != 0 && text.size() <= kMost) {
        char part[1 << 16];
        n = ::read(fd, part, sizeof part);
        if (n > 0) text.append(part, static_cast<size_t>(n));
        if (n < 0 && errno != EINTR) {
            error = errno;
            break;
        }
    }
    if (fd != STDIN_FILENO) ::close(fd);
    if (error != 0) fail(std::strerror(error));
    if (text.size() > kMost) fail("it is larger than " + std::to_string(kMost >> 20) + " MiB; give a part of it");
    return text;
}

ProgressLine::~ProgressLine() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
}

bool ProgressLine::due() const { return on_ && std::chrono::steady_clock::now() - last_ >= std::chrono::milliseconds(200); }

void ProgressLine::show(const std::string& text) {
    if (!on_) return;
    std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
    last_ = std::chrono::steady_clock::now();
    shown_ = true;
}

StopSignals::StopSignals(bool patient) {
    stop_asked.store(0, std::memory_order_relaxed);
    stop_patient.store(patient, std::memory_order_relaxed);
    struct sigaction action {};
    action.sa_handler = on_stop_signal;
    ::sigemptyset(&action.sa_mask);
    for (const int number : kStopSignals) {
        if (number == SIGQUIT && !patient) continue;
        // What was ignored stays so: nohup, background jobs of a shell without job control.
        struct sigaction old {};
        if (::sigaction(number, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) continue;
        ::sigaction(number, &action, nullptr);
    }
}

StopSignals::~StopSignals() {
    for (const int number : kStopSignals) {
        struct sigaction old {};
        if (::sigaction(number, nullptr, &old) == 0 && old.sa_handler == on_stop_signal) std::signal(number, SIG_DFL);
    }
}

int StopSignals::asked() const { return stop_asked.load(std::memory_order_relaxed); }

}  // namespace weir
