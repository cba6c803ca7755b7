#include "runtime/engine/budget.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "runtime/error.h"

namespace weir {
namespace {

// What a run takes beyond what is counted by name: pages of the program and its libraries that are first touched while
// it decodes, malloc's growth, the pager's tables, embedding rows; and what the kernel charges to a cgroup but not to
// VmHWM (rings, stacks, page tables of the rest). scripts/check_paging.py runs under a hard limit of exactly the budget.
constexpr uint64_t kReserve = 8u << 20;
// Touched part of a thread's stack, its kernel stack and its share of malloc's arenas.
constexpr uint64_t kReservePerThread = 256u << 10;
// One page of page table per 2 MiB huge page of the frames, and as much again for the Region's upper levels.
constexpr uint64_t kTablesShare = 256;
// Of a file mapping, whatever of it is in memory: eight bytes per page, which the kernel keeps once they were used.
constexpr uint64_t kMappingTablesShare = 512;

}  // namespace

std::string mib(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    return text;
}

uint64_t frames_within(const Budget& b, uint64_t ram) {
    const uint64_t fixed = b.base + b.kv_cache + b.activations + b.reserve;
    const uint64_t left = ram - std::min(ram, fixed);
    return left - left / kTablesShare;
}

Budget divide_memory(const BudgetInput& in) {
    Budget b;
    b.base = in.base;
    b.kv_cache = in.kv_cache;
    b.activations = in.activations;
    b.reserve = kReserve + kReservePerThread * (in.threads + 2);
    if (in.mode == PagingMode::kAdvised) b.reserve += in.weights / kMappingTablesShare;
    const uint64_t fixed = b.base + b.kv_cache + b.activations + b.reserve;

    if (in.ram) {
        b.ram = *in.ram;
    } else if (in.weights_ram && pages_by_budget(in.mode)) {
        b.ram = fixed + *in.weights_ram + *in.weights_ram / kTablesShare;
    } else {
        b.ram = in.limits.sensible();
    }

    const std::string parts = "program and vocabulary " + mib(b.base) + ", KV cache " + mib(b.kv_cache) + ", activations " +
                              mib(b.activations) + ", reserve " + mib(b.reserve);
    if (in.mode == PagingMode::kMmap) return b;  // the kernel decides; only a cgroup can limit it
    if (in.mode == PagingMode::kResident) {
        if (in.ram && fixed + in.weights > b.ram) {
            throw UsageError("--paging resident needs " + mib(fixed + in.weights) + " (weights " + mib(in.weights) + ", " +
                             parts + ") and the budget is " + mib(b.ram) + "; raise --ram, or use --paging uffd");
        }
        return b;
    }
    if (fixed >= b.ram) {
        throw UsageError("a budget of " + mib(b.ram) + " does not hold what must be in memory: " + parts +
                         "; raise --ram, or lower -c or -b");
    }
    b.frames = frames_within(b, b.ram);
    if (in.weights_ram) b.frames = std::min(b.frames, *in.weights_ram);
    b.tables = b.frames / kTablesShare;
    return b;
}

}  // namespace weir
