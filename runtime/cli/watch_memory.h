// The budget of the weights follows what memory there is while a command runs.
#pragma once

#include <memory>

#include "runtime/cli/run_options.h"
#include "runtime/engine/budget.h"
#include "runtime/engine/pressure.h"
#include "runtime/engine/weight_store.h"

namespace weir {

// Follows memory pressure and the options' script, if any; nullptr where the mode has no budget to follow with. Both references
// must outlive it.
std::unique_ptr<PressureMonitor> watch_memory(const RunOptions& options, const Budget& budget, WeightStore* store);

}  // namespace weir
