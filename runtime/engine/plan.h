// What a run will come to, before anything is loaded: memory by the run's own budget arithmetic, time by computing with all
// weights resident and reading what cannot stay, side by side. Pure: speeds come in, figures go out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/budget.h"
#include "runtime/engine/expert_forecast.h"

namespace weir {

// What is left of each speed while reads and computing go on together: they share memory bandwidth, and reads take
// processor time as well, most of all where a host serves a virtual disk from the same cores.
struct Together {
    double compute = 1;
    double read = 1;
};

// Seconds that a token takes whose computing and reading begin together: each at its share of the speed until the shorter is
// done, the rest of the other alone; at most one after the other.
double together_s(double compute_s, double read_s, const Together& together);

struct PlanInput {
    BudgetInput budget;            // mode uffd; ram set
    uint64_t image_bytes = 0;      // of the walk, as it is read; without experts
    ExpertDemand experts;
    uint64_t longest_row_bytes = 0;
    uint64_t row_bytes = 0;        // that one token reads of an embedding beside the walk; 0 where they are tied
    size_t granule = 0;            // of reads
    bool copies = false;           // install by copy: part of the ring is staging
    double device_bytes_per_s = 0;
    double compute_s = 0;          // of one token with all weights resident
    Together together;
};

enum class Bound : uint8_t { kCompute, kDevice };
const char* bound_name(Bound bound);

struct Plan {
    Budget budget;
    size_t extent_bytes = 0;
    uint64_t resident_bytes = 0;  // R: pinned
    uint64_t ring_bytes = 0;
    uint64_t expert_bytes = 0;    // of R: slots of experts
    double hit_rate = 1;          // of experts, see expected_hit_rate()
    uint64_t streamed_bytes = 0;  // M - R, and the experts that are expected not to be here: read for every token
    double compute_s = 0;         // of one token, each alone
    double read_s = 0;
    double tokens_per_s = 0;
    double first_token_s = 0;     // of a short prompt: one pass that reads everything
    Bound bound = Bound::kCompute;
};

// Throws UsageError with figures where the budget does not hold what must be in memory.
Plan make_plan(const PlanInput& input);

// The same at another size of the budget; nothing where it does not fit.
std::optional<Plan> plan_at(PlanInput input, uint64_t ram);

// The least budget with which every Extent stays: where more memory gives nothing more.
uint64_t ram_for_all(const PlanInput& input);

// The same model with its walk at `share` of the bytes and computed in compute_s: what other quantisation would give.
PlanInput with_weights(PlanInput input, double share, double compute_s);

}  // namespace weir
