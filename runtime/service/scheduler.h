// Continuous batching: requests take slots, each a sequence with a KV cache of its own, and every pass over the weights
// serves all slots at once. Where reads bound, four users cost the flash what one does.
//
//   queue (bounded, first come first served) -> slot: prompt in pieces -> a token a pass -> end, and the slot is free
//
// Every slot that decodes gets one token of each pass. Prompts go in what room is left, cut so that a pass does not take
// much longer than one that only decodes: nobody who is reading is starved by somebody's long prompt. Logits do not depend
// on what else is in a pass (see forward.h), so at a fixed precision an answer is the same alone and among others.
//
// With `--precision auto` a pass has the finest plan that one of those in it wants: an answer by its last token, a prompt the
// finest there is. Answers then depend on who else is served.
//
// A slot keeps its cache when its request ends; the next request goes to the free slot that shares the longest beginning
// with it, as far as that was computed at the precision of prompts, and computes the rest only.
//
// Threads: submit(), stats() and drain() may be called from any thread. The scheduler's own thread owns the Forward.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/auto_precision.h"
#include "runtime/engine/forward.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/weight_store.h"
#include "runtime/service/generation.h"
#include "runtime/service/token_trie.h"
#include "schedtool/monitor.h"

namespace weir {

// Nothing is taken in: the queue is full, or the scheduler drains. The message says which.
struct Busy : std::runtime_error {
    Busy(const std::string& what, unsigned retry_s) : std::runtime_error(what), retry_after_s(retry_s) {}
    unsigned retry_after_s;
};

enum class SlotState : uint8_t { kIdle, kPrompt, kDecode };

struct SlotInfo {
    SlotState state = SlotState::kIdle;
    size_t cached_tokens = 0;   // positions of its cache that hold a token
    size_t prompt_tokens = 0;   // of its request
    size_t generated = 0;
};

// How many took at most so long, each bound for itself; the last place counts those beyond all bounds.
struct LatencyCounts {
    static constexpr std::array<double, 10> kBounds = {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};  // seconds
    std::array<uint64_t, kBounds.size() + 1> counts{};
    double sum_s = 0;
    void add(double seconds);
};

struct SchedulerStats {
    std::vector<SlotInfo> slots;
    size_t queued = 0;
    size_t context = 0;             // of each slot, tokens
    uint64_t passes = 0;
    uint64_t prompt_tokens = 0;     // computed
    uint64_t cached_tokens = 0;     // of prompts, that need not be
    uint64_t generated_tokens = 0;
    uint64_t finished = 0, cancelled = 0, failed = 0, refused = 0;
    double busy_s = 0;              // in passes
    LatencyCounts first_token;      // from a request's coming to its first token
    sched::MonitorState monitor;
    std::optional<AutoReport> precision;  // where it is automatic
    StoreStats store;               // at most a second old while there is work, its plan that of the last pass
    size_t busy_slots() const;
};

// Entropies of the last tokens drawn, nats, the oldest first.
struct RecentEntropies {
    uint64_t end = 0;  // how many there have been
    std::vector<float> nats;
};

// Told by the scheduler's thread when there has been no request for so long, and again before the next one begins.
struct RestHook {
    std::chrono::milliseconds after{0};
    std::function<void(bool rests)> change;  // empty: nobody is told
};

// What watches quality and bytes, and who is told on the scheduler's thread when a warning is raised or taken back.
struct WatchHook {
    sched::MonitorOptions options;
    uint64_t ram_budget = 0;  // bytes of the whole process
    std::function<void(const sched::WarningChange&)> change;  // empty: nobody is told
};

class Scheduler {
  public:
    // All references must outlive it; the caches are the slots. At most max_queue requests wait. precision: nullptr, or what
    // chooses plans; the store was opened with them.
    Scheduler(Forward& forward, WeightStore& store, const Tokenizer& tokenizer, const TokenTrie& trie,
              std::vector<KvCache*> caches, size_t max_queue, RestHook rest = {}, WatchHook watch = {}, AutoPrecision* precision = nullptr);
    // Ends what is under way, as cancelled.
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // Throws Busy where no more are taken in, Error where the prompt is empty or does not fit a slot's context.
    std::shared_ptr<Generation> submit(GenerationRequest request);

