// Runs a program as a user would and catches what it says. For tests of whole programs.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace weir::test {

struct Ended {
    int status = -1;  // exit status, or 128 + the signal that ended it
    bool timed_out = false;
    std::string out;
    std::string err;
    double seconds = 0;

    size_t error_lines() const {
        size_t n = 0;
        for (const char c : err) n += c == '\n' ? 1 : 0;
        return n;
    }
};

struct SpawnOptions {
    int timeout_s = 20;
    std::string stdout_path;             // instead of a pipe that is read
    bool close_stdout = false;           // start without a stdout
    bool drop_stdout_reader = false;     // a pipe that nobody reads
    std::function<void()> in_child;      // after fork: async-signal-safe calls only; _exit(126) where it fails
    std::function<void(pid_t)> started;  // in the parent
};

// args[0] is the program's path.
inline Ended spawn(const std::vector<std::string>& args, const SpawnOptions& options = {}) {
    std::vector<char*> argv;
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    int out[2];
    int err[2];
    Ended ended;
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) return ended;
    if (options.drop_stdout_reader) {
        ::close(out[0]);
        out[0] = -1;
    }
    const auto start = std::chrono::steady_clock::now();
    const pid_t pid = ::fork();
    if (pid == 0) {
        if (options.close_stdout) {
            ::close(STDOUT_FILENO);
        } else if (!options.stdout_path.empty()) {
            ::dup2(::open(options.stdout_path.c_str(), O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
        } else {
            ::dup2(out[1], STDOUT_FILENO);
        }
        ::dup2(err[1], STDERR_FILENO);
        // A shell without job control starts what it puts into the background with some of these ignored.
        for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(number, SIG_DFL);
        if (options.in_child) options.in_child();
        ::execv(argv[0], argv.data());
        ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    if (options.started) options.started(pid);

    pollfd fds[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
    std::string* const texts[2] = {&ended.out, &ended.err};
    const auto deadline = start + std::chrono::seconds(options.timeout_s);
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
        if (left <= 0 || ::poll(fds, 2, static_cast<int>(left)) == 0) {
            ended.timed_out = true;
            ::kill(pid, SIGKILL);
            break;
        }
        for (int i = 0; i < 2; ++i) {
            if (fds[i].fd < 0 || fds[i].revents == 0) continue;
            char buffer[65536];
            const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
            if (n > 0) {
                texts[i]->append(buffer, static_cast<size_t>(n));
            } else {
                fds[i].fd = -1;
            }
        }
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (out[0] >= 0) ::close(out[0]);
    ::close(err[0]);
    ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return ended;
}

}  // namespace weir::test
