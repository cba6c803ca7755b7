#include "runtime/engine/generate.h"

#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "runtime/engine/memory_limits.h"
#include "runtime/engine/worker_count.h"
#include "runtime/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

struct rusage own_usage() {
    struct rusage u;
    ::getrusage(RUSAGE_SELF, &u);
    return u;
}

double cpu_seconds(const struct rusage& u) {
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

class LogitsHash {
  public:
    LogitsHash() : state_(::XXH64_createState()) {
        if (state_ == nullptr || ::XXH64_reset(state_.get(), 0) != XXH_OK) throw std::bad_alloc();
    }
    void add(std::span<const float> logits) { ::XXH64_update(state_.get(), logits.data(), logits.size_bytes()); }
    std::string text() const {
        char hex[17];
        std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(::XXH64_digest(state_.get())));
        return hex;
    }

  private:
    struct Free {
        void operator()(XXH64_state_t* s) const { ::XXH64_freeState(s); }
    };
    std::unique_ptr<XXH64_state_t, Free> state_;
};

// Where the counters stand.
struct Mark {
    Clock::time_point time = Clock::now();
    StoreStats store;
    uint64_t storage = storage_bytes_read();
    struct rusage usage = own_usage();
};

GenerateResult::Steady steady_between(const Mark& a, const Mark& b, size_t tokens) {
    GenerateResult::Steady s;
    s.tokens = tokens;
    s.seconds = seconds_between(a.time, b.time);
    s.bytes_read = b.store.bytes_read - a.store.bytes_read;
    s.must_read_bytes = b.store.must_read_bytes - a.store.must_read_bytes;
    s.storage_bytes = b.storage - a.storage;
    s.faults = b.store.faults - a.store.faults;
    s.major_faults = static_cast<uint64_t>(b.usage.ru_majflt - a.usage.ru_majflt);
    s.waits = b.store.waits - a.store.waits;
    s.stall_us = b.store.stall_us - a.store.stall_us;
    s.cpu_seconds = cpu_seconds(b.usage) - cpu_seconds(a.usage);
    s.pager_cpu_seconds = static_cast<double>(b.store.pager_cpu_us - a.store.pager_cpu_us) / 1e6;
    return s;
}

}  // namespace

// Of a vocabulary of 262144 this took 2.7 to 7.4 ms by one exp() at a time in double, and takes 0.3 ms by the kernels' in pieces.
TokenSignal signal_of(const kernels::KernelSet& kernels, size_t token, std::span<const float> logits) {
    constexpr size_t kLanes = 16, kPiece = 1024;
    std::array<float, kLanes> firsts, seconds;  // of every sixteenth logit, for the sake of vectors
    firsts.fill(-INFINITY);
    seconds.fill(-INFINITY);
    const auto see = [&](size_t lane, float logit) {
        seconds[lane] = std::max(seconds[lane], std::min(firsts[lane], logit));
        firsts[lane] = std::max(firsts[lane], logit);
    };
    const size_t whole = logits.size() / kLanes * kLanes;
    for (size_t i = 0; i < whole; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) see(lane, logits[i + lane]);
    for (size_t i = whole; i < logits.size(); ++i) see(0, logits[i]);
    float first = -INFINITY, second = -INFINITY;
    for (size_t lane = 0; lane < kLanes; ++lane) {
        second = std::max({second, seconds[lane], std::min(first, firsts[lane])});
        first = std::max(first, firsts[lane]);
    }
    double sum = 0, weighted = 0;
    std::array<float, kPiece> x, e;
    for (size_t at = 0; at < logits.size(); at += kPiece) {
        const size_t n = std::min(kPiece, logits.size() - at);
        for (size_t i = 0; i < n; ++i) x[i] = e[i] = logits[at + i] - first;
        float most = 0, piece_sum = 0;  // no x is greater than 0
        kernels.softmax_piece(e.data(), n, &most, &piece_sum);
        sum += static_cast<double>(piece_sum);
        weighted += static_cast<double>(kernels.dot_f32(e.data(), x.data(), n));
    }
    return {token, std::log(sum) - weighted / sum, (1 - std::exp(static_cast<double>(second - first))) / sum};
}

const char* finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::kEnd: return "end";
        case FinishReason::kLimit: return "limit";
        case FinishReason::kContext: return "context";
        case FinishReason::kInterrupted: return "interrupted";
    }
    return "?";
}

