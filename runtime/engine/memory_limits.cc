#include "runtime/engine/memory_limits.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "runtime/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

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

// Walks from the group up to the top of its hierarchy. A container may see its own group as the top: a path that is not
// there is skipped, and the top itself is looked at too.
void tighten(MemoryLimits* limits, const fs::path& top, const std::string& group,
             std::initializer_list<const char*> files) {
    fs::path relative = fs::path(group).relative_path();
    for (;;) {
        const fs::path folder = top / relative;
        for (const char* file : files) {
            const uint64_t limit = limit_in(folder / file);
            if (limit >= limits->cgroup) continue;
            limits->cgroup = limit;
            limits->cgroup_name = folder.string();
        }
        if (relative.empty()) return;
        relative = relative.has_parent_path() ? relative.parent_path() : fs::path();
    }
}

uint64_t own_status(const char* key) { return field("/proc/self/status", key) << 10; }

}  // namespace

MemoryLimits read_memory_limits(const fs::path& root) {
    MemoryLimits limits;
    limits.total = field(root / "proc/meminfo", "MemTotal") << 10;
    limits.available = field(root / "proc/meminfo", "MemAvailable") << 10;
    if (limits.total == 0) throw Error((root / "proc/meminfo").string() + ": no MemTotal; is /proc mounted?");
    if (limits.available == 0) limits.available = limits.total;

    // Lines "id:controllers:path"; v2 has id 0 and no controllers.
    std::ifstream groups(root / "proc/self/cgroup");
    std::string line;
    while (std::getline(groups, line)) {
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        std::string controllers = ",";
        controllers.append(line, first + 1, second - first - 1).push_back(',');
        const std::string path = line.substr(second + 1);
        if (controllers == ",,") {
            for (const char* top : {"sys/fs/cgroup", "sys/fs/cgroup/unified"})
                tighten(&limits, root / top, path, {"memory.max", "memory.high"});
        } else if (controllers.find(",memory,") != std::string::npos) {
            tighten(&limits, root / "sys/fs/cgroup/memory", path, {"memory.limit_in_bytes"});
        }
    }
    return limits;
}

uint64_t resident_now() { return own_status("VmRSS"); }
uint64_t resident_peak() { return own_status("VmHWM"); }
uint64_t storage_bytes_read() { return field("/proc/self/io", "read_bytes"); }

}  // namespace weir
