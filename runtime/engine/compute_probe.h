// How fast this machine decodes when no weight has to be waited for: the matrix kernels on memory that no cache holds,
// with the run's own number of threads: a second of work, for `weir plan`. And the roof above all that, for `weir bench speed`.
//
// Called by one thread, which owns the team for the time of the probe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/engine/forward.h"
#include "runtime/engine/team.h"
#include "runtime/model/model_map.h"

namespace weir {

// A kind of matrix product of the walk: weights of one type, or in planes at one level, that meet activations of one form.
struct ComputePart {
    kernels::Type type = kernels::Type::kF32;
    kernels::Activation form = kernels::Activation::kF32;
    size_t cols = 0;            // of the largest such matrix
    uint64_t bytes = 0;         // of all such matrices of one pass
    uint64_t elements = 0;
    double bytes_per_s = 0;     // filled by the probe
    int level = 0;              // of weights in planes, whose type is nothing then; else 0

    uint64_t row_bytes() const {
        return level == 0 ? kernels::row_bytes(type, cols) : kernels::level_row_bytes(static_cast<kernels::Level>(level), cols);
    }
};

// The parts of one token's walk, largest first.
// expert_share: of the experts' bytes, which a token meets. plan: of a native file.
std::vector<ComputePart> compute_parts(const ModelMap& map, const ActivationForms& forms, double expert_share = 1,
                                       const sched::Plan& plan = {});

struct ComputeProbeOptions {
    double seconds_per_part = 0.15;
    uint64_t group_bytes = 8u << 20;  // that the team walks between two meetings
    uint64_t memory = 128u << 20; // that the probe may take; see probe_memory()
};

// Several times the last cache, as far as `allowed` bytes go.
uint64_t probe_memory(uint64_t allowed);

// Fills bytes_per_s of each part, walked as a decode step does: by units of tickets, every worker packing the input of a
// group for itself, and a meeting at its end. (Without meetings the same kernels gave 1.4 times what a run reaches on a
// busy machine.) Returns the seconds that one more meeting takes.
double probe_compute(const kernels::KernelSet& kernels, Team& team, const ComputeProbeOptions& options,
                     std::span<ComputePart> parts);

// What this machine gives at best, to hold a run's speed against. Both with the team's own workers, for `seconds`.
// Bytes a second of plain reads, as STREAM has them (McCalpin 1995), over `memory` bytes that no cache holds.
double probe_reads(Team& team, uint64_t memory, double seconds);
// Multiplications and additions a second of the kernels' int8 dot products, where all operands lie in the nearest caches and
// codes need no unpacking.
double probe_dots(const kernels::KernelSet& kernels, Team& team, double seconds);

}  // namespace weir
