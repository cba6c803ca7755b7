#include "runtime/cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "runtime/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLook_ms = 200;  // between two looks at the stop signal and the clock
constexpr size_t kMostOutput = 64u << 20;

struct Pipe {
    Pipe() {
        if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("pipe: ") + std::strerror(errno));
    }
    ~Pipe() {
        close(0);
        close(1);
    }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    void close(int end) {
        if (ends[end] >= 0) ::close(ends[end]);
        ends[end] = -1;
    }
    int ends[2] = {-1, -1};
};

struct Attributes {
    Attributes() {
        ::posix_spawnattr_init(&attributes);
        ::posix_spawn_file_actions_init(&actions);
    }
    ~Attributes() {
        ::posix_spawn_file_actions_destroy(&actions);
        ::posix_spawnattr_destroy(&attributes);
    }
    Attributes(const Attributes&) = delete;
    Attributes& operator=(const Attributes&) = delete;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
};

pid_t start(const std::vector<std::string>& command, const Pipe& out, const Pipe& err) {
    Attributes a;
    sigset_t all, none;
    ::sigfillset(&all);
    ::sigemptyset(&none);
    int error = ::posix_spawnattr_setflags(&a.attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    if (error == 0) error = ::posix_spawnattr_setsigdefault(&a.attributes, &all);
    if (error == 0) error = ::posix_spawnattr_setsigmask(&a.attributes, &none);
    if (error == 0) error = ::posix_spawn_file_actions_addopen(&a.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0) error = ::posix_spawn_file_actions_adddup2(&a.actions, out.ends[1], STDOUT_FILENO);
    if (error == 0) error = ::posix_spawn_file_actions_adddup2(&a.actions, err.ends[1], STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_t pid = -1;
    if (error == 0) error = ::posix_spawnp(&pid, argv[0], &a.actions, &a.attributes, argv.data(), environ);
    if (error != 0) throw Error(command[0] + ": cannot be started: " + std::strerror(error));
    return pid;
}

}  // namespace

std::string ChildEnd::last_words() const {
    const size_t end = err.find_last_not_of(" \n\r\t");
    if (end == std::string::npos) return "";
    const size_t begin = err.find_last_of("\n\r", end);
    return err.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

ChildEnd run_child(const std::vector<std::string>& command, const StopSignals& signals, int timeout_s) {
    Pipe out, err;
    ChildEnd end;
    const pid_t pid = start(command, out, err);
    out.close(1);
    err.close(1);
    const auto deadline = Clock::now() + std::chrono::seconds(timeout_s);
    std::string* const texts[2] = {&end.out, &end.err};
    pollfd fds[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        end.stopped = signals.asked() != 0;
        end.timed_out = Clock::now() > deadline;
        if (end.stopped || end.timed_out) break;
        if (::poll(fds, 2, kLook_ms) < 0) continue;  // EINTR: a signal
        for (int i = 0; i < 2; ++i) {
            if (fds[i].fd < 0 || fds[i].revents == 0) continue;
            char buffer[1 << 16];
            const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
            if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
            if (n <= 0) {
                fds[i].fd = -1;
            } else if (texts[i]->size() < kMostOutput) {
                texts[i]->append(buffer, static_cast<size_t>(n));
            }
        }
    }
    // The whole session: what the program itself has started goes with it.
    if (end.stopped || end.timed_out) (void)::kill(-pid, SIGKILL);
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return end;
}

}  // namespace weir
