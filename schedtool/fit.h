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
#include <vector>

#include "schedtool/scheduler.h"
#include "schedtool/token_plans.h"
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

// Plans by token at the least price at which the trace has at most so many bytes a token. A token that was seen seldom counts
// nearly as any other.
TokenPlans fit_token_plans(const TokenTrace& trace, double bytes);

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

// The least mean KL of all ways to give these groups plans with so many bytes a token on average: the lower convex
// hull of all assignments, by its Lagrangian dual (Shoham & Gersho 1988). Fewer bytes than the coarsest plan has
// count as that many.
double least_kl(std::span<const RatedPlan> plans, const Groups& groups, double bytes);

// What a window contributes to a rule that gives each token its plan.
struct WindowSums {
    double tokens = 0, bytes = 0, kl = 0;  // the rule's
    std::vector<double> plans;             // KL of each plan
};

// What a rule is worth: beside the same plans mixed by chance at the same bytes.
struct Worth {
    Cost rule;
    double mixed = 0;  // KL of all_together()
    double low = 0,
           high = 0;  // 95 % of share(), by a paired bootstrap over windows, each draw at its own bytes
    double share() const { return mixed > 0 ? rule.kl / mixed : 1; }
};
Worth worth_of(std::span<const RatedPlan> plans, std::span<const WindowSums> windows);
Worth worth_of(const TokenTrace& trace, const Tuning& tuning);
Worth worth_of(const TokenTrace& trace, const TokenPlans& by_token);

// The least KL at so many bytes by what nobody knows in time, or by fitting to this very trace.
struct Bounds {
    double before = 0;  // by_entropy(): no rule of the last entropy alone is much better
    double own = 0;     // the same of the token's own entropy
    double oracle = 0;  // each_alone()
};
Bounds bounds_of(const TokenTrace& trace, double bytes);

}  // namespace weir::sched
