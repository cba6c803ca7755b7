#include "runtime/engine/draft.h"

#include <algorithm>
#include <chrono>

namespace weir {
namespace {

// Tokens that are looked for in the text: a shorter match foretells little, a longer one hardly more.
constexpr size_t kLongestMatch = 4, kShortestMatch = 2;
// Drafts that tell what a source is worth, and their tokens.
constexpr size_t kFirstDrafts = 2, kFirstTokens = 4;
// After so many passes without it a source is tried again, by a short draft: texts change.
constexpr size_t kTryAgain = 32, kTryTokens = 2;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

PlanDraft::PlanDraft(std::string name, Forward& forward, KvCache& cache, WeightStore& store, const sched::Plan& draft,
                     const sched::Plan& verify, const SamplerOptions& sampler, std::unique_ptr<DraftHead> head)
    : name_(std::move(name)), forward_(forward), cache_(cache), store_(store), draft_(draft), verify_(verify), sampler_(sampler),
      head_(std::move(head)) {}

void PlanDraft::draft(std::vector<TokenId>* tokens, size_t n) {
    const size_t verified = cache_.length();
    for (; head_ != nullptr && seen_ < tokens->size(); ++seen_) head_->add((*tokens)[seen_]);
    const Matrix* const head = head_ != nullptr ? &head_->matrix() : nullptr;
    const std::span<const TokenId> ids = head_ != nullptr ? head_->tokens() : std::span<const TokenId>{};
    store_.use_plan(draft_);
    for (size_t i = 0; i < n; ++i) {
        const SequencePart part{&cache_, {&tokens->back(), 1}, 1};
        const std::span<const float> logits = forward_.pass({&part, 1}, i + 1 < n, head);
        tokens->push_back(sampler_.sample_of(ids, logits, *tokens, tokens->size()));
    }
    cache_.set_length(verified);
    store_.use_plan(verify_);
}

size_t LookupDraft::foresees(std::span<const TokenId> tokens, size_t most) {
    for (size_t n = kLongestMatch; n >= kShortestMatch; --n) {
        if (tokens.size() <= n) continue;
        const auto last = tokens.last(n), before = tokens.first(tokens.size() - 1);
        const auto found = std::find_end(before.begin(), before.end(), last.begin(), last.end());
        if (found == before.end()) continue;
        next_ = static_cast<size_t>(found - before.begin()) + n;
        return most;
    }
    return 0;
}

// What is appended may be copied in turn: a text that goes round goes on.
void LookupDraft::draft(std::vector<TokenId>* tokens, size_t n) {
    for (size_t i = 0; i < n; ++i) tokens->push_back((*tokens)[next_ + i]);
}

ModelDraft::ModelDraft(std::string name, Forward& forward, KvCache& cache, const WeightStore& store, const SamplerOptions& sampler)
    : name_(std::move(name)), forward_(forward), cache_(cache), store_(store), sampler_(sampler) {
    placed_.reserve(cache.capacity());
}

size_t ModelDraft::foresees(std::span<const TokenId> tokens, size_t most) {
    const size_t capacity = cache_.capacity();
    return tokens.size() >= capacity ? 0 : std::min(most, capacity - tokens.size());
}

void ModelDraft::draft(std::vector<TokenId>* tokens, size_t n) {
    // What was rejected goes, what was verified since comes; of the last token the logits are wanted.
    const size_t most = std::min(placed_.size(), tokens->size() - 1);
    size_t same = static_cast<size_t>(std::mismatch(placed_.begin(), placed_.begin() + static_cast<ptrdiff_t>(most), tokens->begin()).first - placed_.begin());
    if (!cache_.holds(same)) same = 0;
    cache_.set_length(same);
    placed_.resize(same);
    for (const size_t end = tokens->size() + n; tokens->size() < end;) {
        const std::span<const TokenId> missing = std::span<const TokenId>(*tokens).subspan(placed_.size());
        const std::span<const TokenId> part = missing.first(std::min(missing.size(), forward_.max_batch()));
        const bool last = part.size() == missing.size();
        const std::span<const float> logits = forward_.pass(part, last ? 1 : 0, true);
        placed_.insert(placed_.end(), part.begin(), part.end());
        if (last) tokens->push_back(sampler_.sample(logits, *tokens, tokens->size()));
    }
}

void Drafter::add(std::unique_ptr<DraftSource> source) {
    report_.sources.push_back({});
    report_.sources.back().source = source->name();
    entries_.push_back({std::move(source), {}, 0});
}

// Sets drafting_ to who drafts; returns how many tokens.
size_t Drafter::choose(std::span<const TokenId> tokens, size_t room) {
    drafting_ = nullptr;
    DraftChoice best;
    for (Entry& entry : entries_) {
        const size_t most = room == 0 ? 0 : entry.source->foresees(tokens, room);
        if (most == 0) continue;
        DraftChoice choice = choose_draft(entry.record, verify_, most);
        bool at_once = !adapts_;
        if (!adapts_) {
            choice.tokens = most;
        } else if (entry.record.drafts() < kFirstDrafts) {
            choice.tokens = std::min(most, kFirstTokens);
            at_once = true;
        } else if (++entry.passed_over > kTryAgain) {
            choice.tokens = std::min(most, kTryTokens);
            at_once = true;
        }
        if (choice.tokens > 0 && (at_once || drafting_ == nullptr || choice.tokens_per_s > best.tokens_per_s)) {
            best = choice;
            drafting_ = &entry;
        }
        if (at_once) break;
    }
    return drafting_ == nullptr ? 0 : best.tokens;
}

std::span<const TokenId> Drafter::draft(std::vector<TokenId>* tokens, size_t room) {
    const size_t before = tokens->size(), n = choose(*tokens, std::min(room, most_));
    if (n > 0) {
        const double begin = now_s();
        const uint64_t bytes = drafting_->source->bytes_read();
        drafting_->source->draft(tokens, n);
        const double seconds = now_s() - begin;
        drafting_->record.took(n, seconds);
        drafting_->passed_over = 0;
        DraftTally& tally = tally_of(*drafting_);
        ++tally.drafts;
        tally.drafted += n;
        tally.seconds += seconds;
        tally.bytes_read += drafting_->source->bytes_read() - bytes;
    }
    batch_.assign(tokens->begin() + static_cast<ptrdiff_t>(before - 1), tokens->end());
    tokens->resize(before);
    pass_begin_s_ = now_s();
    pass_begin_bytes_ = store_.bytes_read();
    return batch_;
}

void Drafter::pass_done() {
    const double seconds = now_s() - pass_begin_s_;
    verify_.took(batch_.size(), seconds);
    ++report_.passes;
    report_.rows += batch_.size();
    report_.verify_s += seconds;
    report_.verify_bytes_read += store_.bytes_read() - pass_begin_bytes_;
}

void Drafter::judged(size_t judged, size_t right) {
    if (judged == 0) return;
    drafting_->record.judged(judged, right);
    DraftTally& tally = tally_of(*drafting_);
    tally.accepted += right;
    for (size_t i = 0; i < judged; ++i) {
        ++tally.judged[i];
        tally.right[i] += i < right ? 1 : 0;
    }
}

}  // namespace weir
