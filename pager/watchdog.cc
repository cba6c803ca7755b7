#include "pager/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace weir::pager {
namespace {

// State and CPU time of a thread of this process, from /proc/self/task/ID/stat: "1 (name) S ppid ... utime stime ...".
void read_thread(int id, Look* look) {
    char path[64];
    (void)std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (::access("/proc/self/task", F_OK) == 0) look->state = 0;
        return;  // without /proc every pager looks asleep, and still has to answer
    }
    char text[512];
    const ssize_t n = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    if (n <= 0) return;
    text[n] = 0;
    const char* const end_of_name = std::strrchr(text, ')');
    unsigned long user = 0, system = 0;
    if (end_of_name == nullptr ||
        std::sscanf(end_of_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &look->state, &user, &system) != 3)
        return;
    look->cpu_ticks = user + system;
    if (look->state == 'Z' || look->state == 'X') look->state = 0;
}

bool is_readable(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    return ::poll(&one, 1, 0) > 0 && (one.revents & POLLIN) != 0;
}

}  // namespace

Judge::Verdict Judge::judge(const Look& look) {
    const Look before = last_;
    last_ = look;
    if (look.waited_for && look.state == 0) return Verdict::kGone;
    const bool reads_wait = look.waited_for && look.reads_under_way > 0 && look.reads_landed == before.reads_landed;
    slow_ = reads_wait ? slow_ + 1 : 0;
    if (!look.waited_for || look.turns != before.turns) {
        silent_ = 0;
    } else {
        const bool starved = look.state == 'R' && look.cpu_ticks == before.cpu_ticks;
        if (!starved && look.state != 'D') ++silent_;
        if (silent_ > stuck_looks_) return Verdict::kStuck;
    }
    if (slow_ >= slow_looks_ && (slow_ - slow_looks_) % (6 * slow_looks_) == 0) return Verdict::kSlow;
    return look.waited_for && look.turns == before.turns ? Verdict::kPing : Verdict::kWell;
}

Watchdog::Watchdog(PagerShared* shared, uint32_t stuck_ms, uint32_t slow_ms, Hooks hooks)
    : shared_(shared), judge_(stuck_ms, slow_ms), hooks_(std::move(hooks)) {
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

Watchdog::~Watchdog() {
    thread_.request_stop();
    (void)::eventfd_write(shared_->watch_fd, 1);
    thread_.join();
}

Look Watchdog::look() const {
    Look look;
    look.turns = shared_->turns.load(std::memory_order_relaxed);
    look.reads_under_way = shared_->reads_under_way.load(std::memory_order_relaxed);
    look.reads_landed = shared_->counters.reads.load(std::memory_order_relaxed);
    look.waited_for = shared_->waiting.load(std::memory_order_relaxed) > 0 ||
                      shared_->faults_open.load(std::memory_order_relaxed) > 0 || is_readable(hooks_.uffd());
    if (look.waited_for) read_thread(shared_->thread_id.load(std::memory_order_acquire), &look);
    // An orderly end, which its destructor waits for, says so before the thread goes.
    if (shared_->thread_id.load(std::memory_order_acquire) == 0) look.waited_for = false;
    return look;
}

// Until there is a reason to look often again; false where there is none after the time.
bool Watchdog::rest() const {
    shared_->watch_rests.store(true, std::memory_order_seq_cst);
    bool reason = shared_->waiting.load(std::memory_order_seq_cst) != 0;
    if (!reason) {
        struct pollfd reasons[] = {{shared_->watch_fd, POLLIN, 0}, {hooks_.uffd(), POLLIN, 0}};
        reason = ::poll(reasons, 2, static_cast<int>(kRestMs)) != 0;
    }
    shared_->watch_rests.store(false, std::memory_order_seq_cst);
    return reason;
}

void Watchdog::watch(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "weir-watch");
    char text[256];
    uint64_t turns = 0;
    for (uint32_t still = 0; !stop.stop_requested();) {
        if (still >= kLooksBeforeRest) still = rest() ? 0 : kLooksBeforeRest - 1;
        if (stop.stop_requested()) return;
        eventfd_t calls;
        (void)::eventfd_read(shared_->watch_fd, &calls);
        struct pollfd end = {shared_->watch_fd, POLLIN, 0};
        (void)::poll(&end, 1, static_cast<int>(kLookMs));
        if (stop.stop_requested()) return;
        const Look seen = look();
        still = seen.waited_for || seen.turns != turns ? 0 : still + 1;
        turns = seen.turns;
        switch (judge_.judge(seen)) {
            case Judge::Verdict::kWell: break;
            case Judge::Verdict::kPing: hooks_.ping(); break;
            case Judge::Verdict::kSlow:
                (void)std::snprintf(text, sizeof text, "the storage is slow: none of %zu reads has completed for %.1f s; waiting",
                                    seen.reads_under_way, judge_.slow_for_ms() / 1000.0);
                hooks_.on_notice(text);
                hooks_.ping();
                break;
            case Judge::Verdict::kGone: hooks_.on_stuck("the pager thread has ended, and threads wait for weights"); break;
            case Judge::Verdict::kStuck:
                (void)std::snprintf(text, sizeof text, "the pager thread does not answer any more (state %c), and threads wait for weights",
                                    seen.state);
                hooks_.on_stuck(text);
                break;
        }
        hooks_.tick();
    }
}

}  // namespace weir::pager
