#include "runtime/engine/score.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace weir {
namespace {

constexpr size_t kDraws = 2000;
constexpr uint64_t kSeed = 1;

size_t first_choice(std::span<const float> logits) {
    return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

template <typename Value>
double mean(size_t n, Value&& value) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += value(i);
    return sum / static_cast<double>(n);
}

// Of all positions of all windows.
template <typename Value>
std::vector<double> gather(std::span<const WindowScore> windows, Value&& value) {
    std::vector<double> all;
    for (const WindowScore& w : windows)
        for (size_t i = 0; i < w.surprise.size(); ++i) all.push_back(value(w, i));
    return all;
}

Total total_of(const std::vector<double>& surprises) {
    Total t;
    t.scored = surprises.size();
    t.nll = mean(t.scored, [&](size_t i) { return surprises[i]; });
    const double variance = mean(t.scored, [&](size_t i) { return (surprises[i] - t.nll) * (surprises[i] - t.nll); });
    if (t.scored > 1) t.nll_error = std::sqrt(variance / static_cast<double>(t.scored - 1));
    return t;
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(top));
    return static_cast<double>(top) + std::log(sum);
}

double surprise(std::span<const float> logits, TokenId id) {
    return log_sum_exp(logits) - static_cast<double>(logits[static_cast<size_t>(id)]);
}

// In differences of logits, so that what is small is not lost in what is large.
double kl_divergence(std::span<const float> truth, double truth_sum, std::span<const float> logits, double sum) {
    double kl = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
        const double p = std::exp(static_cast<double>(truth[i]) - truth_sum);
        kl += p * (static_cast<double>(truth[i]) - static_cast<double>(logits[i]));
    }
    return std::max(0.0, kl + sum - truth_sum);
}

Divergence divergence(std::span<const float> truth, std::span<const float> logits, TokenId id) {
    const double truth_sum = log_sum_exp(truth), sum = log_sum_exp(logits);
    Divergence d;
    d.kl = kl_divergence(truth, truth_sum, logits, sum);
    d.same_first = first_choice(truth) == first_choice(logits);
    d.surprise = sum - static_cast<double>(logits[static_cast<size_t>(id)]);
    d.truth_surprise = truth_sum - static_cast<double>(truth[static_cast<size_t>(id)]);
    return d;
}

void score_window(std::span<const TokenId> ids, Reader model, std::optional<Reader> reference, Team& team, size_t rows,
                  bool next_follows, WindowScore* score) {
    const size_t first = ids.size() / 2;   // whose prediction is the first that counts
    const size_t end = ids.size() - 1;     // the last token has nothing to foretell
    const auto read = [&](Reader r, size_t from, size_t n, size_t logit_rows, bool more) {
        return r.forward->pass(ids.subspan(from, n), logit_rows, more);
    };
    const auto begin = [&](Reader r) {
        r.cache->set_length(0);
        for (size_t at = 0, n = 0; at < first; at += n) {
            n = std::min(r.forward->max_batch(), first - at);
            read(r, at, n, 0, true);
        }
    };
    begin(model);
    if (reference) begin(*reference);
    for (size_t at = first, n = 0; at < end; at += n) {
        n = std::min(rows, end - at);
        const bool more = at + n < end || next_follows;
        const std::span<const float> logits = read(model, at, n, n, more);
        const std::span<const float> truth = reference ? read(*reference, at, n, n, more) : std::span<const float>();
        const size_t n_vocab = logits.size() / n;
        team.run([&](size_t worker) {
            for (size_t t = worker; t < n; t += team.size()) {
                const auto row = logits.subspan(t * n_vocab, n_vocab);
                const TokenId next = ids[at + t + 1];
                const size_t place = at + t - first;
                if (reference) {
                    score->compared[place] = divergence(truth.subspan(t * n_vocab, n_vocab), row, next);
                    score->surprise[place] = score->compared[place].surprise;
                } else {
                    score->surprise[place] = surprise(row, next);
                }
            }
        });
    }
}

Interval bootstrap(std::span<const double> per_window) {
    const size_t n = per_window.size();
    Interval out;
    out.mean = mean(n, [&](size_t i) { return per_window[i]; });
    std::mt19937_64 random(kSeed);
    std::vector<double> means;
    for (size_t draw = 0; draw < kDraws; ++draw) means.push_back(mean(n, [&](size_t) { return per_window[random() % n]; }));
    std::sort(means.begin(), means.end());
    out.low = means[kDraws / 40];
    out.high = means[kDraws - 1 - kDraws / 40];
    return out;
}

double Total::perplexity() const { return std::exp(nll); }

Total total_of(std::span<const WindowScore> windows) {
    return total_of(gather(windows, [](const WindowScore& w, size_t i) { return w.surprise[i]; }));
}

Comparison comparison_of(std::span<const WindowScore> windows) {
    Comparison c;
    c.reference = total_of(gather(windows, [](const WindowScore& w, size_t i) { return w.compared[i].truth_surprise; }));
    std::vector<double> kl = gather(windows, [](const WindowScore& w, size_t i) { return w.compared[i].kl; });
    const std::vector<double> same = gather(windows, [](const WindowScore& w, size_t i) { return w.compared[i].same_first ? 1.0 : 0.0; });
    std::sort(kl.begin(), kl.end());
    c.kl_median = kl[kl.size() / 2];
    c.kl_p99 = kl[kl.size() * 99 / 100];
    c.same_first = mean(same.size(), [&](size_t i) { return same[i]; });
    std::vector<double> per_window;
    for (const WindowScore& w : windows) per_window.push_back(mean_kl(w));
    c.kl = bootstrap(per_window);
    return c;
}

double mean_surprise(const WindowScore& w) {
    return mean(w.surprise.size(), [&](size_t i) { return w.surprise[i]; });
}
double mean_kl(const WindowScore& w) {
    return mean(w.compared.size(), [&](size_t i) { return w.compared[i].kl; });
}

}  // namespace weir
