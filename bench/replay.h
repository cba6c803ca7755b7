// What a paging policy reads for a trace under a budget. Everything counts in the trace's units.
//
// Belady's optimum gives up what is used farthest in the future. It is exact where all items have one size (MIN, Belady
// 1966: no policy that brings in what it uses reads less). With sizes that differ the true optimum is NP-hard; giving up
// farthest-first until there is room is then a good answer, not a bound.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/paging_trace.h"

namespace weir::bench {

enum class Policy : uint8_t {
    kLru,
    kClock,
    kLfu,      // touches since the start, the older first among equals
    kAgedLfu,  // touches that halve with every kAgedLfuTokens tokens
    kOurs,     // choose_residency() for dense places, GroupResidency for groups, split as in split_budget()
    kBelady,
};
constexpr double kAgedLfuTokens = 64;

const char* policy_name(Policy policy);

struct Budget {
    size_t dense = 0;   // units for dense places, their ring included
    size_t groups = 0;  // units for groups
};

// What every token touches comes first; groups keep what two uses need, one computing and one on its way.
Budget split_budget(const Trace& trace, size_t units);

struct Reads {
    uint64_t units = 0;      // read
    uint64_t for_hints = 0;  // of these, for hints that were not used
    uint64_t tokens = 0;     // in which
};

// Reads after the first `warm_up` tokens. Throws std::runtime_error where `units` is too little for the policy to work
// with: an item, or for ours what the workers hold and the largest use.
Reads replay(const Trace& trace, Policy policy, size_t units, size_t warm_up);

// Frames that ours sets aside for reads in flight: what streams goes through them, so that they keep nothing from one
// token to the next. 0 where all that is dense stays.
size_t ring_units(const Trace& trace, size_t units);

}  // namespace weir::bench
