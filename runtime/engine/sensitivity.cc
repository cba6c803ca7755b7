#include "runtime/engine/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/engine/score.h"

namespace weir {
namespace {

using sched::kHighest;
using sched::kLevels;

bool differs(const sched::ShardCost& cost, size_t level) { return cost.bytes[level] != cost.bytes[kHighest]; }

}  // namespace

std::vector<sched::Plan> plans_to_measure(size_t n_layers) {
    std::vector<sched::Plan> plans;
    for (size_t l = kLevels.size(); l-- > 0;) plans.push_back(sched::uniform_plan(n_layers, kLevels[l]));
    return plans;
}

sched::Sensitivity empty_table(const ModelMap& map, const ModelConfig& config) {
    sched::Sensitivity table;
    table.shards.resize(sched::shards_of(config.n_layers));
    for (const PlacedTensor& t : map.tensors) {
        const bool sparse = t.experts && config.n_experts != 0;
        const uint64_t used = sparse ? config.n_experts_used : 1, all = sparse ? config.n_experts : 1;
        if (t.part == nullptr) {
            table.fixed_bytes += t.bytes * used / all;
            continue;
        }
        for (size_t l = 0; l < kLevels.size(); ++l)
            table.shards[t.shard].bytes[l] +=
                t.part->rows * kernels::level_row_bytes(static_cast<kernels::Level>(kLevels[l]), t.part->cols) * used /
                all;
    }
    return table;
}

SensitivityProbe::SensitivityProbe(const Measured& model, const ModelConfig& config, size_t tokens, size_t scored)
    : model_(model),
      n_layers_(config.n_layers),
      n_vocab_(config.n_vocab),
      scored_(scored),
      states_((config.n_layers + 1) * tokens * config.dim),
      truth_(scored * config.n_vocab),
      truth_sum_(scored),
      kl_(scored) {}

uint64_t SensitivityProbe::bytes(const ModelConfig& config, size_t tokens, size_t scored) {
    return ((config.n_layers + 1) * tokens * config.dim + scored * config.n_vocab) * sizeof(float) +
           2 * scored * sizeof(double);
}

size_t SensitivityProbe::passes(const sched::Sensitivity& table) {
    size_t n = 1;
    for (const sched::ShardCost& cost : table.shards)
        for (size_t l = 0; l < kHighest; ++l) n += differs(cost, l) ? 1 : 0;
    return n;
}

bool SensitivityProbe::measure(std::span<const TokenId> window, sched::Sensitivity* table,
                               const std::function<bool(size_t)>& go_on) {
    size_t pass = 0;
    if (!go_on(pass++)) return false;
    sched::Plan plan = sched::uniform_plan(n_layers_, kLevels[kHighest]);
    model_.store->use_plan(plan);
    model_.cache->set_length(0);
    model_.forward->keep_states(states_.data());
    const SequencePart part{model_.cache, window, scored_};
    const std::span<const float> truth = model_.forward->pass({&part, 1}, true);
    model_.forward->keep_states(nullptr);
    std::copy(truth.begin(), truth.end(), truth_.begin());
    model_.team->run([&](size_t worker) {
        for (size_t t = worker; t < scored_; t += model_.team->size())
            truth_sum_[t] = log_sum_exp(truth.subspan(t * n_vocab_, n_vocab_));
    });

    std::vector<sched::ShardCost> found(table->shards.size());
    for (size_t shard = 0; shard < table->shards.size(); ++shard) {
        const size_t first_layer = std::min(shard / sched::kModules, n_layers_);
        for (size_t l = 0; l < kHighest; ++l) {
            if (!differs(table->shards[shard], l)) continue;
            if (!go_on(pass++)) return false;
            plan.levels[shard] = kLevels[l];
            model_.store->use_plan(plan);
            model_.cache->set_length(0);
            found[shard].kl[l] = divergence_of(model_.forward->pass_from(first_layer, states_.data(), part, true));
        }
        plan.levels[shard] = kLevels[kHighest];
    }
    const auto before = static_cast<double>(table->windows);
    for (size_t shard = 0; shard < found.size(); ++shard)
        for (size_t l = 0; l < kHighest; ++l) {
            double& mean = table->shards[shard].kl[l];
            mean = (mean * before + found[shard].kl[l]) / (before + 1);
        }
    ++table->windows;
    return true;
}

// Mean over the scored positions.
double SensitivityProbe::divergence_of(std::span<const float> logits) {
    model_.team->run([&](size_t worker) {
        for (size_t t = worker; t < scored_; t += model_.team->size()) {
            const std::span<const float> z = logits.subspan(t * n_vocab_, n_vocab_);
            kl_[t] = kl_divergence({truth_.data() + t * n_vocab_, n_vocab_}, truth_sum_[t], z, log_sum_exp(z));
        }
    });
    return std::accumulate(kl_.begin(), kl_.end(), 0.0) / static_cast<double>(scored_);
}

}  // namespace weir
