// How much memory this process may use: the machine's, and the tightest limit of the cgroups it is in, v1 and v2, at
// every level above it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace weir {

// One memory cgroup that this process is in, directly or by a group below it.
struct CgroupLevel {
    std::string folder;
    bool v1 = false;
    uint64_t limit = UINT64_MAX;  // memory.max, memory.limit_in_bytes: beyond it, the OOM killer
    uint64_t high = UINT64_MAX;   // memory.high (v2): beyond it, the kernel slows the group down and reclaims
    uint64_t usage = 0;
};

struct MemoryLimits {
    uint64_t total = 0;                  // MemTotal
    uint64_t available = 0;              // MemAvailable
    uint64_t cgroup = UINT64_MAX;        // the tightest limit; UINT64_MAX where there is none
    std::string cgroup_name;             // the group that sets it
    std::vector<CgroupLevel> levels;     // every group that is visible here, from our own up

    // What --ram N% is a share of.
    uint64_t whole() const { return cgroup < total ? cgroup : total; }
    // What may be taken without a wish: 80 % of what is available or allowed, so that the rest of the machine lives on.
    uint64_t sensible() const { return (cgroup < available ? cgroup : available) / 5 * 4; }
};

struct SwapState {
    uint64_t total = 0;
    uint64_t free = 0;
    int swappiness = -1;  // vm.swappiness; -1 where it cannot be read
};

// Pressure stall information (Linux 4.20): shares of the last ten seconds, in per cent, in which some or all tasks
// waited for memory. Of the machine, and of our own cgroup where it is counted there.
struct PressureState {
    bool machine = false;
    double some = 0;
    double full = 0;
    std::string cgroup_file;  // memory.pressure of our own group; empty where there is none
};

// root: where /proc and /sys lie; tests give a folder of their own. Throws Error where /proc/meminfo cannot be read.
MemoryLimits read_memory_limits(const std::filesystem::path& root = "/");

SwapState read_swap(const std::filesystem::path& root = "/");
PressureState read_pressure(const std::filesystem::path& root = "/");

// A line "id:controllers:path" of /proc/self/cgroup: our own group in one hierarchy. v2 has no controllers.
struct CgroupLine {
    std::string controllers;  // ",memory,"
    std::string path;
};
std::vector<CgroupLine> cgroup_lines(const std::filesystem::path& root = "/");

// Of this process, in bytes, from /proc/self/status: now, and at most so far.
uint64_t resident_now();
uint64_t resident_peak();
// Of this process: bytes that it caused to be read from storage (/proc/self/io). 0 where the kernel does not count.
uint64_t storage_bytes_read();

}  // namespace weir
