#include "runtime/engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

uint64_t split_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

}  // namespace

double counter_noise(uint64_t seed, uint64_t position) {
    return static_cast<double>(split_mix(split_mix(seed) ^ position) >> 11) * 0x1p-53;
}

TokenId Sampler::sample_of(std::span<const TokenId> ids, std::span<const float> logits, std::span<const TokenId> history,
                           uint64_t position, std::span<const uint64_t> allowed) {
    const auto id_of = [ids](size_t i) { return ids.empty() ? static_cast<TokenId>(i) : ids[i]; };
    const bool penalises = options_.repeat_penalty != 1.0f;
    if (options_.temperature <= 0 && !penalises && allowed.empty())
        return id_of(static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));

    candidates_.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], id_of(i)};
    if (penalises) penalise(history, ids.empty());
    if (!allowed.empty()) {
        std::erase_if(candidates_, [&](const Candidate& c) {
            const size_t id = static_cast<size_t>(c.id);
            return id / 64 >= allowed.size() || (allowed[id / 64] >> (id % 64) & 1) == 0;
        });
    }
    const auto better = [](const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    };
    if (options_.temperature <= 0) return std::min_element(candidates_.begin(), candidates_.end(), better)->id;

    const size_t k = options_.top_k == 0 ? candidates_.size() : std::min(options_.top_k, candidates_.size());
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(k), candidates_.end(), better);
    candidates_.resize(k);
    keep_top_p();
    keep_min_p();

    // Draw from the softmax at the temperature.
    double total = 0;
    const double top = candidates_.front().logit;
    const auto weight = [&](const Candidate& c) { return std::exp((c.logit - top) / options_.temperature); };
    for (const Candidate& c : candidates_) total += weight(c);
    double left = counter_noise(options_.seed, position) * total;
    for (const Candidate& c : candidates_) {
        left -= weight(c);
        if (left < 0) return c.id;
    }
    return candidates_.back().id;  // rounding
}

// whole: candidate i is token i.
void Sampler::penalise(std::span<const TokenId> history, bool whole) {
    const size_t n = std::min(history.size(), options_.repeat_last_n);
    std::vector<TokenId> recent(history.end() - static_cast<ptrdiff_t>(n), history.end());
    std::sort(recent.begin(), recent.end());
    recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
    const auto lower = [this](float& logit) { logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty; };
    if (!whole) {
        for (Candidate& c : candidates_)
            if (std::binary_search(recent.begin(), recent.end(), c.id)) lower(c.logit);
        return;
    }
    for (const TokenId id : recent)
        if (id >= 0 && static_cast<size_t>(id) < candidates_.size()) lower(candidates_[static_cast<size_t>(id)].logit);
}

// The fewest tokens whose probability reaches top_p. Candidates are sorted.
void Sampler::keep_top_p() {
    if (options_.top_p >= 1) return;
    double total = 0;
    const double top = candidates_.front().logit;
    for (const Candidate& c : candidates_) total += std::exp(c.logit - top);
    double sum = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
        sum += std::exp(candidates_[i].logit - top);
        if (sum < options_.top_p * total) continue;
        candidates_.resize(i + 1);
        return;
    }
}

// Those at least min_p times as probable as the first. Candidates are sorted.
void Sampler::keep_min_p() {
    if (options_.min_p <= 0) return;
    const double least = candidates_.front().logit + std::log(static_cast<double>(options_.min_p));
    size_t n = 1;
    while (n < candidates_.size() && candidates_[n].logit >= least) ++n;
    candidates_.resize(n);
}

}  // namespace weir
