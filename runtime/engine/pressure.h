// Gives memory back before the kernel takes it. A sample says how much room there is, in the machine and in every memory
// cgroup above us, and whether tasks stall for memory; a policy makes a budget of it; a monitor does both four times a
// second and tells the store. While the process does nothing and nothing presses it looks rarely, and has the kernel wake it.
//
// The kernel can take nothing from frames but by swapping or killing, so it is ours to give. Page cache it can take, so
// that counts as room.
// Sources: Documentation/accounting/psi.rst, admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/memory.rst.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/memory_limits.h"
#include "runtime/engine/pressure_alarm.h"

namespace weir {

struct PressureSample {
    uint64_t total = 0;               // MemTotal
    uint64_t available = 0;           // MemAvailable
    uint64_t group_limit = 0;         // of the cgroup with the least room; 0 where no cgroup has a limit
    uint64_t group_room = 0;          // what it leaves: limit less usage, page cache not counted as used
    std::string group;                // its name
    std::optional<uint64_t> stall_us; // time in which some task stalled for memory, so far (PSI); of our cgroup, or the machine's
    uint64_t swapped = 0;             // of this process
};

// Where the numbers are: looked up once. root: where /proc and /sys lie; tests give a folder of their own.
class PressureSource {
  public:
    explicit PressureSource(std::filesystem::path root = "/");
    PressureSample sample() const;
    // "psi=cgroup", "psi=machine", "psi=none": what there is to look at besides room.
    std::string describe() const;

  private:
    std::filesystem::path root_;
    std::filesystem::path psi_;  // empty where the kernel has none
    bool psi_is_ours_ = false;
};

// From samples to a budget, in bytes of weights. Pure.
//
// Short of room: down by what is missing and a margin, at once; no room at all: by an eighth, as nobody knows how much is
// missing. Tasks stall for memory for a second although there seems
// to be room (somebody else's limit, or memory that looks available and is not): down by a sixteenth, once a second. All
// quiet for ten seconds: up by a thirty-second of the wish, once a second, never into the margin. Growth that turns out to
// be too much doubles the time of quiet before the next, up to 160 seconds, so that two neighbours do not swing.
class PressurePolicy {
  public:
    // wanted: what the user allows. grain: less than that is no change.
    PressurePolicy(uint64_t wanted, uint64_t grain);
    void set_wanted(uint64_t wanted);
    // now: since any fixed moment; ascends. The budget from now on.
    uint64_t decide(const PressureSample& sample, std::chrono::milliseconds now);
    // Told what is in force instead, where the store could not follow so far.
    void set_in_force(uint64_t budget) { budget_ = budget; }

    uint64_t budget() const { return budget_; }
    // Less than is wanted, by more than rounding.
    bool pressed() const { return budget_ + grain_ <= wanted_; }
    // Why the last change: "12.0 MiB left in /sys/fs/cgroup/a", "tasks stalled for memory 24 % of the time", "room again".
    const std::string& reason() const { return reason_; }

  private:
    uint64_t wanted_;
    const uint64_t grain_;
    uint64_t budget_;
    std::string reason_;
    std::optional<PressureSample> last_;
    std::chrono::milliseconds last_time_{0};
    std::chrono::milliseconds stalled_for_{0};
    std::optional<std::chrono::milliseconds> trouble_;  // when there was any, last
    std::optional<std::chrono::milliseconds> grown_;    // likewise
    std::chrono::milliseconds quiet_;                   // that growth waits for
};

// A wish at a moment of the run: tests and soaks change the budget from outside with these.
struct BudgetStep {
    std::chrono::milliseconds at;
    uint64_t bytes;  // of weights
};

class PressureMonitor {
  public:
    struct Hooks {
        // Any number of bytes of weights; returns what is in force.
        std::function<uint64_t(uint64_t)> set_budget;
        // A change, or several within ten seconds: from, to, why.
        std::function<void(uint64_t, uint64_t, const std::string&)> on_change;
    };
    // watch: react to pressure; without, only the steps count. steps ascend by time, which begins now.
    // grain: in which the store follows.
    PressureMonitor(uint64_t budget, uint64_t grain, bool watch, std::vector<BudgetStep> steps, Hooks hooks,
                    const std::filesystem::path& root = "/");
    ~PressureMonitor();
    PressureMonitor(const PressureMonitor&) = delete;
    PressureMonitor& operator=(const PressureMonitor&) = delete;

    const PressureSource& source() const { return source_; }
    uint64_t budget() const { return budget_.load(std::memory_order_relaxed); }
    uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

  private:
    void serve(const std::stop_token& stop);
    std::chrono::milliseconds pause(std::chrono::milliseconds now);
    void change(uint64_t wanted, const std::string& reason, bool say);

    const bool watch_;
    const std::vector<BudgetStep> steps_;
    const Hooks hooks_;
    const PressureSource source_;
    PressurePolicy policy_;          // the monitor's thread alone, as what follows
    PressureAlarm alarm_;
    std::chrono::milliseconds busy_until_{0};  // looks often until then
    uint64_t cpu_ns_ = 0;            // of the process, at the last look
    std::chrono::milliseconds looked_{0};
    const int call_;                 // an eventfd that ends the thread's sleep
    std::atomic<uint64_t> budget_;
    std::atomic<uint64_t> changes_{0};
    std::jthread thread_;
};

}  // namespace weir
