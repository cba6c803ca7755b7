#include "runtime/service/scheduler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "runtime/engine/memory_limits.h"
#include "runtime/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Prompt tokens beside decoding at first, and at least: enough to get anywhere, too few to be felt (the kernels share the
// unpacking of a row among eight tokens).
constexpr size_t kFirstPromptRoom = 32;
constexpr size_t kLeastPromptRoom = 8;
// A pass with pieces of prompts may take this many times as long as one without before the pieces are made smaller, and are
// made larger below the other.
constexpr double kSlowestPass = 2.0;
constexpr double kFastPass = 1.4;
// A piece of a prompt that another follows foretells that one's first token: its perplexity costs one row of the head, which
// is had for nothing where others want logits. Else one piece of so many pays for it.
constexpr size_t kPiecesPerScore = 8;
// Of a mean that follows what was measured lately.
constexpr double kNewShare = 0.2;
// Entropies that are kept, and for how long they are taken after somebody asked.
constexpr size_t kEntropies = 128;
constexpr std::chrono::seconds kEntropiesFor{10};
// For who is sent away, in seconds.
constexpr double kLongestRetry = 60;

// ln of the sum of exp(logit): a logit less it is the logarithm of a probability.
double log_norm(std::span<const float> logits) {
    const float highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit - highest));
    return highest + std::log(sum);
}

void fill_logprobs(std::span<const float> logits, size_t top, GeneratedToken* token) {
    const double norm = log_norm(logits);
    const auto logprob = [&](size_t id) { return static_cast<float>(logits[id] - norm); };
    token->logprob = logprob(static_cast<size_t>(token->id));
    const auto better = [&](const TokenLogprob& a, const TokenLogprob& b) {
        return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
    };
    for (size_t id = 0; id < logits.size() && top > 0; ++id) {
        const TokenLogprob found{static_cast<TokenId>(id), logprob(id)};
        if (token->top.size() == top && !better(found, token->top.back())) continue;
        if (token->top.size() == top) token->top.pop_back();
        token->top.insert(std::upper_bound(token->top.begin(), token->top.end(), found, better), found);
    }
}

}  // namespace

void LatencyCounts::add(double seconds) {
    const auto place = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    ++counts[static_cast<size_t>(place - kBounds.begin())];
    sum_s += seconds;
}

size_t SchedulerStats::busy_slots() const {
    return static_cast<size_t>(std::count_if(slots.begin(), slots.end(), [](const SlotInfo& s) { return s.state != SlotState::kIdle; }));
}

Scheduler::Scheduler(Forward& forward, WeightStore& store, const Tokenizer& tokenizer, const TokenTrie& trie,
                     std::vector<KvCache*> caches, size_t max_queue, RestHook rest, WatchHook watch, AutoPrecision* precision)
    : forward_(forward), store_(store), tokenizer_(tokenizer), trie_(trie), context_(caches.front()->capacity()), max_queue_(max_queue),
      rest_(std::move(rest)), precision_(precision),
      prompt_room_(std::min(kFirstPromptRoom, forward.max_batch())), decode_pass_s_(precision == nullptr ? 1 : precision->ladder().size()),
      watch_(std::move(watch)), monitor_(watch_.options) {
    for (KvCache* const cache : caches) {
        Slot& slot = slots_.emplace_back();
        slot.cache = cache;
        slot.cached.reserve(context_);
        slot.history.reserve(context_ + 1);
    }
    parts_.reserve(slots_.size());
    part_slots_.reserve(slots_.size());
    stats_.slots.resize(slots_.size());
    stats_.context = context_;
    stats_.store = store.stats();
    stats_.monitor = monitor_.state();
    if (precision_ != nullptr) stats_.precision = precision_->report();
    watched_ = stats_.store;
    thread_ = std::jthread([this](std::stop_token stop) { loop(std::move(stop)); });
}

Scheduler::~Scheduler() {
    thread_.request_stop();
    {
        const std::lock_guard lock(mutex_);
        wanted_.notify_all();
    }
    thread_.join();
}

