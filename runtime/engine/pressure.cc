#include "runtime/engine/pressure.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <utility>

#include "runtime/engine/budget.h"
#include "runtime/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// Four looks a second: a process that takes memory at 1 GB/s is seen after 250 MB, and a look costs some 100 us.
constexpr milliseconds kInterval{250};
// An idle process has nothing to lose by a neighbour's wish but its frames. Where the kernel tells when tasks stall, looking is
// only for what might be missed; elsewhere a look a second is some 0.03 % of a core.
constexpr milliseconds kAlarmedInterval{10'000}, kIdleInterval{1000};
// Idle is who has used less than a hundredth of a core, and not been pressed, for so long.
constexpr milliseconds kIdleAfter{2000};
constexpr uint64_t kIdleShare = 100;
// Room that is kept free. Of a cgroup little: who runs us under a limit that is the budget itself means what he says, and
// the budget's own reserve lies within. Of the machine more: others live there, and the kernel reclaims from its own
// watermarks (some tens of MiB) on.
constexpr uint64_t kGroupShare = 512, kLeastGroupRoom = 1u << 20;
constexpr uint64_t kMachineShare = 64, kLeastMachineRoom = 32u << 20;
// Shrinking goes that much further than it must, so that it is not done again at the next look.
constexpr uint64_t kMarginShare = 64;
// Tasks that stall for a tenth of the time make a machine feel slow; PSI's own documentation takes 10 % as an example.
constexpr double kStallShare = 0.10;
constexpr milliseconds kStallTime{1000};
constexpr uint64_t kStallStep = 16;
constexpr uint64_t kNoRoomStep = 8;
constexpr milliseconds kQuiet{10'000}, kLongestQuiet{160'000};
constexpr milliseconds kGrowInterval{1000};
constexpr uint64_t kGrowStep = 32;
constexpr milliseconds kSayInterval{10'000};

// "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345": the last number, microseconds.
std::optional<uint64_t> stall_us(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        const size_t at = line.find("total=");
        if (line.compare(0, 5, "some ") == 0 && at != std::string::npos) return std::strtoull(line.c_str() + at + 6, nullptr, 10);
    }
    return std::nullopt;
}

// The number behind "key " or "key:" in a file of such lines; 0 where it is not there.
uint64_t field(const fs::path& path, const std::string& key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        if (line.compare(0, key.size(), key) != 0 || line.size() <= key.size()) continue;
        if (line[key.size()] == ' ' || line[key.size()] == ':') return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10);
    }
    return 0;
}

// Page cache of a cgroup and those below it.
uint64_t page_cache(const CgroupLevel& level) {
    const fs::path stat = fs::path(level.folder) / "memory.stat";
    const std::string prefix = level.v1 ? "total_" : "";
    return field(stat, prefix + "inactive_file") + field(stat, prefix + "active_file");
}

// The least of what the group may have; of v1 the soft limit too, which is what the kernel takes it back to.
uint64_t limit_of(const CgroupLevel& level) {
    uint64_t limit = std::min(level.limit, level.high);
    if (!level.v1) return limit;
    std::ifstream file(fs::path(level.folder) / "memory.soft_limit_in_bytes");
    uint64_t soft = 0;
    return file >> soft ? std::min(limit, soft) : limit;
}

}  // namespace

PressureSource::PressureSource(fs::path root) : root_(std::move(root)) {
    const PressureState state = read_pressure(root_);
    psi_is_ours_ = !state.cgroup_file.empty();
    if (psi_is_ours_)
        psi_ = state.cgroup_file;
    else if (state.machine)
        psi_ = root_ / "proc/pressure/memory";
}

std::string PressureSource::describe() const {
    return std::string("psi=") + (psi_.empty() ? "none" : psi_is_ours_ ? "cgroup" : "machine");
}

PressureSample PressureSource::sample() const {
    PressureSample s;
    s.swapped = field(root_ / "proc/self/status", "VmSwap") << 10;
    if (!psi_.empty()) s.stall_us = stall_us(psi_);
    MemoryLimits limits;
    try {
        limits = read_memory_limits(root_);
    } catch (const Error&) {
        return s;  // /proc has gone: nothing to go by
    }
    s.total = limits.total;
    s.available = limits.available;
    for (const CgroupLevel& level : limits.levels) {
        const uint64_t limit = limit_of(level);
        if (limit >= limits.total) continue;  // none, or the machine is tighter
        const uint64_t used = level.usage - std::min(level.usage, page_cache(level));
        const uint64_t room = limit - std::min(limit, used);
        if (s.group_limit != 0 && room >= s.group_room) continue;
        s.group_limit = limit;
        s.group_room = room;
        s.group = level.folder;
    }
    return s;
}

PressurePolicy::PressurePolicy(uint64_t wanted, uint64_t grain)
    : wanted_(wanted), grain_(grain), budget_(wanted), quiet_(kQuiet) {}

void PressurePolicy::set_wanted(uint64_t wanted) {
    // Down at once; up at once as well, unless pressure has pushed the budget down and has to let it go first.
    budget_ = pressed() ? std::min(budget_, wanted) : wanted;
    wanted_ = wanted;
}

