// What each level of each shard costs, as `weir calibrate` measures it, and what a plan costs by that: the bytes that a token
// reads, and the predicted KL divergence from level 8, which is the sum of its shards' (small errors that know nothing of each
// other add up in their squares, and KL is a square to first order).
//
// Plain data and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedtool/plan.h"

namespace weir::sched {

struct ShardCost {
    std::array<uint64_t, kLevels.size()> bytes = {};  // by level: that a token reads
    std::array<double, kLevels.size()> kl = {};       // nats per position with this shard alone at the level; 0 at 8
};

struct Sensitivity {
    std::string model;   // its fingerprint: a table is of one file
    std::string text;    // of the calibration text
    std::string activations = "int8";  // how they were rounded (weir's --activations)
    size_t windows = 0;  // measured so far
    size_t window_tokens = 0;
    size_t scored_tokens = 0;  // the last of each window
    uint64_t fixed_bytes = 0;  // that a token reads whatever the plan
    std::vector<ShardCost> shards;

    size_t n_layers() const { return shards.empty() ? 0 : (shards.size() - 1) / kModules; }
};

std::string sensitivity_json(const Sensitivity& table);
// Throws std::runtime_error, one line that begins with `name`, for a text that is no such table.
Sensitivity read_sensitivity(const std::string& text, const std::string& name);

// Where measured noise says that fewer bits are better, they are as bad as the more.
void make_monotone(Sensitivity* table);

struct RatedPlan {
    Plan plan;
    uint64_t bytes = 0;
    double kl = 0;  // predicted
};
RatedPlan rate(const Sensitivity& table, const Plan& plan);

// A list of plans, finest first, as files have it. Throws std::runtime_error that begins with `name` for a text that is none.
std::string rated_plans_json(std::span<const RatedPlan> plans);
std::vector<RatedPlan> read_rated_plans(const std::string& text, const std::string& name);

}  // namespace weir::sched
