// `--draft` and `--precision auto-exact`: who drafts what the model then verifies, made ready and within the budget.
//
// For the main thread. Throws Error or UsageError with one line.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cli/loaded_model.h"
#include "runtime/engine/draft.h"

namespace weir {

class Drafting {
  public:
    // Opens the file of a small model where one drafts. plans: what chosen_plans() said of `model`; the levels that draft are added.
    Drafting(const RunOptions& options, const ModelFile& model, size_t threads, size_t context, std::vector<sched::Plan>* plans);

    bool on() const { return !options_.drafts.empty(); }
    // Rows that one pass may have, of logits as well.
    size_t pass_rows() const { return on() ? options_.most_drafts + 1 : 1; }
    // That the small model takes: its weights, which stay in memory, its KV cache and its activations.
    uint64_t beside_bytes() const { return beside_bytes_; }
    // Of that, copies of weights that are read by level.
    uint64_t copied_bytes() const { return copied_bytes_; }
    // When the model is loaded. It must outlive what is returned, as must this. nullptr where nothing drafts.
    Drafter* start(LoadedModel* loaded, std::span<const TokenId> prompt, const SamplerOptions& sampler);

  private:
    struct Level {
        std::string name;
        sched::Plan plan;
        kernels::Level head;  // of a head of its own
    };
    void open_model(const std::string& path, const ModelFile& model, size_t threads, size_t context);

    std::unique_ptr<DraftSource> level_draft(const Level& level, LoadedModel* loaded, std::span<const TokenId> prompt,
                                             const SamplerOptions& sampler) const;

    const RunOptions& options_;
    const Tokenizer& tokenizer_;
    size_t head_rows_ = 0;  // of a head for drafts; 0: they use the model's
    std::optional<sched::Plan> verify_;
    std::vector<Level> levels_;
    std::unique_ptr<ModelFile> file_;
    std::optional<ModelShare> share_;
    uint64_t beside_bytes_ = 0, copied_bytes_ = 0;
    std::unique_ptr<LoadedModel> loaded_;
    std::unique_ptr<Drafter> drafter_;
};

}  // namespace weir
