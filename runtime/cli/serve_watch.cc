#include "runtime/cli/serve_watch.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>

#include "pager/device_probe.h"
#include "runtime/severity.h"

namespace weir {
namespace {

constexpr double kProbeSeconds = 0.25;
constexpr uint64_t kProbeBytes = 512u << 20;
constexpr size_t kProbeDepth = 16;

void log(Severity severity, const std::string& text) {
    std::fprintf(stderr, "%sweir: %s\n", severity_prefix(severity), text.c_str());
}

// One at a time: a warning that comes back while the command runs starts no second one.
class Recalibration {
  public:
    explicit Recalibration(std::string command) : command_(std::move(command)) {}

    void start(const std::shared_ptr<Recalibration>& self) {
        if (command_.empty() || !idle_.try_acquire()) return;
        const pid_t child = spawn();
        if (child < 0) return idle_.release();
        std::thread([self, child] {
            int status = 0;
            while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
            }
            log(Severity::kNotice, "the recalibration command ended with status " +
                                       std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
            self->idle_.release();
        }).detach();
    }

  private:
    // With no signal blocked, as it would be started by anybody else.
    pid_t spawn() const {
        posix_spawnattr_t attributes;
        ::posix_spawnattr_init(&attributes);
        sigset_t none;
        ::sigemptyset(&none);
        ::posix_spawnattr_setsigmask(&attributes, &none);
        ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        const char* const arguments[] = {"sh", "-c", command_.c_str(), nullptr};
        pid_t child = -1;
        const int error = ::posix_spawn(&child, "/bin/sh", nullptr, &attributes, const_cast<char* const*>(arguments), environ);
        ::posix_spawnattr_destroy(&attributes);
        if (error == 0) return child;
        log(Severity::kError, std::string("the recalibration command cannot be started: ") + std::strerror(error));
        return -1;
    }
    const std::string command_;
    std::binary_semaphore idle_{1};
};

}  // namespace

WatchHook watch_hook(const ServeWatchOptions& options, uint64_t ram_budget, const std::string& streams_from) {
    WatchHook hook;
    hook.ram_budget = ram_budget;
    hook.options.baseline_perplexity = options.baseline_perplexity;
    if (!streams_from.empty()) {
        const pager::File file = pager::File::open(streams_from, pager::IoMode::kAuto);
        hook.options.device_bytes_per_s = pager::probe_device(file, kProbeDepth, kProbeBytes, kProbeSeconds).bytes_per_s;
    }
    hook.change = [recalibration = std::make_shared<Recalibration>(options.recalibrate)](const sched::WarningChange& change) {
        log(change.raised ? Severity::kWarning : Severity::kNotice, (change.raised ? "warning: " : "no longer: ") + change.text);
        if (change.raised && change.warning == sched::Warning::kPerplexity) recalibration->start(recalibration);
    };
    return hook;
}

}  // namespace weir
