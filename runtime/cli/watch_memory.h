// The budget of the weights follows what memory there is while a command runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/cli/run_options.h"
#include "runtime/engine/budget.h"
#include "runtime/engine/pressure.h"
#include "runtime/engine/weight_store.h"

namespace weir {

// Follows memory pressure and the options' script, if any; nullptr where the mode has no budget to follow with. Both
// references must outlive it. set_budget: told instead of the store, and says what is in force.
std::unique_ptr<PressureMonitor> watch_memory(const RunOptions& options, const Budget& budget, WeightStore* store,
                                              std::function<uint64_t(uint64_t)> set_budget = {});

}  // namespace weir
