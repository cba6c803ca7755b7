// How much each level of each shard costs, measured: the KL divergence of a window's predictions from those with all shards at
// level 8, with one shard at one level in turn. A pass for a shard of layer L begins with L, by the residual stream that the
// first pass left there: layers before it give what they gave.
//
// Called by the owner of the Forward. Throws what a pass throws.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/engine/forward.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/engine/team.h"
#include "runtime/engine/weight_store.h"
#include "runtime/model/model_map.h"
#include "runtime/model/tokenizer.h"
#include "schedtool/sensitivity.h"

namespace weir {

// The plans that measuring puts in force: for StoreOptions.
std::vector<sched::Plan> plans_to_measure(size_t n_layers);

// Bytes by shard and level, and what a token reads besides; kl is left at 0. map: of a native file.
sched::Sensitivity empty_table(const ModelMap& map, const ModelConfig& config);

struct Measured {
    Forward* forward;
    KvCache* cache;
    WeightStore* store;
    Team* team;
};

class SensitivityProbe {
  public:
    // tokens of a window, of which the last `scored` are compared; both at most what the Forward was made for.
    SensitivityProbe(const Measured& model, const ModelConfig& config, size_t tokens, size_t scored);
    static uint64_t bytes(const ModelConfig& config, size_t tokens, size_t scored);

    // Passes of a window, the first included.
    static size_t passes(const sched::Sensitivity& table);

    // Adds the window to the table's means. go_on is asked before each pass with its number; false where it said no: the table
    // is as it was before.
    bool measure(std::span<const TokenId> window, sched::Sensitivity* table,
                 const std::function<bool(size_t pass)>& go_on);

  private:
    double divergence_of(std::span<const float> logits);

    const Measured model_;
    const size_t n_layers_, n_vocab_, scored_;
    std::vector<float> states_;           // [n_layers + 1][tokens][dim]
    std::vector<float> truth_;            // [scored][n_vocab] logits at level 8
    std::vector<double> truth_sum_, kl_;  // [scored] log of the sum of their exponentials; of the pass under way
};

}  // namespace weir
