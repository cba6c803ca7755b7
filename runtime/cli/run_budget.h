// What `weir run` takes its budget from, for it and for `weir plan`, which tells the same beforehand.
#pragma once

#include "runtime/cli/run_options.h"
#include "runtime/engine/budget.h"
#include "runtime/model/config.h"
#include "runtime/model/model_map.h"

namespace weir {

// Tokens of context: what was asked for, or the model's, at most kDefaultContext.
size_t choose_context(const RunOptions& options, const ModelConfig& config);

// What divide_memory() divides. What is resident now counts as the program's: the vocabulary is there, weights are not.
BudgetInput budget_input(const RunOptions& options, PagingMode mode, const ModelMap& map, const ModelConfig& config,
                         size_t threads, size_t kv_bytes, size_t activation_bytes);

}  // namespace weir
