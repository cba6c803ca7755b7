// Drafts: tokens that are likely to come, guessed cheaply, so that one pass over the weights verifies several of them
// (Leviathan et al. 2023; prompt lookup: Saxena 2023). What is drafted decides how fast an answer comes, never what it is: a
// token counts where it is the one that is drawn from the verifying pass's own logits.
//
// Called by the thread that owns the Forward, which throws what a pass throws.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/draft_head.h"
#include "runtime/engine/draft_length.h"
#include "runtime/engine/forward.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/weight_store.h"

namespace weir {

class DraftSource {
  public:
    virtual ~DraftSource() = default;
    virtual std::string name() const = 0;
    // How many tokens it could append now, at most `most`.
    virtual size_t foresees(std::span<const TokenId>, size_t most) { return most; }
    // Appends n tokens, no more than it foresees, to prompt and answer so far. The last of those is in no KV cache yet.
    virtual void draft(std::vector<TokenId>* tokens, size_t n) = 0;
    // Whether it puts another precision plan in force meanwhile.
    virtual bool changes_plan() const { return false; }
    // By it and by others, so far.
    virtual uint64_t bytes_read() const { return 0; }
};

// The model itself at a lower precision, on the KV cache of the verified tokens; what it appends to the cache is taken back. The
// same noise draws its tokens that will draw those of the verifying pass. With a head of its own it drafts none but that head's
// tokens, which are the likely ones and those that were seen.
class PlanDraft : public DraftSource {
  public:
    // store: opened with both plans, `verify` in force. head: nullptr: the model's. All references must outlive it.
    PlanDraft(std::string name, Forward& forward, KvCache& cache, WeightStore& store, const sched::Plan& draft,
              const sched::Plan& verify, const SamplerOptions& sampler, std::unique_ptr<DraftHead> head = nullptr);
    std::string name() const override { return name_; }
    void draft(std::vector<TokenId>* tokens, size_t n) override;
    bool changes_plan() const override { return true; }
    uint64_t bytes_read() const override { return store_.bytes_read() + (head_ != nullptr ? head_->bytes_read() : 0); }

  private:
    const std::string name_;
    Forward& forward_;
    KvCache& cache_;
    WeightStore& store_;
    const sched::Plan draft_, verify_;
    Sampler sampler_;
    const std::unique_ptr<DraftHead> head_;
    size_t seen_ = 0;  // tokens of prompt and answer that the head was told of
};

// What followed the last few tokens when they last stood in the text.
class LookupDraft : public DraftSource {
  public:
    std::string name() const override { return "lookup"; }
    size_t foresees(std::span<const TokenId> tokens, size_t most) override;
    void draft(std::vector<TokenId>* tokens, size_t n) override;

  private:
    size_t next_ = 0;  // in the text: what followed
};

// Another model of the same vocabulary, with a KV cache of its own.
class ModelDraft : public DraftSource {
  public:
    // forward: on `cache`, which is empty. All references must outlive it.
    ModelDraft(std::string name, Forward& forward, KvCache& cache, const WeightStore& store, const SamplerOptions& sampler);
    std::string name() const override { return name_; }
    size_t foresees(std::span<const TokenId> tokens, size_t most) override;
    void draft(std::vector<TokenId>* tokens, size_t n) override;
    uint64_t bytes_read() const override { return store_.bytes_read(); }

  private:
    const std::string name_;
    Forward& forward_;
    KvCache& cache_;
    const WeightStore& store_;
    Sampler sampler_;
    std::vector<TokenId> placed_;  // in the cache
};

// What became of one source's drafts.
struct DraftTally {
    std::string source;
    uint64_t drafts = 0;
    uint64_t drafted = 0;   // tokens
    uint64_t accepted = 0;  // of them
    double seconds = 0;     // of drafting
    uint64_t bytes_read = 0;
    // By a token's place in its draft: how many were compared, those before them being right, and how many were right.
    std::array<uint64_t, kMostDrafts> judged{}, right{};
};

struct DraftReport {
    std::vector<DraftTally> sources;
    uint64_t passes = 0;  // that verified, those with nothing drafted included
    uint64_t rows = 0;    // of them
    double verify_s = 0;
    uint64_t verify_bytes_read = 0;
};

// Which source drafts how much, by what drafting and verifying takes and how much of it was right.
class Drafter {
  public:
    // most: tokens of a draft, at most kMostDrafts; passes of one token more must fit the Forward, its rows of logits and its KV
    // caches. adapts: false: always as many as can be, by the first source that has any. store: of the verifying passes.
    Drafter(const WeightStore& store, size_t most, bool adapts) : store_(store), most_(most), adapts_(adapts) {}
    void add(std::unique_ptr<DraftSource> source);

    // What to compute next: the last of `tokens`, which are prompt and answer so far, and behind it what may follow, at most
    // `room` tokens, maybe none. Valid until the next call.
    std::span<const TokenId> draft(std::vector<TokenId>* tokens, size_t room);
    // Right after the pass that computed it.
    void pass_done();
    // And when tokens were drawn from its logits: the first `judged` drafts were compared with them, the first `right` were equal.
    void judged(size_t judged, size_t right);
    // True where the pass that verifies will probably be followed by one at another precision.
    bool plan_will_change() const { return drafting_ != nullptr && drafting_->source->changes_plan(); }

    const DraftReport& report() const { return report_; }

  private:
    struct Entry {
        std::unique_ptr<DraftSource> source;
        DraftRecord record;
        size_t passed_over = 0;  // passes since its last draft
    };
    size_t choose(std::span<const TokenId> tokens, size_t room);
    DraftTally& tally_of(const Entry& entry) { return report_.sources[static_cast<size_t>(&entry - entries_.data())]; }

    const WeightStore& store_;
    const size_t most_;
    const bool adapts_;
    std::vector<Entry> entries_;
    Entry* drafting_ = nullptr;  // whose draft is being verified
    std::vector<TokenId> batch_;   // see draft()
    PassCost verify_;
    double pass_begin_s_ = 0;
    uint64_t pass_begin_bytes_ = 0;
    DraftReport report_;
};

}  // namespace weir
