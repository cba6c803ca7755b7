#include "runtime/cli/run_budget.h"

#include <algorithm>

namespace weir {

size_t choose_context(const RunOptions& o, const ModelConfig& config) {
    return o.context != 0 ? o.context : std::min(config.n_ctx_train, kDefaultContext);
}

BudgetInput budget_input(const RunOptions& o, PagingMode mode, const ModelMap& map, const ModelConfig& config, size_t threads,
                         size_t kv_bytes, size_t activation_bytes) {
    const bool native = std::any_of(map.tensors.begin(), map.tensors.end(), [](const PlacedTensor& t) { return t.part != nullptr; });
    BudgetInput in;
    in.mode = mode;
    in.limits = read_memory_limits();
    if (o.ram) in.ram = o.ram->of(in.limits.whole());
    if (o.weights_ram) in.weights_ram = o.weights_ram->of(map.weights_bytes);
    in.base = resident_now();
    in.kv_cache = kv_bytes;
    in.activations = activation_bytes;
    // Of a native file the embedding's rows are read one by one, in every mode.
    in.weights = native ? map.image_bytes : map.weights_bytes + (config.tied_head ? 0 : map.embedding->bytes);
    in.threads = threads;
    return in;
}

}  // namespace weir
