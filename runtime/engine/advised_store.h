// Weights in a file mapping that is paged by advice (--paging advised): what --paging uffd becomes where userfaultfd is not
// to be had.
#pragma once

#include <memory>

#include "runtime/engine/weight_store.h"

namespace weir {

std::unique_ptr<WeightStore> open_advised_store(const GgufFile& file, const ModelConfig& config,
                                                const StoreOptions& options);

}  // namespace weir
