#include "runtime/cli/memory_cgroup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/engine/memory_limits.h"
#include "runtime/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kProbeBytes = 256u << 20;

// Enters the group, takes the scheduler's best weight for the session where that is allowed, so that the rest of the
// machine disturbs less, and becomes the command. $1 is the group's file, or empty.
constexpr const char* kEnter =
    R"([ -z "$1" ] || echo $$ >"$1" || exit 125
(echo -15 >/proc/$$/autogroup) 2>/dev/null
shift
exec "$@")";

// One write, as these files want it. 0 or the errno.
int write_file(const std::string& path, const std::string& text) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int error = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
    ::close(fd);
    return error;
}

std::string read_file(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// Where the memory controller's hierarchy is mounted, and the path of our own group in it.
struct Hierarchy {
    bool v1 = false;
    fs::path top;
    fs::path own;
};

std::optional<Hierarchy> memory_hierarchy() {
    std::optional<Hierarchy> v1, v2;
    std::ifstream mounts("/proc/self/mounts");
    std::string line;
    while (std::getline(mounts, line)) {
        std::istringstream words(line);
        std::string device, folder, kind, flags;
        words >> device >> folder >> kind >> flags;
        if (kind == "cgroup" && flags.append(",").find(",memory,") != std::string::npos) v1 = Hierarchy{true, folder, {}};
        if (kind == "cgroup2" && !v2) v2 = Hierarchy{false, folder, {}};
    }
    std::optional<Hierarchy> found = v1 ? v1 : v2;
    if (!found) return found;
    for (const auto& [controllers, path] : cgroup_lines()) {
        if (controllers == ",," ? !found->v1 : found->v1 && controllers.find(",memory,") != std::string::npos)
            found->own = fs::path(path).relative_path();
    }
    return found;
}

// v2: groups below `parent` have the memory controller, or are given it.
std::string why_no_controller(const fs::path& parent) {
    const std::string control = (parent / "cgroup.subtree_control").string();
    std::istringstream enabled(read_file(control));
    for (std::string controller; enabled >> controller;)
        if (controller == "memory") return "";
    const int error = write_file(control, "+memory");
    return error == 0 ? "" : control + ": memory cannot be enabled: " + std::strerror(error);
}

bool systemd_runs() { return fs::exists("/run/systemd/system"); }

std::string numbered_name() {
    static std::atomic<unsigned> number{0};
    return "weir-bench-" + std::to_string(::getpid()) + "-" + std::to_string(number.fetch_add(1));
}

}  // namespace

const char* LimitPlace::name() const {
    switch (way) {
        case LimitWay::kNone: return "none";
        case LimitWay::kCgroupV1: return "cgroup v1";
        case LimitWay::kCgroupV2: return "cgroup v2";
        case LimitWay::kSystemd: return "systemd-run";
    }
    return "?";
}

LimitPlace find_limit_place() {
    std::string reasons;
    const auto because = [&reasons](const std::string& reason) { reasons += (reasons.empty() ? "" : "; ") + reason; };
    if (const std::optional<Hierarchy> h = memory_hierarchy()) {
        const fs::path own = h->top / h->own;
        std::vector<fs::path> parents = {own};
        if (own.has_parent_path() && own != h->top) parents.push_back(own.parent_path());
        if (parents.back() != h->top) parents.push_back(h->top);
        for (const fs::path& parent : parents) {
            if (!fs::is_directory(parent)) continue;  // a container that sees its own group as the top
            const std::string why = h->v1 ? "" : why_no_controller(parent);
            if (!why.empty()) {
                because(why);
                continue;
            }
            try {
                const LimitPlace place = {h->v1 ? LimitWay::kCgroupV1 : LimitWay::kCgroupV2, parent.string()};
                const MemoryCgroup probe(place, kProbeBytes);
                return place;
            } catch (const Error& e) {
                because(e.what());
            }
        }
    } else {
        because("no cgroup file system with a memory controller is mounted");
    }
    if (systemd_runs()) return {LimitWay::kSystemd, ""};
    because("systemd does not run here");
    throw Error("no hard memory limit can be set: " + reasons);
}

MemoryCgroup::MemoryCgroup(const LimitPlace& place, uint64_t limit_bytes)
    : place_(place), limit_bytes_(limit_bytes), name_(numbered_name()) {
    if (place.way == LimitWay::kNone || place.way == LimitWay::kSystemd) return;
    const bool v1 = place.way == LimitWay::kCgroupV1;
    folder_ = place.parent + "/" + name_;
    if (::mkdir(folder_.c_str(), 0755) != 0)
        throw Error("no memory cgroup can be made in " + place.parent + ": " + std::strerror(errno));
    const std::string limit = std::to_string(limit_bytes);
    int error = write_file(file(v1 ? "memory.limit_in_bytes" : "memory.max"), limit);
    // No swap beside it: a weight that is swapped out would be read from a place that no figure shows.
    const std::string swap = file(v1 ? "memory.memsw.limit_in_bytes" : "memory.swap.max");
    if (error == 0 && fs::exists(swap)) error = write_file(swap, v1 ? limit : "0");
    if (error == 0) return;
    (void)::rmdir(folder_.c_str());
    throw Error("the memory limit of " + folder_ + " cannot be set: " + std::strerror(error));
}

MemoryCgroup::~MemoryCgroup() {
    if (folder_.empty()) return;
    for (int tries = 0; tries < 200; ++tries) {  // a group is busy for a moment after its last process is gone
        if (remove()) return;
        ::usleep(25'000);
    }
}

bool MemoryCgroup::remove() const {
    if (::rmdir(folder_.c_str()) == 0 || errno == ENOENT) return true;
    std::istringstream pids(read_file(file("cgroup.procs")));
    for (pid_t pid = 0; pids >> pid;)
        if (pid > 0) (void)::kill(pid, SIGKILL);
    return false;
}

std::vector<std::string> MemoryCgroup::inside(const std::vector<std::string>& command) const {
    std::vector<std::string> out;
    if (place_.way == LimitWay::kSystemd) {
        out = {"systemd-run", "--scope", "--quiet", "--collect", "--unit=" + name_, "-p",
               "MemoryMax=" + std::to_string(limit_bytes_), "-p", "MemorySwapMax=0"};
        if (::geteuid() != 0) out.push_back("--user");
        out.push_back("--");
    }
    for (const char* word : {"/bin/sh", "-c", kEnter, "weir-bench"}) out.emplace_back(word);
    out.push_back(folder_.empty() ? "" : file("cgroup.procs"));
    out.insert(out.end(), command.begin(), command.end());
    return out;
}

std::optional<uint64_t> MemoryCgroup::peak_bytes() const {
    if (folder_.empty()) return std::nullopt;
    std::ifstream peak(file(place_.way == LimitWay::kCgroupV1 ? "memory.max_usage_in_bytes" : "memory.peak"));
    uint64_t bytes = 0;
    return peak >> bytes ? std::optional(bytes) : std::nullopt;
}

uint64_t MemoryCgroup::oom_kills() const {
    if (folder_.empty()) return 0;
    std::ifstream events(file(place_.way == LimitWay::kCgroupV1 ? "memory.oom_control" : "memory.events"));
    std::string key;
    uint64_t value = 0;
    while (events >> key >> value)
        if (key == "oom_kill") return value;
    return 0;
}

}  // namespace weir
