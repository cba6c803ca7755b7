#include "runtime/engine/weight_store.h"

#include "runtime/engine/file_store.h"
#include "runtime/engine/paged_store.h"

namespace weir {

std::unique_ptr<WeightStore> WeightStore::open(const GgufFile& file, const ModelConfig& config,
                                               const StoreOptions& options) {
    if (options.mode == PagingMode::kUffd) return open_paged_store(file, config, options);
    return open_file_store(file, config, options);
}

}  // namespace weir
