// Weights served by the pager (--paging uffd): a Region laid out by the ModelMap, frames for what the budget allows.
#pragma once

#include <memory>

#include "runtime/engine/weight_store.h"

namespace weir {

std::unique_ptr<WeightStore> open_paged_store(const GgufFile& file, const ModelConfig& config,
                                              const StoreOptions& options);

}  // namespace weir
