// The two ways without a pager: the file mapped (--paging mmap, the kernel's page cache decides) and the file's tensors
// read once into anonymous memory (--paging resident).
#pragma once

#include <memory>

#include "runtime/engine/weight_store.h"

namespace weir {

std::unique_ptr<WeightStore> open_file_store(const GgufFile& file, const ModelConfig& config,
                                             const StoreOptions& options);

}  // namespace weir
