#include "runtime/engine/memory_limits.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <utility>

#include "runtime/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// Where version 2 is mounted: alone, or beside version 1.
constexpr const char* kUnifiedTops[] = {"sys/fs/cgroup", "sys/fs/cgroup/unified"};

// The number behind "Key:" in a file of such lines, in the file's own unit; 0 where it is not there.
uint64_t field(const fs::path& path, const std::string& key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        if (line.compare(0, key.size(), key) != 0 || line.size() <= key.size() || line[key.size()] != ':') continue;
        return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10);
    }
    return 0;
}

// A limit file's number; UINT64_MAX for "max", for v1's "no limit" (a number near 2^63) and where there is no file.
uint64_t limit_in(const fs::path& path) {
    std::ifstream file(path);
    uint64_t value = 0;
    if (!(file >> value) || value >= (uint64_t{1} << 60)) return UINT64_MAX;
    return value;
}

void note(MemoryLimits* limits, uint64_t limit, const fs::path& folder) {
    if (limit >= limits->cgroup) return;
    limits->cgroup = limit;
    limits->cgroup_name = folder.string();
}

// Walks from the group up to the top of its hierarchy. A container may see its own group as the top: a path that is not
// there is skipped, and the top itself is looked at too.
void tighten(MemoryLimits* limits, const fs::path& top, const std::string& group, bool v1) {
    fs::path relative = fs::path(group).relative_path();
    for (;;) {
        CgroupLevel level;
        const fs::path folder = relative.empty() ? top : top / relative;
        level.folder = folder.string();
        level.v1 = v1;
        level.limit = limit_in(folder / (v1 ? "memory.limit_in_bytes" : "memory.max"));
        if (!v1) level.high = limit_in(folder / "memory.high");
        const uint64_t usage = limit_in(folder / (v1 ? "memory.usage_in_bytes" : "memory.current"));
        level.usage = usage == UINT64_MAX ? 0 : usage;
        note(limits, level.limit, folder);
        note(limits, level.high, folder);
        if (level.limit != UINT64_MAX || level.high != UINT64_MAX || usage != UINT64_MAX) limits->levels.push_back(level);
        if (relative.empty()) return;
        relative = relative.has_parent_path() ? relative.parent_path() : fs::path();
    }
}

uint64_t own_status(const char* key) { return field("/proc/self/status", key) << 10; }

}  // namespace

std::vector<CgroupLine> cgroup_lines(const fs::path& root) {
    std::vector<CgroupLine> lines;
    std::ifstream groups(root / "proc/self/cgroup");
    std::string line;
    while (std::getline(groups, line)) {
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        std::string controllers = ",";
        controllers.append(line, first + 1, second - first - 1).push_back(',');
        lines.push_back({std::move(controllers), line.substr(second + 1)});
    }
    return lines;
}

MemoryLimits read_memory_limits(const fs::path& root) {
    MemoryLimits limits;
    limits.total = field(root / "proc/meminfo", "MemTotal") << 10;
    limits.available = field(root / "proc/meminfo", "MemAvailable") << 10;
    if (limits.total == 0) throw Error((root / "proc/meminfo").string() + ": no MemTotal; is /proc mounted?");
    if (limits.available == 0) limits.available = limits.total;

    for (const auto& [controllers, path] : cgroup_lines(root)) {
        if (controllers == ",,") {
            for (const char* top : kUnifiedTops) tighten(&limits, root / top, path, false);
        } else if (controllers.find(",memory,") != std::string::npos) {
            tighten(&limits, root / "sys/fs/cgroup/memory", path, true);
        }
    }
    return limits;
}

SwapState read_swap(const fs::path& root) {
    SwapState swap;
    swap.total = field(root / "proc/meminfo", "SwapTotal") << 10;
    swap.free = field(root / "proc/meminfo", "SwapFree") << 10;
    std::ifstream file(root / "proc/sys/vm/swappiness");
    if (int value = 0; file >> value) swap.swappiness = value;
    return swap;
}

PressureState read_pressure(const fs::path& root) {
    PressureState pressure;
    // "some avg10=0.12 avg60=...", then "full avg10=..."; a kernel that counts but was booted with psi=0 refuses the read.
    std::ifstream file(root / "proc/pressure/memory");
    std::string line;
    while (std::getline(file, line)) {
        pressure.machine |= std::sscanf(line.c_str(), "some avg10=%lf", &pressure.some) == 1;
        (void)std::sscanf(line.c_str(), "full avg10=%lf", &pressure.full);
    }
    for (const auto& [controllers, path] : cgroup_lines(root)) {
        if (controllers != ",,") continue;
        for (const char* top : kUnifiedTops) {
            const fs::path own = root / top / fs::path(path).relative_path() / "memory.pressure";
            if (pressure.cgroup_file.empty() && std::ifstream(own).peek() != EOF) pressure.cgroup_file = own.string();
        }
    }
    return pressure;
}

uint64_t resident_now() { return own_status("VmRSS"); }
uint64_t resident_peak() { return own_status("VmHWM"); }
uint64_t storage_bytes_read() { return field("/proc/self/io", "read_bytes"); }

}  // namespace weir
