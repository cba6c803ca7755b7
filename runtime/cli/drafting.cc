#include "runtime/cli/drafting.h"

#include <algorithm>

#include "pager/system.h"
#include "runtime/cli/run_budget.h"
#include "runtime/error.h"
#include "runtime/model/model_map.h"

namespace weir {
namespace {

// A pass after an answer that is computed by the small model is as long as what was verified meanwhile; its prompt comes in
// batches of so many.
constexpr size_t kDraftBatch = 64;
// Of the rows of a draft's head, one in so many is kept for tokens of the text that it did not begin with.
constexpr size_t kSeenShare = 8;

std::optional<int> level_of(const std::string& source) {
    for (const int level : {2, 3, 4, 6})
        if (source == std::to_string(level)) return level;
    return std::nullopt;
}

void check_vocabulary(const Tokenizer& draft, const std::string& path, const ModelFile& model) {
    const Tokenizer& whole = *model.tokenizer;
    std::string other;
    if (draft.size() != whole.size()) {
        other = "has " + std::to_string(draft.size()) + " tokens and " + model.file.path() + " " + std::to_string(whole.size());
    } else {
        TokenId id = 0;
        const auto n = static_cast<TokenId>(whole.size());
        while (id < n && draft.piece(id, true) == whole.piece(id, true) && draft.ends_generation(id) == whole.ends_generation(id)) ++id;
        if (id == n) return;
        other = "and that of " + model.file.path() + " differ at token " + std::to_string(id);
    }
    throw Error("--draft " + path + ": its vocabulary " + other + "; a model that drafts must have the same");
}

}  // namespace

Drafting::Drafting(const RunOptions& options, const ModelFile& model, size_t threads, size_t context, std::vector<sched::Plan>* plans)
    : options_(options), tokenizer_(*model.tokenizer) {
    if (!plans->empty()) {
        verify_ = plans->front();
        const GgufTensor& head = model.file.tensor(model.config.tied_head ? "token_embd.weight" : "output.weight");
        const bool in_planes = !model.file.native()->parts_of(static_cast<size_t>(&head - model.file.tensors().data())).empty();
        if (in_planes && options.draft_head < model.config.n_vocab) head_rows_ = options.draft_head;
    }
    for (const std::string& source : options.drafts) {
        const std::optional<int> level = level_of(source);
        if (source == "lookup") continue;
        if (!level) {
            open_model(source, model, threads, context);
            continue;
        }
        if (!verify_)
            throw UsageError("--draft " + source + ": " + model.file.path() +
                             " is plain GGUF and has one precision; weir convert makes a native file of it, or draft by lookup or a small model");
        if (verify_->uniform().value_or(8) <= *level)
            throw UsageError("--draft " + source + ": a level that drafts is one below the " + std::to_string(*verify_->uniform()) + " that verify");
        levels_.push_back({"level " + source, sched::uniform_plan(model.config.n_layers, *level), static_cast<kernels::Level>(*level)});
        if (head_rows_ != 0) {
            levels_.back().plan.levels.back() = sched::kNotRead;
            copied_bytes_ += DraftHead::bytes(levels_.back().head, head_rows_, model.config.dim);
        }
        // Twice: what drafts read is read several times for once that the rest is, and so is worth more where not all can stay.
        plans->insert(plans->end(), 2, levels_.back().plan);
    }
    beside_bytes_ += copied_bytes_;
}

void Drafting::open_model(const std::string& path, const ModelFile& model, size_t threads, size_t context) {
    if (file_ != nullptr) throw UsageError("--draft: one model may draft, and " + file_->file.path() + " does already");
    file_ = std::make_unique<ModelFile>(path, options_.pre_tokenizer);
    check_vocabulary(*file_->tokenizer, path, model);
    const ModelConfig& config = file_->config;
    share_.emplace(ModelShare{file_.get(), {std::min(kDraftBatch, context), 1, context, threads}});
    if (file_->file.native() != nullptr) share_->plans = {sched::uniform_plan(config.n_layers, 8)};
    const ModelMap map = build_model_map(file_->file, config, pager::page_size(), false, share_->plans);
    const BudgetInput in = budget_input(options_, PagingMode::kResident, map, config, threads,
                                        KvCache::bytes(config, options_.kv_type, context, share_->shape.batch),
                                        ActivationBuffers::bytes(config, share_->shape));
    beside_bytes_ += in.weights + in.kv_cache + in.activations;
}

std::unique_ptr<DraftSource> Drafting::level_draft(const Level& level, LoadedModel* loaded, std::span<const TokenId> prompt,
                                                   const SamplerOptions& sampler) const {
    std::unique_ptr<DraftHead> head;
    if (head_rows_ != 0) {
        head = std::make_unique<DraftHead>(*loaded->store, *loaded->model.head, level.head,
                                           likely_tokens(tokenizer_, head_rows_ - head_rows_ / kSeenShare), head_rows_);
        for (const TokenId id : prompt) head->add(id);
    }
    return std::make_unique<PlanDraft>(level.name, loaded->forward, loaded->cache, *loaded->store, level.plan, *verify_, sampler, std::move(head));
}

Drafter* Drafting::start(LoadedModel* loaded, std::span<const TokenId> prompt, const SamplerOptions& sampler) {
    if (!on()) return nullptr;
    drafter_ = std::make_unique<Drafter>(*loaded->store, options_.most_drafts, options_.adapt_drafts);
    size_t level = 0;
    for (const std::string& source : options_.drafts) {
        if (source == "lookup") {
            drafter_->add(std::make_unique<LookupDraft>());
        } else if (level_of(source)) {
            drafter_->add(level_draft(levels_[level++], loaded, prompt, sampler));
        } else {
            StoreOptions resident;
            resident.mode = PagingMode::kResident;
            loaded_ = std::make_unique<LoadedModel>(*share_, resident, options_.kv_type, chosen_kernels(), chosen_activations(options_));
            drafter_->add(std::make_unique<ModelDraft>(source, loaded_->forward, loaded_->cache, *loaded_->store, sampler));
        }
    }
    return drafter_.get();
}

}  // namespace weir