std::shared_ptr<Generation> Scheduler::submit(GenerationRequest request) {
    if (request.prompt.empty()) throw Error("the prompt is empty: nothing to continue");
    if (request.prompt.size() >= context_) {
        throw Error("the prompt has " + std::to_string(request.prompt.size()) + " tokens and the context holds " +
                    std::to_string(context_) + ", with the answer");
    }
    auto work = std::make_shared<Generation>(std::move(request));
    const std::lock_guard lock(mutex_);
    if (draining_) throw Busy("the server is shutting down", 5);
    // A request that a free slot will take at once does not wait.
    const size_t free_slots = slots_.size() - stats_.busy_slots();
    if (queue_.size() >= max_queue_ + free_slots) {
        ++stats_.refused;
        const double wait = mean_request_s_ * static_cast<double>(queue_.size() + 1) / static_cast<double>(slots_.size());
        throw Busy("all " + std::to_string(slots_.size()) + " slots are busy and " + std::to_string(queue_.size()) + " requests wait",
                   static_cast<unsigned>(std::clamp(std::ceil(wait), 1.0, kLongestRetry)));
    }
    queue_.push_back(work);
    stats_.queued = queue_.size();
    wanted_.notify_one();
    return work;
}

bool Scheduler::drain(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    draining_ = true;
    return idle_.wait_for(lock, patience, [this] { return queue_.empty() && stats_.busy_slots() == 0; });
}

SchedulerStats Scheduler::stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
}

RecentEntropies Scheduler::recent_entropies() const {
    const std::lock_guard lock(mutex_);
    entropies_asked_at_ = Clock::now();
    return entropies_;
}

void Scheduler::loop(std::stop_token stop) {
    for (;;) {
        turns_.fetch_add(1, std::memory_order_relaxed);
        if (std::none_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.work != nullptr; })) wait_for_work(stop);
        if (stop.stop_requested()) break;
        admit();
        drop_cancelled();
        if (take_step()) publish();
    }
    for (Slot& slot : slots_) finish(slot, FinishReason::kInterrupted, "the server is shutting down");
    const std::lock_guard lock(mutex_);
    for (const auto& work : queue_) work->end(FinishReason::kInterrupted, "the server is shutting down");
    queue_.clear();
}

void Scheduler::wait_for_work(const std::stop_token& stop) {
    const auto asked = [&] { return !queue_.empty() || stop.stop_requested(); };
    std::unique_lock lock(mutex_);
    if (!rest_.change) return wanted_.wait(lock, asked);
    if (wanted_.wait_for(lock, rest_.after, asked)) return;
    lock.unlock();
    rest_.change(true);
    store_looked_at_ = {};
    publish();
    lock.lock();
    wanted_.wait(lock, asked);
    lock.unlock();
    rest_.change(false);
}

// The queue's first requests go to the slots that are free.
void Scheduler::admit() {
    for (;;) {
        if (std::all_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.work != nullptr; })) return;
        std::shared_ptr<Generation> work;
        Slot* slot = nullptr;
        {
            const std::lock_guard lock(mutex_);
            if (queue_.empty()) return;
            work = std::move(queue_.front());
            queue_.pop_front();
            stats_.queued = queue_.size();
            if (work->cancelled()) {
                work->end(FinishReason::kInterrupted, {});
                ++stats_.cancelled;
                if (queue_.empty() && stats_.busy_slots() == 0) idle_.notify_all();
                continue;
            }
            // It is never seen to be neither waiting nor in a slot.
            slot = &best_slot(work->request().prompt);
            stats_.slots[static_cast<size_t>(slot - slots_.data())].state = SlotState::kPrompt;
        }
        start(*slot, std::move(work));
        publish();
    }
}

// Of the free slots the one with the longest beginning in common, of equals the one that has lain longest.
Scheduler::Slot& Scheduler::best_slot(const std::vector<TokenId>& prompt) {
    Slot* best = nullptr;
    size_t best_common = 0;
    for (Slot& slot : slots_) {
        if (slot.work != nullptr) continue;
        const size_t common = slot.cached.common(prompt);
        if (best != nullptr && (common < best_common || (common == best_common && slot.last_used >= best->last_used))) continue;
        best = &slot;
        best_common = common;
    }
    return *best;
}

