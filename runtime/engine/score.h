// How well a model foretells a text: perplexity over windows, and the Kullback-Leibler divergence of its distributions from
// those of another model that reads the same windows in step with it.
//
// Windows are those of llama.cpp's perplexity tool: the ids of the whole text are cut into pieces of equal size, what does
// not fill one is left out, each begins with an empty cache and with BOS in its first place where the vocabulary asks for
// one, and only the second half is scored, so that every prediction has half a window of context at least.
//
// Threads: called by the owner of the Forward. Throws what a pass throws.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/forward.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/engine/team.h"
#include "runtime/model/tokenizer.h"

namespace weir {

// Predictions of a window that count: the last size - size / 2 - 1.
constexpr size_t scored_per_window(size_t window) { return window - window / 2 - 1; }
constexpr size_t kLeastWindow = 4;

// log of the sum of exp(logit).
double log_sum_exp(std::span<const float> logits);

// -log softmax(logits)[id], nats.
double surprise(std::span<const float> logits, TokenId id);

// KL(softmax(truth) || softmax(logits)), nats, over the whole vocabulary. Sums: of either, by log_sum_exp().
double kl_divergence(std::span<const float> truth, double truth_sum, std::span<const float> logits, double sum);

// Of one position: KL(softmax(truth) || softmax(logits)), nats; whether both have the same first
// choice; what each thought of the token that came.
struct Divergence {
    double kl = 0;
    bool same_first = false;
    double surprise = 0;
    double truth_surprise = 0;
};
Divergence divergence(std::span<const float> truth, std::span<const float> logits, TokenId id);

struct Reader {
    Forward* forward;
    KvCache* cache;
};

// One entry per scored position, filled by score_window().
struct WindowScore {
    WindowScore(size_t window, bool compared)
        : surprise(scored_per_window(window)), compared(compared ? scored_per_window(window) : 0) {}
    std::vector<double> surprise;
    std::vector<Divergence> compared;  // empty without a reference
};

// ids: the window, BOS in place. At most `rows` rows of logits at a time, of each model. The team shares out the rows.
// next_follows: another window comes right after.
void score_window(std::span<const TokenId> ids, Reader model, std::optional<Reader> reference, Team& team, size_t rows,
                  bool next_follows, WindowScore* score);

// A mean over windows and the 95 % interval of it, by drawing windows anew (Efron 1979): positions of a window hang together,
// windows do not. The same input gives the same interval.
struct Interval {
    double mean = 0;
    double low = 0;
    double high = 0;
};
Interval bootstrap(std::span<const double> per_window);

struct Total {
    size_t scored = 0;
    double nll = 0;          // nats per token
    double nll_error = 0;    // standard error, positions taken as independent (as llama.cpp's tool has it)
    double perplexity() const;
    double perplexity_error() const { return perplexity() * nll_error; }
};
Total total_of(std::span<const WindowScore> windows);

struct Comparison {
    Total reference;
    Interval kl;             // nats per position
    double kl_median = 0;
    double kl_p99 = 0;
    double same_first = 0;   // share of positions
};
Comparison comparison_of(std::span<const WindowScore> windows);

double mean_surprise(const WindowScore& window);
double mean_kl(const WindowScore& window);

}  // namespace weir
