// A model ready to compute, as the options of `weir run` have it: for every command that decodes.
//
// For the main thread. Throws Error or UsageError with one line.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/cli/run_options.h"
#include "runtime/engine/budget.h"
#include "runtime/engine/forward.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/engine/model.h"
#include "runtime/engine/team.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"

namespace weir {

// The set that WEIR_KERNELS names, or the best.
const kernels::KernelSet& chosen_kernels();

// What --activations means.
ActivationForms chosen_activations(const RunOptions& options);

// The store's options, with another mode where the one that was asked for is not to be had: *fallback then says why, and
// so does a line on stderr.
StoreOptions chosen_paging(const RunOptions& options, std::string* fallback);

// What is read of a file before anything is loaded.
struct ModelFile {
    ModelFile(const std::string& path, const std::string& pre_tokenizer);
    GgufFile file;
    ModelConfig config;
    std::unique_ptr<Tokenizer> tokenizer;
};

struct ModelShare {
    const ModelFile* model;
    BufferShape shape;
    uint64_t frame_bytes = 0;   // filled in: of the frames, by its weights
    size_t sequences = 1;       // each with a KV cache
    uint64_t beside_bytes = 0;  // that the command takes for itself
    uint64_t copied_bytes = 0;  // of them, of weights, which --weights-ram counts
    std::vector<sched::Plan> plans{};  // of a native file, see StoreOptions
};

// What --precision and --precision-plan mean for this file: one plan; none for plain GGUF. UsageError where the file has no
// levels.
std::vector<sched::Plan> chosen_plans(const RunOptions& options, const GgufFile& file, const ModelConfig& config);

// Where the table of sensitivities of a native file is, unless it is named.
std::string sensitivity_path(const std::string& model);

// Divides the budget among models that are in memory together. What is resident now counts as the program's.
Budget choose_budget(const RunOptions& options, PagingMode mode, std::span<ModelShare> models);

// Members in the order in which they depend on each other.
struct LoadedModel {
    LoadedModel(const ModelShare& share, StoreOptions store_options, KvType kv_type, const kernels::KernelSet& kernels,
                const ActivationForms& forms);
    std::unique_ptr<WeightStore> store;
    Model model;
    KvCache cache;
    Team team;  // after the store: workers are gone before the Region is
    Forward forward;
};

}  // namespace weir