void Scheduler::start(Slot& slot, std::shared_ptr<Generation> work) {
    const GenerationRequest& request = work->request();
    // The last token of the prompt is computed in any case: its logits are the answer's beginning.
    const size_t common = std::min(slot.cached.common(request.prompt), request.prompt.size() - 1);
    // Layers with a window forget what lies far back; an embedding needs all of the prompt's hidden states.
    const size_t kept = slot.cache->holds(common) && !request.embeds ? common : 0;
    slot.cached.cut(kept);
    slot.cache->set_length(kept);
    slot.history.assign(request.prompt.begin(), request.prompt.end());
    slot.sampler.emplace(request.sampler);
    slot.constraint.reset();
    if (precision_ != nullptr && !request.embeds) slot.place.emplace(precision_->begin(request.prompt));
    slot.hidden_sum.assign(request.embeds ? forward_.dim() : 0, 0.0);
    slot.generated = 0;
    slot.work = std::move(work);
    slot.work->started(kept);
    if (slot.place) slot.work->adapts(slot.place->remembered, precision_->ladder().size());
    {
        const std::lock_guard lock(mutex_);
        stats_.cached_tokens += kept;
    }
    try {
        if (request.grammar != nullptr) slot.constraint.emplace(request.grammar, trie_);
    } catch (const GrammarError& error) {
        return finish(slot, FinishReason::kInterrupted, error.what());
    }
    if (request.max_tokens == 0) finish(slot, FinishReason::kLimit);
}

void Scheduler::drop_cancelled() {
    for (Slot& slot : slots_) {
        if (slot.work != nullptr && slot.work->cancelled()) finish(slot, FinishReason::kInterrupted);
    }
}

void Scheduler::plan_parts() {
    parts_.clear();
    part_slots_.clear();
    size_t room = forward_.max_batch(), prompts = 0;
    for (Slot& slot : slots_) {
        if (slot.work == nullptr) continue;
        if (!slot.decodes()) {
            ++prompts;
            continue;
        }
        parts_.push_back({slot.cache, std::span(slot.history).last(1), 1});
        part_slots_.push_back(&slot);
        --room;
    }
    if (!parts_.empty()) room = std::min(room, prompt_room_);
    bool has_logits = !parts_.empty();
    const size_t first = next_prompt_slot_++;
    for (size_t i = 0; i < slots_.size() && prompts > 0 && room > 0; ++i) {
        Slot& slot = slots_[(first + i) % slots_.size()];
        if (slot.work == nullptr || slot.decodes()) continue;
        const size_t n = std::min(slot.left_of_prompt(), (room + prompts - 1) / prompts);
        const bool embeds = !slot.hidden_sum.empty(), ends = n == slot.left_of_prompt();
        slot.scores = !embeds && !ends && (has_logits || ++unscored_pieces_ >= kPiecesPerScore);
        if (slot.scores) unscored_pieces_ = 0;
        const bool wants_logits = slot.scores || (ends && !embeds);
        has_logits |= wants_logits;
        parts_.push_back({slot.cache, std::span(slot.history).subspan(slot.cached.size(), n), wants_logits ? size_t{1} : 0,
                          embeds ? slot.hidden_sum.data() : nullptr});
        part_slots_.push_back(&slot);
        room -= n;
        --prompts;
    }
}

// Of all that is in the pass, the finest that something wants.
void Scheduler::choose_plan() {
    if (precision_ == nullptr) return;
    size_t finest = precision_->ladder().size() - 1, tokens = 0;
    for (const Slot* const slot : part_slots_) {
        const bool answers = slot->decodes() && slot->place;
        finest = std::min(finest, answers ? slot->place->rung() : AutoPrecision::kFinest);
        if (answers) ++tokens;
    }
    precision_->use(finest, tokens, &store_);
    for (const Slot* const slot : part_slots_)
        if (slot->decodes()) slot->work->computed_at(finest);
}

// One pass for all slots that have work. False where there is none.
bool Scheduler::take_step() {
    plan_parts();
    if (parts_.empty()) return false;
    size_t prompt_tokens = 0;
    bool decoding = false;
    for (size_t i = 0; i < parts_.size(); ++i) {
        if (part_slots_[i]->decodes()) decoding = true;
        else prompt_tokens += parts_[i].ids.size();
    }
    const auto begin = Clock::now();
    try {
        choose_plan();
        const std::span<const float> logits = forward_.pass(parts_, true);
        took(seconds_since(begin), prompt_tokens, decoding);
        {
            const std::lock_guard lock(mutex_);
            ++stats_.passes;
            stats_.prompt_tokens += prompt_tokens;
            stats_.busy_s += seconds_since(begin);
        }
        after_pass(logits);
    } catch (const std::exception& error) {
        for (Slot& slot : slots_) finish(slot, FinishReason::kInterrupted, error.what());
    }
    return true;
}

