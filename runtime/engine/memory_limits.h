// How much memory this process may use: the machine's, and the tightest limit of the cgroups it is in, v1 and v2, at
// every level above it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace weir {

struct MemoryLimits {
    uint64_t total = 0;                  // MemTotal
    uint64_t available = 0;              // MemAvailable
    uint64_t cgroup = UINT64_MAX;        // the tightest limit; UINT64_MAX where there is none
    std::string cgroup_name;             // the group that sets it

    // What --ram N% is a share of.
    uint64_t whole() const { return cgroup < total ? cgroup : total; }
    // What may be taken without a wish: 80 % of what is available or allowed, so that the rest of the machine lives on.
    uint64_t sensible() const { return (cgroup < available ? cgroup : available) / 5 * 4; }
};

// root: where /proc and /sys lie; tests give a folder of their own. Throws Error where /proc/meminfo cannot be read.
MemoryLimits read_memory_limits(const std::filesystem::path& root = "/");

// Of this process, in bytes, from /proc/self/status: now, and at most so far.
uint64_t resident_now();
uint64_t resident_peak();
// Of this process: bytes that it caused to be read from storage (/proc/self/io). 0 where the kernel does not count.
uint64_t storage_bytes_read();

}  // namespace weir
