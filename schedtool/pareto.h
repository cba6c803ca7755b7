// Plans worth having: for how few bytes how little divergence can be had, by a table of sensitivities; and what to do without
// one. Pure and deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "schedtool/sensitivity.h"

namespace weir::sched {

// The lower convex hull of all plans, finest first: from 8 bits everywhere to 2, each plan one step of one shard below the one
// before it, the steps with the most bytes saved for their divergence first (Shoham & Gersho 1988). No plan of at most as many
// bytes has a lower predicted KL than one of these, and lines between two neighbours lie below all others.
std::vector<RatedPlan> pareto_list(const Sensitivity& table);

// The plan of the lowest predicted KL within so many bytes a token, the coarsest where nothing fits. Between two of the hull's
// lie plans that are better than the coarser one and whatever still fits beside it, above all where one shard has most of the
// bytes, as a large head does. Found by dynamic programming over bytes in 16384 cells (a knapsack with one choice of each
// class: Kellerer, Pferschy & Pisinger 2004, 11.5): no plan of fewer bytes is better by more than its bytes' rounding is worth.
RatedPlan best_within(const Sensitivity& table, uint64_t bytes);

// By the usual practice, finest first, where there is no table: attention of the first quarter of the layers at 8 bits, later
// attention a step above the feed-forward, the head at 6 or 4, later feed-forward lowest.
std::vector<Plan> static_priors(size_t n_layers);

}  // namespace weir::sched