uint64_t PressurePolicy::decide(const PressureSample& s, milliseconds now) {
    const milliseconds passed = now - last_time_;
    const std::optional<PressureSample> last = std::exchange(last_, s);
    last_time_ = now;

    double stalled = 0;
    if (last && last->stall_us && s.stall_us && passed > milliseconds(0) && *s.stall_us > *last->stall_us)
        stalled = static_cast<double>(*s.stall_us - *last->stall_us) / 1000.0 / static_cast<double>(passed.count());
    stalled_for_ = stalled >= kStallShare ? stalled_for_ + passed : milliseconds(0);

    const uint64_t machine_floor = std::max(kLeastMachineRoom, s.total / kMachineShare);
    const uint64_t group_floor = std::max(kLeastGroupRoom, s.group_limit / kGroupShare);
    const uint64_t machine_missing = s.total == 0 ? 0 : machine_floor - std::min(machine_floor, s.available);
    const uint64_t group_missing = s.group_limit == 0 ? 0 : group_floor - std::min(group_floor, s.group_room);
    const uint64_t swapped_more = last && s.swapped > last->swapped ? s.swapped - last->swapped : 0;
    const uint64_t missing = std::max({machine_missing, group_missing, swapped_more});

    const auto shrink = [&](uint64_t by, std::string why) {
        if (grown_ && now - *grown_ < quiet_) quiet_ = std::min(2 * quiet_, kLongestQuiet);
        grown_.reset();
        trouble_ = now;
        stalled_for_ = milliseconds(0);
        reason_ = std::move(why);
        return budget_ = budget_ - std::min(budget_, by);
    };
    if (missing > 0) {
        const bool none = (group_missing > 0 && s.group_room == 0) || (machine_missing > 0 && s.available == 0);
        const uint64_t by = std::max(missing + budget_ / kMarginShare, none ? budget_ / kNoRoomStep : 0);
        if (missing == group_missing) return shrink(by, mib(s.group_room) + " left in " + s.group);
        if (missing == machine_missing) return shrink(by, mib(s.available) + " available in the machine");
        return shrink(by, mib(s.swapped) + " of this process swapped out");
    }
    if (stalled_for_ >= kStallTime) {
        char why[96];
        std::snprintf(why, sizeof why, "tasks stall for memory, %.0f %% of the time", 100 * stalled);
        return shrink(budget_ / kStallStep, why);
    }
    if (stalled >= kStallShare) trouble_ = now;

    if (!pressed()) {
        quiet_ = kQuiet;
        return budget_;
    }
    if ((trouble_ && now - *trouble_ < quiet_) || (grown_ && now - *grown_ < kGrowInterval)) return budget_;
    // Half of the room beyond the floor and the margin that a later shrink would take: two who share a machine and both
    // grow do not chase each other.
    const uint64_t margin = wanted_ / kMarginShare;
    const uint64_t machine_room = s.available - std::min(s.available, machine_floor + margin);
    const uint64_t group_room = s.group_limit == 0 ? UINT64_MAX : s.group_room - std::min(s.group_room, group_floor + margin);
    const uint64_t by = std::min({wanted_ - budget_, std::max(wanted_ / kGrowStep, grain_), std::min(machine_room, group_room) / 2});
    if (by < grain_) return budget_;
    grown_ = now;
    reason_ = "room again";
    return budget_ += by;
}

PressureMonitor::PressureMonitor(uint64_t budget, uint64_t grain, bool watch, std::vector<BudgetStep> steps, Hooks hooks,
                                 const fs::path& root)
    : watch_(watch),
      steps_(std::move(steps)),
      hooks_(std::move(hooks)),
      source_(root),
      policy_(budget, grain),
      alarm_(root),
      call_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      budget_(budget) {
    if (call_ < 0) throw Error("no eventfd can be had: too many open files?");
    if (watch_ || !steps_.empty()) thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

PressureMonitor::~PressureMonitor() {
    thread_.request_stop();
    (void)::eventfd_write(call_, 1);
    if (thread_.joinable()) thread_.join();
    ::close(call_);
}

void PressureMonitor::serve(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "weir-pressure");
    const auto elapsed = [start = std::chrono::steady_clock::now()] {
        return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
    };
    milliseconds said = -kSayInterval;
    size_t step = 0;
    for (;;) {
        const milliseconds now = elapsed();
        if (step < steps_.size() && steps_[step].at <= now) {
            policy_.set_wanted(steps_[step++].bytes);
            change(policy_.budget(), "asked for", true);
        } else if (watch_) {
            const bool say = now - said >= kSayInterval;
            const uint64_t before = budget();
            change(policy_.decide(source_.sample(), now), policy_.reason(), say);
            if (say && budget() != before) said = now;
        }
        if (!watch_ && step == steps_.size()) return;
        milliseconds next = watch_ ? pause(now) : milliseconds::max();
        if (step < steps_.size()) next = std::min(next, std::max(steps_[step].at - now, milliseconds(1)));
        if (alarm_.wait(call_, next)) busy_until_ = elapsed() + kIdleAfter;
        if (stop.stop_requested()) return;
    }
}

// Until the next look.
milliseconds PressureMonitor::pause(milliseconds now) {
    struct timespec t = {};
    (void)::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    const uint64_t cpu_ns = static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
    const uint64_t passed_ns = static_cast<uint64_t>((now - std::exchange(looked_, now)).count()) * 1'000'000;
    const bool works = cpu_ns - std::exchange(cpu_ns_, cpu_ns) > passed_ns / kIdleShare;
    if (works || policy_.pressed()) busy_until_ = now + kIdleAfter;
    return now < busy_until_ ? kInterval : alarm_.is_set() ? kAlarmedInterval : kIdleInterval;
}

void PressureMonitor::change(uint64_t wanted, const std::string& reason, bool say) {
    const uint64_t before = budget();
    if (wanted == before) return;
    const uint64_t in_force = hooks_.set_budget(wanted);
    policy_.set_in_force(in_force);
    if (in_force == before) return;
    budget_.store(in_force, std::memory_order_relaxed);
    changes_.fetch_add(1, std::memory_order_relaxed);
    if (say && hooks_.on_change) hooks_.on_change(before, in_force, reason);
}

}  // namespace weir
