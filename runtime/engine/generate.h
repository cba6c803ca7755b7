// A prompt in, tokens out: prefill in batches, then one pass per token, or per draft of several, until the answer ends, a limit
// is reached, the context is full or somebody wants it to stop. Drafts change no bit: not the tokens, nor the logits that each
// was drawn from.
//
// Called by the thread that owns the Forward. Throws what a pass throws.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/draft.h"
#include "runtime/engine/forward.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/weight_store.h"
#include "runtime/model/tokenizer.h"

namespace weir {

enum class FinishReason : uint8_t { kEnd, kLimit, kContext, kInterrupted };
const char* finish_reason_name(FinishReason reason);

struct GenerateOptions {
    SamplerOptions sampler;
    size_t max_tokens = SIZE_MAX;
    bool ignore_end = false;  // go on after an end-of-generation token
    size_t warmup_tokens = 2; // before a steady state is expected; at least 1
    bool adapt_threads = true; // where weights are paged and nothing is drafted: fewer workers a token while that is faster, see worker_count.h
};

struct GenerateResult {
    std::vector<TokenId> ids;
    FinishReason finish = FinishReason::kLimit;
    double prompt_s = 0;       // prefill, first token included
    double decode_s = 0;       // from the first token to the last
    double mean_workers = 0;   // that decoded a token
    double mean_entropy = 0;   // nats per generated token, of the softmax at temperature 1
    std::string logits_hash;   // XXH64 over the raw F32 logits of every generated step, 16 hex digits

    uint64_t first_token_bytes = 0;  // read by the store until the first token was there

    // What followed the warm-up; nothing for answers that end with it.
    struct Steady {
        size_t tokens = 0;
        double seconds = 0;
        uint64_t bytes_read = 0;     // by the store
        uint64_t must_read_bytes = 0;  // of them at least, see StoreStats
        uint64_t storage_bytes = 0;  // by /proc/self/io
        uint64_t faults = 0;         // of userfaultfd
        uint64_t major_faults = 0;   // that waited for storage, of the process
        uint64_t waits = 0;          // at gates
        uint64_t stall_us = 0;
        double cpu_seconds = 0;      // of the process
        double pager_cpu_seconds = 0;  // of them, the pager thread's
    };
    std::optional<Steady> steady;
    std::optional<DraftReport> drafts;
};

// The distribution that a token was drawn from, at temperature 1.
struct TokenSignal {
    size_t token = 0;    // its number, from 0
    double entropy = 0;  // nats
    double margin = 0;   // probability of the first choice less that of the second
};

// From its logits, which are as many as the vocabulary has tokens.
TokenSignal signal_of(const kernels::KernelSet& kernels, size_t token, std::span<const float> logits);

struct GenerateHooks {
    std::function<bool(TokenId)> on_token;                         // false: stop, as if interrupted
    std::function<void(TokenId, const TokenSignal&)> before_pass;  // that reads the token, drawn from what the signal is of
    std::function<void(size_t done, size_t total)> on_prompt;      // tokens of the prompt
    const std::atomic<bool>* stop = nullptr;                       // looked at once per pass
};

// The cache is empty or holds what precedes the prompt; afterwards what was verified, too. drafter: nullptr, or what guesses
// tokens ahead; not with hooks that change the precision. Throws Error where the prompt is empty or does not fit.
GenerateResult generate(Forward& forward, KvCache& cache, const WeightStore& store, const Tokenizer& tokenizer,
                        std::span<const TokenId> prompt, const GenerateOptions& options, const GenerateHooks& hooks,
                        Drafter* drafter = nullptr);

}  // namespace weir
