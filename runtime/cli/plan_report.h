// What `weir plan` has worked out, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/compute_probe.h"
#include "runtime/engine/plan.h"

namespace weir {

// Shares of the budget, in per cent, that somebody wants to give to activations (with the KV cache) and to weights.
struct Tiers {
    double activations = 0;
    double weights = 0;
};

struct PlanOption {
    std::string name;          // "4.00 GiB", "Q3_K"
    std::optional<Plan> plan;  // nothing where it does not fit
};

struct TiersOutcome {
    Tiers tiers;
    uint64_t activations_bytes = 0;  // of the tier
    uint64_t weights_bytes = 0;
    size_t context = 0;              // tokens that the activations' tier would hold
    std::optional<Plan> plan;        // nothing where what is needed does not fit into its tier
};

struct PlanReport {
    std::string model;
    std::string shape;               // "28 layers of 3072"
    uint64_t weights_bytes = 0;
    size_t threads = 0;
    size_t context = 0;
    size_t batch = 0;
    std::string experts;             // what is known of them; empty where there are none
    std::string kernels;
    std::string device;              // where the device's speed is from
    double device_bytes_per_s = 0;
    double compute_bytes_per_s = 0;  // of the whole walk
    Together together;
    std::vector<ComputePart> parts;
    std::string note;                // what is in the way of a plan that holds; empty as a rule
    Plan plan;
    uint64_t ram_for_all = 0;
    std::vector<PlanOption> more_ram;
    std::vector<PlanOption> fewer_bits;
    std::optional<TiersOutcome> tiers;
};

std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);

}  // namespace weir