// How much of prompts a pass may hold beside decoding follows from what it costs those who wait for their next token.
void Scheduler::took(double seconds, size_t prompt_tokens, bool decoding) {
    ++pass_number_;
    if (!decoding) return;
    // A pass with prompts has the finest plan: what one without takes at a coarser plan says nothing of it.
    double& decode_pass_s = decode_pass_s_[precision_ == nullptr ? 0 : precision_->rung()];
    if (prompt_tokens == 0) {
        decode_pass_s = decode_pass_s == 0 ? seconds : (1 - kNewShare) * decode_pass_s + kNewShare * seconds;
        return;
    }
    if (decode_pass_s == 0) return;
    if (seconds > kSlowestPass * decode_pass_s) {
        prompt_room_ = std::max(std::min(kLeastPromptRoom, forward_.max_batch()), prompt_room_ / 2);
    } else if (seconds < kFastPass * decode_pass_s && prompt_tokens == prompt_room_) {
        prompt_room_ = std::min(forward_.max_batch(), prompt_room_ * 2);
    }
}

void Scheduler::after_pass(std::span<const float> logits) {
    size_t row = 0, rows = 0;
    for (const SequencePart& part : parts_) rows += part.logit_rows;
    const size_t width = rows == 0 ? 0 : logits.size() / rows;
    const bool finest = precision_ == nullptr || precision_->rung() == AutoPrecision::kFinest;
    for (size_t i = 0; i < parts_.size(); ++i) {
        Slot& slot = *part_slots_[i];
        slot.cached.add(parts_[i].ids, finest);
        slot.last_used = pass_number_;
        if (parts_[i].hidden_sum != nullptr && slot.left_of_prompt() == 0) finish_embedding(slot);
        if (parts_[i].logit_rows == 0) continue;
        const std::span<const float> own = logits.subspan(row++ * width, width);
        if (std::exchange(slot.scores, false)) {
            monitor_.score(log_norm(own) - own[static_cast<size_t>(slot.history[slot.cached.size()])]);
        } else {
            sample(slot, own);
        }
    }
}

// The mean has the direction of the sum.
void Scheduler::finish_embedding(Slot& slot) {
    double squares = 0;
    for (const double value : slot.hidden_sum) squares += value * value;
    std::vector<float> embedding;
    for (const double value : slot.hidden_sum) embedding.push_back(static_cast<float>(value / std::sqrt(squares)));
    if (squares > 0) return finish(slot, FinishReason::kEnd, {}, std::move(embedding));
    finish(slot, FinishReason::kInterrupted, "the hidden states of this text sum up to nothing");
}

TokenId Scheduler::draw(Slot& slot, std::span<const float> logits) {
    if (!slot.constraint) return slot.sampler->sample(logits, slot.history, slot.history.size());
    const TokenId id = slot.sampler->sample(logits, slot.history, slot.history.size(), slot.constraint->mask());
    slot.constraint->took(id);
    return id;
}

void Scheduler::sample(Slot& slot, std::span<const float> logits) {
    const GenerationRequest& request = slot.work->request();
    GeneratedToken token;
    try {
        token.id = draw(slot, logits);
    } catch (const GrammarError& error) {
        return finish(slot, FinishReason::kInterrupted, error.what());
    }
    slot.history.push_back(token.id);
    ++slot.generated;
    bool watched = false;
    {
        const std::lock_guard lock(mutex_);
        ++stats_.generated_tokens;
        if (slot.generated == 1) stats_.first_token.add(seconds_since(slot.work->submitted_));
        watched = Clock::now() - entropies_asked_at_ < kEntropiesFor;
    }
    std::optional<TokenSignal> signal;
    if (watched || slot.place) signal = signal_of(forward_.kernels(), slot.generated, logits);
    if (watched) remember_entropy(signal->entropy);
    if (!request.ignore_end && tokenizer_.ends_generation(token.id)) return finish(slot, FinishReason::kEnd);
    if (request.logprobs) fill_logprobs(logits, request.top_logprobs, &token);
    slot.work->add(std::move(token));
    if (slot.constraint && slot.constraint->complete()) return finish(slot, FinishReason::kEnd);
    if (slot.generated >= request.max_tokens) return finish(slot, FinishReason::kLimit);
    if (slot.cached.size() == context_) return finish(slot, FinishReason::kContext);
    if (slot.place) precision_->next(&*slot.place, slot.history.back(), *signal);
}