    // No more are taken in; returns true when all that were have ended, false where some had not within the time.
    bool drain(std::chrono::milliseconds patience);

    SchedulerStats stats() const;
    // Any thread. They cost a walk over the logits: none are taken unless somebody has asked within the last seconds.
    RecentEntropies recent_entropies() const;
    const WeightStore& store() const { return store_; }  // for its functions of any thread
    double device_bytes_per_s() const { return watch_.options.device_bytes_per_s; }  // by a probe at the start; 0: none
    // Any thread: where the pass under way is, see Forward.
    size_t layer_under_way() const noexcept { return forward_.layer_under_way(); }
    // Any thread: counts what is done for requests. Where there are some and this stands still, they are stuck.
    uint64_t moves() const noexcept { return turns_.load(std::memory_order_relaxed) + forward_.layers_walked(); }
    size_t context() const { return context_; }

  private:
    struct Slot {
        KvCache* cache;
        CachedTokens cached;        // in the cache
        std::shared_ptr<Generation> work;  // none: idle
        std::optional<Sampler> sampler;
        std::optional<Constraint> constraint;  // none: the answer is free
        std::optional<AutoPrecision::Place> place;  // none: the precision is fixed
        std::vector<TokenId> history;  // prompt and answer
        size_t generated = 0;
        std::vector<double> hidden_sum;  // [dim] of a prompt that is embedded; none of others
        uint64_t last_used = 0;     // pass
        bool scores = false;        // the piece under way ends before the prompt does, with logits
        bool decodes() const { return work != nullptr && history.size() == cached.size() + 1 && generated > 0; }
        size_t left_of_prompt() const { return history.size() - cached.size(); }
    };

    void loop(std::stop_token stop);
    void wait_for_work(const std::stop_token& stop);
    void admit();
    void start(Slot& slot, std::shared_ptr<Generation> work);
    Slot& best_slot(const std::vector<TokenId>& prompt);
    bool take_step();
    void plan_parts();
    void choose_plan();
    void took(double seconds, size_t prompt_tokens, bool decoding);
    void after_pass(std::span<const float> logits);
    void sample(Slot& slot, std::span<const float> logits);
    void finish_embedding(Slot& slot);
    TokenId draw(Slot& slot, std::span<const float> logits);
    void remember_entropy(double nats);
    void finish(Slot& slot, FinishReason reason, std::string error = {}, std::vector<float> embedding = {});
    void drop_cancelled();
    void publish();
    void publish_precision();
    void watch(const StoreStats& store);

    Forward& forward_;
    WeightStore& store_;
    const Tokenizer& tokenizer_;
    const TokenTrie& trie_;
    const size_t context_;
    const size_t max_queue_;
    const RestHook rest_;
    AutoPrecision* const precision_;
    std::atomic<uint64_t> turns_{0};

    // The scheduler's thread alone.
    std::vector<Slot> slots_;
    std::vector<SequencePart> parts_;
    std::vector<Slot*> part_slots_;
    size_t next_prompt_slot_ = 0;   // prompts take turns
    size_t prompt_room_;            // tokens of prompts in a pass that decodes too
    std::vector<double> decode_pass_s_;  // by rung: of passes that only decode, lately
    uint64_t pass_number_ = 0;
    size_t unscored_pieces_ = 0;    // of prompts, since one was scored
    std::chrono::steady_clock::time_point store_looked_at_ = {};
    const WatchHook watch_;
    sched::Monitor monitor_;
    StoreStats watched_;            // as the monitor saw it last
    double watched_busy_s_ = 0;
    size_t filling_samples_ = 1;    // to come, in which memory is being filled

    mutable std::mutex mutex_;  // of all below
    std::condition_variable wanted_;  // for the thread: something to do
    std::condition_variable idle_;    // for drain(): nothing left
    std::deque<std::shared_ptr<Generation>> queue_;
    bool draining_ = false;
    double mean_request_s_ = 1;
    mutable std::chrono::steady_clock::time_point entropies_asked_at_ = {};
    RecentEntropies entropies_;
    SchedulerStats stats_;

    std::jthread thread_;  // last: it uses all of the above
};

}  // namespace weir