GenerateResult generate(Forward& forward, KvCache& cache, const WeightStore& store, const Tokenizer& tokenizer,
                        std::span<const TokenId> prompt, const GenerateOptions& options, const GenerateHooks& hooks,
                        Drafter* drafter) {
    if (prompt.empty()) throw Error("the prompt is empty: nothing to continue");
    if (prompt.size() > cache.capacity() - cache.length()) {
        throw Error("the prompt has " + std::to_string(prompt.size()) + " tokens and the context holds " +
                    std::to_string(cache.capacity()) + ", of which " + std::to_string(cache.length()) +
                    " are taken; give a larger one (-c) or a shorter prompt");
    }
    GenerateResult result;
    const auto stopped = [&] { return hooks.stop != nullptr && hooks.stop->load(std::memory_order_relaxed); };
    const auto begin = Clock::now();
    if (options.max_tokens == 0) {
        result.logits_hash = LogitsHash().text();
        return result;
    }

    std::span<const float> logits;
    for (size_t done = 0; done < prompt.size();) {
        if (stopped()) {
            result.finish = FinishReason::kInterrupted;
            result.logits_hash = LogitsHash().text();
            return result;
        }
        const size_t n = std::min(forward.max_batch(), prompt.size() - done);
        const bool last = done + n == prompt.size();
        logits = forward.pass(prompt.subspan(done, n), last ? 1 : 0, !last || options.max_tokens > 1);
        done += n;
        if (hooks.on_prompt) hooks.on_prompt(done, prompt.size());
    }

    LogitsHash hash;
    Sampler sampler(options.sampler);
    std::vector<TokenId> history(prompt.begin(), prompt.end());
    Clock::time_point first_token{};
    std::optional<Mark> steady_from;
    size_t steady_after = 0;  // tokens
    double entropy = 0;
    const bool adapts = options.adapt_threads && drafter == nullptr && store.extent_bytes() != SIZE_MAX && forward.most_workers() > 1;
    WorkerCount workers(forward.most_workers());
    size_t worker_tokens = 0;
    // The last pass left a row of logits for the newest token and one for each draft behind it. Of these a row counts while
    // all drafts before it are what was drawn.
    const size_t n_vocab = logits.size();
    std::span<const TokenId> drafts;
    size_t row = 0;
    size_t verified = cache.length();  // positions of the cache that hold what was drawn
    for (;;) {
        const std::span<const float> drawn_from = logits.subspan(row * n_vocab, n_vocab);
        hash.add(drawn_from);
        const TokenSignal signal = signal_of(forward.kernels(), result.ids.size(), drawn_from);
        entropy += signal.entropy;
        const TokenId id = sampler.sample(drawn_from, history, history.size());
        result.ids.push_back(id);
        history.push_back(id);
        if (result.ids.size() == 1) {
            first_token = Clock::now();
            result.prompt_s = seconds_between(begin, first_token);
            result.first_token_bytes = store.stats().bytes_read;
        }
        std::optional<FinishReason> finish;
        const bool wanted = !hooks.on_token || hooks.on_token(id);
        if (!options.ignore_end && tokenizer.ends_generation(id)) {
            finish = FinishReason::kEnd;
        } else if (!wanted || stopped()) {
            finish = FinishReason::kInterrupted;
        } else if (result.ids.size() >= options.max_tokens) {
            finish = FinishReason::kLimit;
        } else if (verified == cache.capacity()) {
            finish = FinishReason::kContext;
        }
        const bool judged = row < drafts.size(), right = judged && drafts[row] == id;
        if (right && !finish) {
            ++row;
            ++verified;
            continue;
        }
        if (drafter != nullptr) drafter->judged(row + (judged ? 1 : 0), row + (right ? 1 : 0));
        cache.set_length(verified);
        if (finish) {
            result.finish = *finish;
            break;
        }
        if (!steady_from && result.ids.size() >= options.warmup_tokens) {
            steady_after = result.ids.size();
            steady_from.emplace();
            steady_from->store = store.stats();
        }
        if (hooks.before_pass) hooks.before_pass(id, signal);

        const size_t room = std::min(options.max_tokens - result.ids.size(), cache.capacity() - verified) - 1;
        const std::span<const TokenId> batch = drafter != nullptr ? drafter->draft(&history, room) : std::span(&history.back(), 1);
        const bool another = result.ids.size() + batch.size() < options.max_tokens && verified + batch.size() < cache.capacity();
        const uint64_t stalled = store.stall_us();
        const auto pass_begin = Clock::now();
        if (adapts) forward.set_workers(workers.workers());
        logits = forward.pass(batch, batch.size(), another && (drafter == nullptr || !drafter->plan_will_change()));
        drafts = batch.subspan(1);
        row = 0;
        ++verified;
        if (drafter != nullptr) drafter->pass_done();
        if (!adapts) continue;
        worker_tokens += workers.workers();
        const double seconds = seconds_between(pass_begin, Clock::now());
        workers.took(seconds, static_cast<double>(store.stall_us() - stalled) / 1e6 / seconds);
    }
    result.decode_s = seconds_between(first_token, Clock::now());
    forward.set_workers(forward.most_workers());
    result.mean_workers = static_cast<double>(forward.most_workers());
    if (worker_tokens > 0) result.mean_workers = static_cast<double>(worker_tokens) / static_cast<double>(result.ids.size() - 1);
    result.mean_entropy = entropy / static_cast<double>(result.ids.size());
    result.logits_hash = hash.text();
    if (steady_from) {
        Mark now;
        now.store = store.stats();
        result.steady = steady_between(*steady_from, now, result.ids.size() - steady_after);
    }
    if (drafter != nullptr) result.drafts = drafter->report();
    return result;
}

}  // namespace weir
