// One request's way through the scheduler: made by whoever asks, filled token by token by the scheduler's thread, and read by
// the asker at its own pace. Letting go of it without reading on is fine after cancel().
//
// Threads: next(), cancel() and the figures belong to the asker; the rest to the scheduler.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/engine/generate.h"
#include "runtime/engine/sampler.h"
#include "runtime/model/tokenizer.h"
#include "runtime/service/grammar.h"

namespace weir {

struct GenerationRequest {
    std::vector<TokenId> prompt;
    SamplerOptions sampler;
    size_t max_tokens = SIZE_MAX;
    bool ignore_end = false;
    bool logprobs = false;     // of each token, and
    size_t top_logprobs = 0;   // of the likeliest ones in its place
    bool embeds = false;       // no answer: Outcome::embedding, of all of the prompt
    std::shared_ptr<const Grammar> grammar;  // what the answer may be; none: anything
};

// The natural logarithm of a token's probability, by the model alone: before temperature and filters.
struct TokenLogprob {
    TokenId id;
    float logprob;
};

struct GeneratedToken {
    TokenId id = 0;
    float logprob = 0;                // where they were asked for, as what follows
    std::vector<TokenLogprob> top;    // the likeliest first
};

class Generation {
  public:
    using Clock = std::chrono::steady_clock;

    explicit Generation(GenerationRequest request) : request_(std::move(request)) {}

    // The next token; kEnd when there will be none, kNothing when none has come within the time.
    enum class Next : uint8_t { kToken, kEnd, kNothing };
    Next next(GeneratedToken* token, std::chrono::milliseconds patience);

    // The slot is free when the pass under way has ended. Safe at any time, from any thread.
    void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
    bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

    const GenerationRequest& request() const { return request_; }

    // What became of it. Final after kEnd; a snapshot before.
    struct Outcome {
        FinishReason finish = FinishReason::kInterrupted;
        std::string error;         // why it ended early; "" where nothing went wrong
        size_t prompt_tokens = 0;
        size_t cached_tokens = 0;  // of them, taken over from an earlier request
        size_t tokens = 0;
        double queued_s = 0;       // until a slot took it
        double prompt_s = 0;       // from then to the first token
        double decode_s = 0;       // from the first token to the last
        std::vector<float> embedding;  // [dim] of length 1, where it was asked for
        std::vector<uint64_t> tokens_at;  // by the rung that computed them, the first token left out; none: the precision is fixed
        bool remembered = false;          // it began with the plan that a prompt of its kind had ended with
    };
    Outcome outcome() const;

  private:
    friend class Scheduler;
    void started(size_t cached_tokens);
    void adapts(bool remembered, size_t rungs);
    void computed_at(size_t rung);
    void add(GeneratedToken token);
    void end(FinishReason finish, std::string error, std::vector<float> embedding = {});

    const GenerationRequest request_;
    const Clock::time_point submitted_ = Clock::now();
    std::atomic<bool> cancelled_{false};

    mutable std::mutex mutex_;  // of all below
    std::condition_variable changed_;
    std::deque<GeneratedToken> waiting_;
    bool ended_ = false;
    Outcome outcome_;
    Clock::time_point started_, first_;
};

}  // namespace weir
