#include "runtime/engine/auto_precision.h"

#include <algorithm>
#include <utility>

namespace weir {

double AutoReport::mean_bytes() const {
    double bytes = 0;
    uint64_t tokens = 0;
    for (const Rung& rung : rungs) {
        bytes += static_cast<double>(rung.bytes) * static_cast<double>(rung.tokens);
        tokens += rung.tokens;
    }
    return tokens == 0 ? 0 : bytes / static_cast<double>(tokens);
}

AutoPrecision::AutoPrecision(std::vector<sched::RatedPlan> ladder, sched::PlanMemory memory, const sched::SchedulerOptions& options,
                             std::optional<sched::TokenPlans> by_token)
    : ladder_(std::move(ladder)), options_(options), by_token_(std::move(by_token)), memory_(std::move(memory)) {
    for (const sched::RatedPlan& plan : ladder_) report_.rungs.push_back({plan.bytes, plan.kl, 0});
}

AutoPrecision::AutoPrecision(const sched::TokenPlans& by_token) : AutoPrecision(by_token.plans, sched::PlanMemory(), {}, by_token) {}

std::vector<sched::Plan> AutoPrecision::plans() const {
    std::vector<sched::Plan> plans;
    for (const sched::RatedPlan& rated : ladder_) plans.push_back(rated.plan);
    return plans;
}

AutoPrecision::Place AutoPrecision::begin(std::span<const TokenId> prompt) {
    const uint64_t signature = sched::prompt_signature(prompt);
    std::optional<size_t> known;
    {
        const std::lock_guard lock(mutex_);
        known = memory_.find(signature);
    }
    if (known) ++report_.remembered;
    const size_t first = std::min(known.value_or(ladder_.size() / 2), ladder_.size() - 1);
    return {signature, known.has_value(), sched::Scheduler(ladder_.size(), first, options_), std::nullopt};
}

size_t AutoPrecision::next(Place* place, TokenId id, const TokenSignal& signal) {
    const size_t before = place->rung();
    const size_t rung = by_token_ ? by_token_->rung(id) : place->scheduler.next({signal.entropy, signal.margin});
    place->next = rung;
    if (rung != before) ++report_.switches;
    return rung;
}

void AutoPrecision::end(const Place& place) {
    if (!place.next || by_token_) return;
    const std::lock_guard lock(mutex_);
    memory_.remember(place.signature, place.rung());
    memory_changed_ = true;
}

void AutoPrecision::use(size_t rung, size_t tokens, WeightStore* store) {
    store->use_plan(ladder_[rung].plan);
    if (std::exchange(rung_, rung) != rung) ++report_.plan_changes;
    report_.rungs[rung].tokens += tokens;
}

std::optional<std::string> AutoPrecision::changed_memory() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(memory_changed_, false)) return std::nullopt;
    return memory_.text();
}

size_t CachedTokens::common(std::span<const TokenId> prompt) const {
    const size_t n = std::min(finest_, prompt.size());
    return static_cast<size_t>(std::mismatch(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(n), prompt.begin()).first - ids_.begin());
}

void CachedTokens::cut(size_t n) {
    ids_.resize(std::min(n, ids_.size()));
    finest_ = std::min(finest_, ids_.size());
}

void CachedTokens::add(std::span<const TokenId> ids, bool finest) {
    if (finest && finest_ == ids_.size()) finest_ += ids.size();
    ids_.insert(ids_.end(), ids.begin(), ids.end());
}

}  // namespace weir
