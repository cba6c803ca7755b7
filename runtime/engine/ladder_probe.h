// What each plan of a ladder makes of each token of a window, beside a reference that reads along: for fitting what
// moves along that ladder. As in score.h only the second half of a window is scored. The first half, the prompt so to
// say, is computed at the first plan whatever the plan of what follows, as `--precision auto` has it.
//
// Called by the owner of the Forward. Throws what a pass throws.
#pragma once

#include <span>
#include <vector>

#include "runtime/engine/auto_precision.h"
#include "runtime/engine/score.h"
#include "runtime/engine/weight_store.h"
#include "schedtool/fit.h"
#include "schedtool/token_trace.h"

namespace weir {

class LadderProbe {
  public:
    // model's store was opened with the plans. rows: of logits, at most, that a pass of either may have.
    LadderProbe(Reader model, WeightStore& store, std::span<const sched::RatedPlan> plans, Reader reference, Team& team,
                size_t window, size_t n_vocab, size_t rows);
    // The first position of a window that is scored, and read as an answer's token.
    static size_t first_scored(size_t window) { return window / 2; }
    static uint64_t bytes(size_t window, size_t n_vocab, size_t n_plans);

    // ids: a window, BOS in place. [scored position][plan], until the next call.
    std::span<const sched::TokenAtPlan> score(std::span<const TokenId> ids);
    // The same window once more, as `--precision auto` computes an answer: token by token, each at the plan that it has there,
    // behind tokens of whatever plans they had. precision: of these plans.
    sched::WindowSums follow(std::span<const TokenId> ids, AutoPrecision* precision);

  private:
    template <typename Row>
    void read(Reader reader, std::span<const TokenId> ids, const Row& row);
    static void prefill(Reader reader, std::span<const TokenId> ids);
    double distance(size_t place, std::span<const float> logits) const;  // from the reference's, nats

    const Reader model_, reference_;
    WeightStore& store_;
    const std::span<const sched::RatedPlan> plans_;
    Team& team_;
    const size_t n_vocab_, rows_;
    std::vector<float> truth_;       // [scored][n_vocab] the reference's logits
    std::vector<double> truth_sum_;  // [scored] log of the sum of their exponentials
    std::vector<sched::TokenAtPlan> found_;
};

}  // namespace weir
