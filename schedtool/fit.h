// Thresholds for the scheduler, fitted on a recorded trace, and what they are worth: beside the same plans mixed by
// chance, and beside what knows more than a scheduler can.
//
// A trace has each token's divergence at each plan with all tokens before it, back to the prompt, at the same plan. A
// scheduler's tokens stand behind others of several plans: its figures are those of a simulation.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "schedtool/scheduler.h"
#include "schedtool/token_trace.h"

namespace weir::sched {

// Means per token.
struct Cost {
    double bytes = 0;
    double kl = 0;
};
Cost cost_of_plan(const TokenTrace& trace, size_t plan);

// A scheduler that moves between two plans of the ladder and those between them.
struct Tuning {
    SchedulerOptions options;
    size_t first = 0, last = 0;  // both included
};
// Each window begins in the middle, as an answer does.
Cost cost_of(const TokenTrace& trace, const Tuning& tuning);

// The tuning of the least KL with at most so many bytes a token: of the whole ladder, and of its pieces of two to four plans
// around these bytes, by a grid over quantiles of the signals and then one threshold after the other while that helps. Where
// none has so few bytes: the one of the fewest.
Tuning fit_scheduler(const TokenTrace& trace, double bytes);

// Tokens that get their plans together, as if by chance in certain shares.
struct Groups {
    std::vector<double> tokens;  // of each
    std::vector<double> kl;      // [group][plan] sums
};
Groups all_together(const TokenTrace& trace);  // the plans mixed by chance
Groups each_alone(const TokenTrace& trace);    // an oracle: each token's divergence is known before it is computed
// Of about equal size, by the entropy of the token before (at the finest plan), or by the token's own, which nobody
// knows in time.
enum class Whose { kBefore, kOwn };
Groups by_entropy(const TokenTrace& trace, Whose whose, size_t groups);

// What it costs to have read a token: its divergence over that of the mean token, a mean over plans; 1 of a token that
// the trace lacks, and nearly so of one that it has seldom. Known before the token's pass.
class TokenCosts {
  public:
    explicit TokenCosts(const TokenTrace& trace);
    double of(int32_t id) const;

  private:
    std::unordered_map<int32_t, double> costs_;
};
// Of about equal size, by what it costs to have read the token.
Groups by_input(const TokenTrace& trace, const TokenCosts& costs, size_t groups);

// The least mean KL of all ways to give these groups plans with so many bytes a token on average: the lower convex
// hull of all assignments, by its Lagrangian dual (Shoham & Gersho 1988). Fewer bytes than the coarsest plan has
// count as that many.
double least_kl(std::span<const RatedPlan> plans, const Groups& groups, double bytes);

// What a scheduler is worth on a trace: it and others at the same bytes.
struct Worth {
    Cost scheduler;
    double mixed = 0;   // KL of all_together()
    double before = 0;  // by_entropy(), fitted to this very trace: no rule of the last entropy alone is much better
    double own = 0;     // the same of the token's own entropy
    double input = 0;   // by_input()
    double oracle = 0;  // each_alone()
    double low = 0,
           high = 0;  // 95 % of scheduler.kl / mixed, by a paired bootstrap over windows, each draw at its own bytes
};
Worth worth_of(const TokenTrace& trace, const Tuning& tuning, const TokenCosts& costs);

}  // namespace weir::sched
