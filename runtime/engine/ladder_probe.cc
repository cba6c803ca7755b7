#include "runtime/engine/ladder_probe.h"

#include <algorithm>

#include "runtime/engine/generate.h"

namespace weir {

LadderProbe::LadderProbe(Reader model, WeightStore& store, std::span<const sched::RatedPlan> plans, Reader reference,
                         Team& team, size_t window, size_t n_vocab, size_t rows)
    : model_(model),
      reference_(reference),
      store_(store),
      plans_(plans),
      team_(team),
      n_vocab_(n_vocab),
      rows_(rows),
      truth_(scored_per_window(window) * n_vocab),
      truth_sum_(scored_per_window(window)),
      found_(scored_per_window(window) * plans.size()) {}

uint64_t LadderProbe::bytes(size_t window, size_t n_vocab, size_t n_plans) {
    return scored_per_window(window) *
           (n_vocab * sizeof(float) + sizeof(double) + n_plans * sizeof(sched::TokenAtPlan));
}

void LadderProbe::prefill(Reader reader, std::span<const TokenId> ids) {
    reader.cache->set_length(0);
    for (size_t at = 0, n = 0; at < ids.size(); at += n) {
        n = std::min(reader.forward->max_batch(), ids.size() - at);
        reader.forward->pass(ids.subspan(at, n), 0, true);
    }
}

// The team shares out the rows: row(place, logits).
template <typename Row>
void LadderProbe::read(Reader reader, std::span<const TokenId> ids, const Row& row) {
    for (size_t at = 0, n = 0; at < ids.size(); at += n) {
        n = std::min(rows_, ids.size() - at);
        const std::span<const float> logits = reader.forward->pass(ids.subspan(at, n), n, true);
        team_.run([&](size_t worker) {
            for (size_t t = worker; t < n; t += team_.size()) row(at + t, logits.subspan(t * n_vocab_, n_vocab_));
        });
    }
}

double LadderProbe::distance(size_t place, std::span<const float> logits) const {
    const std::span<const float> truth(truth_.data() + place * n_vocab_, n_vocab_);
    return kl_divergence(truth, truth_sum_[place], logits, log_sum_exp(logits));
}

std::span<const sched::TokenAtPlan> LadderProbe::score(std::span<const TokenId> ids) {
    const size_t first = first_scored(ids.size());
    const std::span<const TokenId> prompt = ids.first(first), rest = ids.subspan(first, truth_sum_.size());
    prefill(reference_, prompt);
    read(reference_, rest, [&](size_t place, std::span<const float> logits) {
        std::copy(logits.begin(), logits.end(), truth_.begin() + static_cast<std::ptrdiff_t>(place * n_vocab_));
        truth_sum_[place] = log_sum_exp(logits);
    });
    for (size_t p = 0; p < plans_.size(); ++p) {
        // A ring of a sliding window may not reach back so far.
        if (p == 0 || !model_.cache->holds(first)) {
            store_.use_plan(plans_.front().plan);
            prefill(model_, prompt);
        }
        model_.cache->set_length(first);
        store_.use_plan(plans_[p].plan);
        read(model_, rest, [&](size_t place, std::span<const float> logits) {
            const TokenSignal signal = signal_of(model_.forward->kernels(), place, logits);
            found_[place * plans_.size() + p] = {{signal.entropy, signal.margin}, distance(place, logits)};
        });
    }
    return found_;
}

sched::WindowSums LadderProbe::follow(std::span<const TokenId> ids, AutoPrecision* precision) {
    const size_t first = first_scored(ids.size());
    const std::span<const TokenId> prompt = ids.first(first), rest = ids.subspan(first, truth_sum_.size());
    const kernels::KernelSet& kernels = model_.forward->kernels();
    AutoPrecision::Place place = precision->begin(prompt);
    precision->use(AutoPrecision::kFinest, 0, &store_);
    prefill(model_, prompt.first(first - 1));
    TokenSignal signal = signal_of(kernels, 0, model_.forward->pass(prompt.last(1), 1, true));
    sched::WindowSums sums{0, 0, 0, std::vector<double>(plans_.size())};
    for (size_t t = 0; t < rest.size(); ++t) {
        const size_t rung = precision->next(&place, rest[t], signal);
        precision->use(rung, 1, &store_);
        const std::span<const float> logits = model_.forward->pass(rest.subspan(t, 1), 1, true);
        signal = signal_of(kernels, t + 1, logits);
        sums.tokens += 1;
        sums.bytes += static_cast<double>(plans_[rung].bytes);
        sums.kl += distance(t, logits);
        for (size_t p = 0; p < plans_.size(); ++p) sums.plans[p] += found_[t * plans_.size() + p].kl;
    }
    return sums;
}

}  // namespace weir
