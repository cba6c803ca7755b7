#include "runtime/engine/weight_store.h"

#include <stdexcept>

#include "pager/uffd.h"
#include "runtime/engine/advised_store.h"
#include "runtime/engine/file_store.h"
#include "runtime/engine/paged_store.h"
#include "runtime/error.h"

namespace weir {

std::unique_ptr<WeightStore> WeightStore::open(const GgufFile& file, const ModelConfig& config,
                                               const StoreOptions& options) {
    if (file.native() != nullptr) throw Error(file.path() + ": a native file, which cannot be run yet; use the GGUF file that it was made from");
    if (options.mode == PagingMode::kUffd) return open_paged_store(file, config, options);
    if (options.mode == PagingMode::kAdvised) return open_advised_store(file, config, options);
    return open_file_store(file, config, options);
}

std::string fall_back(StoreOptions* options) {
    if (options->mode != PagingMode::kUffd || options->uffd_source != "auto" || options->install != "auto") return "";
    try {
        const pager::Uffd probe(pager::UffdSource::kAuto);
        return "";
    } catch (const std::runtime_error& why) {
        options->mode = PagingMode::kAdvised;
        return why.what();
    }
}

}  // namespace weir
