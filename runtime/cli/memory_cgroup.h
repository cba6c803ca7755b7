// Hard memory limits for programs that are started here: a memory cgroup of our own (v1 or v2), or a scope that systemd
// makes. A program enters before it is executed, so that everything it touches is charged to the limit; pages that
// another group has in the page cache already are not, and have to be dropped first.
//
// For the main thread. Throws Error with one line where something cannot be had.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weir {

enum class LimitWay : uint8_t { kNone, kCgroupV1, kCgroupV2, kSystemd };

// How a limit is set on this machine, and the folder in which groups are made.
struct LimitPlace {
    LimitWay way = LimitWay::kNone;
    std::string parent;

    const char* name() const;
};

// The first way that works, tried by making a group and setting its limit: below our own group, beside it, at the top of
// the hierarchy, by systemd-run. Throws Error with the reason of each.
LimitPlace find_limit_place();

// One group, there while the object is. With LimitWay::kNone it is no group at all, and commands run where we are.
class MemoryCgroup {
  public:
    MemoryCgroup(const LimitPlace& place, uint64_t limit_bytes);
    // Ends what still runs inside and removes the group.
    ~MemoryCgroup();
    MemoryCgroup(const MemoryCgroup&) = delete;
    MemoryCgroup& operator=(const MemoryCgroup&) = delete;

    // What to execute, in a session of its own, so that `command` runs inside.
    std::vector<std::string> inside(const std::vector<std::string>& command) const;

    // Bytes charged at most; nothing where the kernel does not say (v2 before 5.19), or the group has gone (systemd).
    std::optional<uint64_t> peak_bytes() const;
    // Processes that the limit has killed, as far as the kernel says.
    uint64_t oom_kills() const;

  private:
    std::string file(const char* name) const { return folder_ + "/" + name; }
    bool remove() const;

    LimitPlace place_;
    uint64_t limit_bytes_;
    std::string name_;
    std::string folder_;
};

}  // namespace weir
