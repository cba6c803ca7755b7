// Which plan the next token gets: a rung of a ladder of plans, finest first. An unsure token (high entropy, or a first choice
// hardly above the second) brings the next a rung up at once; only several sure ones in a row bring it a rung down. Between the
// two thresholds nothing moves, so that a signal that wavers does not make plans waver with it.
//
// Pure and deterministic: the same signals give the same plans. Used by the decode leader, token by token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedtool/pareto.h"

namespace weir::sched {

// Of the distribution that a token was drawn from: softmax at temperature 1, before any sampler.
struct Signal {
    double entropy = 0;  // nats
    double margin = 0;   // probability of the first choice less that of the second
};

struct SchedulerOptions {
    double raise_above = 2.5;     // nats: unsure from there on
    double lower_below = 1.0;     // and sure up to here
    double unsure_margin = 0.05;  // a margin below it is unsure whatever the entropy
    size_t sure_tokens = 3;       // in a row, for a rung down
};

class Scheduler {
  public:
    // rungs >= 1. first: the rung to begin with.
    Scheduler(size_t rungs, size_t first, const SchedulerOptions& options = {})
        : rungs_(rungs), rung_(first), options_(options) {}

    size_t rung() const { return rung_; }
    uint64_t switches() const { return switches_; }
    // The rung for the token after the one that the signal is of.
    size_t next(const Signal& signal);

  private:
    const size_t rungs_;
    size_t rung_;
    const SchedulerOptions options_;
    size_t sure_ = 0;
    uint64_t switches_ = 0;
};

// A ladder of at most so many rungs from a list of plans (finest first): the finest, the coarsest of at most this predicted KL,
// and what lies between, evenly by bytes.
std::vector<RatedPlan> make_ladder(const std::vector<RatedPlan>& list, size_t rungs, double most_kl);

}  // namespace weir::sched
