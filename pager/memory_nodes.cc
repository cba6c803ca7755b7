#include "pager/memory_nodes.h"

#include <numa.h>
#include <numaif.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace weir::pager {
namespace {

// A list longer than that is no list of processors.
constexpr unsigned kMostCpus = 1u << 16;

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// "Node 0 MemTotal:       32768 kB"
uint64_t node_memory(const std::string& folder) {
    std::ifstream file(folder + "/meminfo");
    std::string line;
    while (std::getline(file, line)) {
        unsigned id = 0;
        unsigned long long kib = 0;
        if (std::sscanf(line.c_str(), "Node %u MemTotal: %llu kB", &id, &kib) == 2) return uint64_t{kib} << 10;
    }
    return 0;
}

}  // namespace

std::vector<unsigned> parse_list(const std::string& text) {
    std::vector<unsigned> out;
    const char* at = text.c_str();
    while (*at >= '0' && *at <= '9') {
        char* end = nullptr;
        const unsigned long first = std::strtoul(at, &end, 10);
        unsigned long last = first;
        if (*end == '-') last = std::strtoul(end + 1, &end, 10);
        for (unsigned long n = first; n <= last && n < kMostCpus; ++n) out.push_back(static_cast<unsigned>(n));
        at = *end == ',' ? end + 1 : end;
    }
    return out;
}

std::vector<NumaNode> numa_nodes(const char* root) {
    const std::string top = std::string(root) + "/sys/devices/system/node";
    std::vector<NumaNode> nodes;
    for (const unsigned id : parse_list(first_line(top + "/online"))) {
        const std::string folder = top + "/node" + std::to_string(id);
        nodes.push_back({id, node_memory(folder), parse_list(first_line(folder + "/cpulist"))});
    }
    if (nodes.empty()) nodes.push_back({});
    return nodes;
}

std::vector<unsigned> nodes_for_frames(const std::vector<NumaNode>& nodes, const std::vector<unsigned>& cpus) {
    if (nodes.size() < 2) return {};
    std::vector<unsigned> near, all;
    for (const NumaNode& node : nodes) {
        if (node.memory == 0) continue;
        all.push_back(node.id);
        const bool ours = std::any_of(node.cpus.begin(), node.cpus.end(), [&](unsigned cpu) {
            return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end();
        });
        if (ours) near.push_back(node.id);
    }
    return near.empty() ? all : near;
}

std::vector<unsigned> own_cpus() {
    std::vector<unsigned> cpus;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;  // more processors than a set holds: all nodes count
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    return cpus;
}

int interleave(void* address, size_t bytes, const std::vector<unsigned>& nodes) noexcept {
    if (nodes.empty()) return 0;
    if (::numa_available() < 0) return ENOSYS;
    struct bitmask* const mask = ::numa_allocate_nodemask();
    if (mask == nullptr) return ENOMEM;
    for (const unsigned node : nodes) ::numa_bitmask_setbit(mask, node);  // one beyond the mask is left out
    // MPOL_INTERLEAVE falls back to other nodes where one is full. (mbind(2); numa_interleave_memory would print.)
    const int error = ::mbind(address, bytes, MPOL_INTERLEAVE, mask->maskp, mask->size + 1, 0) == 0 ? 0 : errno;
    ::numa_bitmask_free(mask);
    return error;
}

}  // namespace weir::pager
