// How the memory that a run may use is divided: what the process holds already, KV cache and activations first, then the
// frames that weights are paged through. --ram is the whole process and is never exceeded: with no swap, a byte above a
// hard limit is an OOM kill.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/engine/memory_limits.h"
#include "runtime/engine/weight_store.h"

namespace weir {

struct BudgetInput {
    PagingMode mode = PagingMode::kUffd;
    std::optional<uint64_t> ram;          // --ram, bytes
    std::optional<uint64_t> weights_ram;  // --weights-ram, bytes: the frames alone
    MemoryLimits limits;
    uint64_t base = 0;                    // resident already
    uint64_t kv_cache = 0;                // will be touched, none of it is yet
    uint64_t activations = 0;             // likewise
    uint64_t weights = 0;                 // of the model, all of them
    size_t threads = 1;
};

struct Budget {
    uint64_t ram = 0;       // of the whole process
    uint64_t base = 0;
    uint64_t kv_cache = 0;
    uint64_t activations = 0;
    uint64_t reserve = 0;   // code not yet touched, stacks, the allocator, rings
    uint64_t tables = 0;    // page tables for the frames
    uint64_t frames = 0;    // what is left for weights (uffd, advised); 0 for the other modes
};

// What is left for frames where the whole process may take `ram` and the rest stays as it is in `budget`.
uint64_t frames_within(const Budget& budget, uint64_t ram);

// "12.3 MiB", as all messages about memory have it.
std::string mib(uint64_t bytes);

// Throws UsageError with figures where the budget cannot hold what must be in memory.
Budget divide_memory(const BudgetInput& input);

}  // namespace weir