void Scheduler::remember_entropy(double nats) {
    const std::lock_guard lock(mutex_);
    std::vector<float>& kept = entropies_.nats;
    if (kept.size() == kEntropies) kept.erase(kept.begin());
    kept.push_back(static_cast<float>(nats));
    ++entropies_.end;
}

// Frees the slot; its cache stays for whoever begins alike.
void Scheduler::finish(Slot& slot, FinishReason reason, std::string error, std::vector<float> embedding) {
    if (slot.work == nullptr) return;
    const bool failed = !error.empty(), cancelled = slot.work->cancelled();
    const double took_s = seconds_since(slot.work->submitted_);
    {
        const std::lock_guard lock(mutex_);  // whoever learns of the end finds it counted
        ++(failed ? stats_.failed : cancelled ? stats_.cancelled : stats_.finished);
        publish_precision();
        mean_request_s_ = (1 - kNewShare) * mean_request_s_ + kNewShare * took_s;
    }
    if (slot.place && !failed) precision_->end(*slot.place);
    slot.place.reset();
    slot.work->end(reason, std::move(error), std::move(embedding));
    slot.work.reset();
    slot.constraint.reset();
    const std::lock_guard lock(mutex_);
    stats_.slots[static_cast<size_t>(&slot - slots_.data())].state = SlotState::kIdle;
    if (queue_.empty() && stats_.busy_slots() == 0) idle_.notify_all();
}

// Under the mutex.
void Scheduler::publish_precision() {
    if (precision_ == nullptr) return;
    stats_.precision = precision_->report();
    stats_.store.plan = precision_->ladder()[precision_->rung()].plan;
}

void Scheduler::publish() {
    // Looking at the store costs a walk over its table: not for every token.
    std::optional<StoreStats> store;
    if (Clock::now() - store_looked_at_ >= std::chrono::seconds(1)) {
        store = store_.stats();
        store_looked_at_ = Clock::now();
        watch(*store);
    }
    for (const sched::WarningChange& change : monitor_.take_changes()) {
        if (watch_.change) watch_.change(change);
    }
    const std::lock_guard lock(mutex_);
    if (store) stats_.store = std::move(*store);
    publish_precision();
    stats_.monitor = monitor_.state();
    for (size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        SlotInfo& info = stats_.slots[i];
        info.state = slot.work == nullptr ? SlotState::kIdle : slot.generated > 0 ? SlotState::kDecode : SlotState::kPrompt;
        info.cached_tokens = slot.cached.size();
        info.prompt_tokens = slot.work == nullptr ? 0 : slot.work->request().prompt.size();
        info.generated = slot.work == nullptr ? 0 : slot.generated;
    }
}

// What a second of serving came to goes to the monitor.
void Scheduler::watch(const StoreStats& store) {
    // The pass after a budget grew reads what is to stay; the one before that may have begun to.
    if (store.budget_changes != watched_.budget_changes) filling_samples_ = 2;
    sched::MonitorSample sample;
    {
        const std::lock_guard lock(mutex_);
        sample.busy_s = stats_.busy_s - std::exchange(watched_busy_s_, stats_.busy_s);
    }
    sample.stall_s = static_cast<double>(store.stall_us - watched_.stall_us) / 1e6;
    sample.bytes_read = store.bytes_read - watched_.bytes_read;
    sample.must_read = store.must_read_bytes - watched_.must_read_bytes;
    sample.must_is_known = filling_samples_ == 0 && store.expert_bytes == 0;
    if (filling_samples_ > 0 && sample.busy_s > 0) --filling_samples_;
    const MemoryLimits memory = read_memory_limits();
    if (memory.total > watch_.ram_budget) {
        const uint64_t used = memory.total - memory.available, own = std::min(used, resident_now());
        sample.memory_share = static_cast<double>(used - own) / static_cast<double>(memory.total - watch_.ram_budget);
    }
    watched_ = store;
    monitor_.sample(sample);
}

}  // namespace weir
