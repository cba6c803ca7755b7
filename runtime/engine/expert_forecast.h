// How often an expert will be here when a router chooses it, before anything is run: the policy that the pager runs, on routing
// that was recorded or on one that is assumed. Pure and deterministic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pager/group_slots.h"
#include "runtime/engine/expert_trace.h"

namespace weir {

struct ExpertDemand {
    pager::GroupLayout groups;            // empty: a model without experts
    size_t experts = 0;                   // of a layer
    size_t used = 0;                      // by a token, of each layer
    double skew = 0;                      // Zipf's exponent of an expert's popularity in its layer: 0 is uniform
    const ExpertTraceReader* trace = nullptr;  // recorded choices, which then count in the place of the skew

    size_t n_groups() const { return groups.slots.n_extents(); }
    size_t layers() const { return experts == 0 ? 0 : n_groups() / experts; }
    // Read for one expert, mean.
    uint64_t group_bytes() const;
};

// Of the experts that tokens use, the share that is here, with so many slots, once the policy has settled.
double expected_hit_rate(const ExpertDemand& demand, size_t slots);

}  // namespace weir
