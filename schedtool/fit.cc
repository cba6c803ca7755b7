#include "schedtool/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

namespace weir::sched {
namespace {

constexpr size_t kDraws = 1000;
constexpr uint64_t kSeed = 1;
constexpr size_t kSignalGroups = 16;
constexpr double kLeastPrice = 1e-30;  // of a byte, in nats: far below any that matters
// Of thresholds: enough of them in a grid to find the right region, and in the steps after it to be right within 2 %
// of tokens.
constexpr size_t kGrid = 8, kSteps = 48;
constexpr size_t kRounds = 8;
constexpr size_t kSure[] = {1, 2, 3, 5, 8, 13};
constexpr size_t kMostSteps = 3;  // of a piece of the ladder, from its first plan to its last

bool begins_window(const TokenTrace& trace, size_t token) {
    return token == 0 || trace.windows[token] != trace.windows[token - 1];
}

double bytes_of(const RatedPlan& plan) { return static_cast<double>(plan.bytes); }

// [0, 1/n, ... 1] quantiles.
std::vector<double> quantiles(std::vector<double> values, size_t n) {
    std::sort(values.begin(), values.end());
    std::vector<double> q;
    for (size_t i = 0; i <= n; ++i) q.push_back(values[(values.size() - 1) * i / n]);
    return q;
}

// Which of the groups between quantiles a value is of, from 0.
size_t group_of(std::span<const double> bounds, double value) {
    const auto above = std::upper_bound(bounds.begin() + 1, bounds.end() - 1, value);
    return static_cast<size_t>(above - bounds.begin()) - 1;
}

template <typename Value>
std::vector<double> finest(const TokenTrace& trace, const Value& value) {
    std::vector<double> all;
    for (size_t t = 0; t < trace.n_tokens(); ++t) all.push_back(value(trace.at(t)[0].signal));
    return all;
}

// Thresholds to try.
struct Candidates {
    Candidates(const TokenTrace& trace, size_t n)
        : entropy(quantiles(finest(trace, [](const Signal& s) { return s.entropy; }), n)),
          margin(quantiles(finest(trace, [](const Signal& s) { return s.margin; }), n)) {
        entropy.front() = 0;        // below it: never
        entropy.back() = HUGE_VAL;  // above it: never
        margin.front() = 0;         // never
    }
    std::vector<double> entropy, margin;
};

// visit(token, plan)
template <typename Visit>
void walk(const TokenTrace& trace, const Tuning& tuning, const Visit& visit) {
    const size_t rungs = tuning.last - tuning.first + 1;
    std::optional<Scheduler> scheduler;
    for (size_t t = 0; t < trace.n_tokens(); ++t) {
        if (begins_window(trace, t))
            scheduler.emplace(rungs, rungs / 2, tuning.options);
        else
            scheduler->next(trace.at(t - 1)[tuning.first + scheduler->rung()].signal);
        visit(t, tuning.first + scheduler->rung());
    }
}

class Search {
  public:
    Search(const TokenTrace& trace, double bytes)
        : trace_(trace),
          bytes_(bytes),
          coarse_(trace, kGrid),
          fine_(trace, kSteps),
          best_{{}, 0, trace.plans.size() - 1} {}

    void look_over(size_t first, size_t last) {
        for (size_t raise = 0; raise <= kGrid; ++raise)
            for (size_t lower = 0; lower <= raise; ++lower)
                for (const double margin : {coarse_.margin[0], coarse_.margin[1], coarse_.margin[2]})
                    for (const size_t sure : kSure)
                        look_at({{coarse_.entropy[raise], coarse_.entropy[lower], margin, sure}, first, last});
    }

    void refine() {
        for (size_t round = 0, before = SIZE_MAX; round < kRounds && found_ != before; ++round) {
            before = found_;
            try_each(fine_.entropy, &SchedulerOptions::raise_above);
            try_each(fine_.entropy, &SchedulerOptions::lower_below);
            try_each(fine_.margin, &SchedulerOptions::unsure_margin);
            try_each(kSure, &SchedulerOptions::sure_tokens);
        }
    }

    const Tuning& best() const { return best_; }

  private:
    template <typename Values, typename Member>
    void try_each(const Values& values, Member SchedulerOptions::*threshold) {
        Tuning tuning = best_;
        for (const auto value : values) {
            tuning.options.*threshold = value;
            look_at(tuning);
        }
    }

    void look_at(const Tuning& tuning) {
        if (tuning.options.lower_below > tuning.options.raise_above) return;
        const Cost cost = cost_of(trace_, tuning);
        const bool fits = cost.bytes <= bytes_, fitted = best_cost_.bytes <= bytes_;
        const bool better = fits ? !fitted || cost.kl < best_cost_.kl : !fitted && cost.bytes < best_cost_.bytes;
        if (!better) return;
        best_ = tuning;
        best_cost_ = cost;
        ++found_;
    }

    const TokenTrace& trace_;
    const double bytes_;
    const Candidates coarse_, fine_;
    Tuning best_;
    Cost best_cost_{HUGE_VAL, HUGE_VAL};
    size_t found_ = 0;
};

void add(Groups* groups, size_t group, std::span<const TokenAtPlan> plans) {
    groups->tokens[group] += 1;
    for (size_t p = 0; p < plans.size(); ++p) groups->kl[group * plans.size() + p] += plans[p].kl;
}

Groups empty_groups(size_t n, size_t plans) { return {std::vector<double>(n), std::vector<double>(n * plans)}; }

// visit as of walk() above
template <typename Visit>
void walk(const TokenTrace& trace, const TokenPlans& by_token, const Visit& visit) {
    for (size_t t = 0; t < trace.n_tokens(); ++t) visit(t, by_token.rung(trace.inputs[t]));
}

template <typename Rule>
std::vector<WindowSums> sums_of(const TokenTrace& trace, const Rule& rule) {
    std::vector<WindowSums> sums;
    walk(trace, rule, [&](size_t t, size_t plan) {
        if (begins_window(trace, t)) sums.push_back({0, 0, 0, std::vector<double>(trace.plans.size())});
        WindowSums& w = sums.back();
        w.tokens += 1;
        w.bytes += bytes_of(trace.plans[plan]);
        w.kl += trace.at(t)[plan].kl;
        for (size_t p = 0; p < trace.plans.size(); ++p) w.plans[p] += trace.at(t)[p].kl;
    });
    return sums;
}

// Of windows, as they are or drawn anew.
struct Sum {
    explicit Sum(size_t plans) : mix(empty_groups(1, plans)) {}

    void add(const WindowSums& w) {
        mix.tokens[0] += w.tokens;
        bytes += w.bytes;
        kl += w.kl;
        for (size_t p = 0; p < w.plans.size(); ++p) mix.kl[p] += w.plans[p];
    }
    Cost mean() const { return {bytes / mix.tokens[0], kl / mix.tokens[0]}; }

    Groups mix;
    double bytes = 0, kl = 0;
};

}  // namespace

Cost cost_of_plan(const TokenTrace& trace, size_t plan) { return cost_of(trace, {{}, plan, plan}); }

Cost cost_of(const TokenTrace& trace, const Tuning& tuning) {
    Cost sum;
    walk(trace, tuning, [&](size_t t, size_t plan) {
        sum.bytes += bytes_of(trace.plans[plan]);
        sum.kl += trace.at(t)[plan].kl;
    });
    const auto n = static_cast<double>(trace.n_tokens());
    return {sum.bytes / n, sum.kl / n};
}

Tuning fit_scheduler(const TokenTrace& trace, double bytes) {
    Search search(trace, bytes);
    const size_t plans = trace.plans.size();
    for (size_t first = 0; first < plans; ++first)
        for (size_t last = first + 1; last < plans; ++last) {
            const bool around = bytes_of(trace.plans[first]) >= bytes && bytes_of(trace.plans[last]) <= bytes;
            if ((last - first <= kMostSteps && around) || last - first + 1 == plans) search.look_over(first, last);
        }
    search.refine();
    return search.best();
}

TokenPlans fit_token_plans(const TokenTrace& trace, double bytes) {
    constexpr double kPriorTokens = 8;  // mean ones, beside those that were seen
    TokenPlans fitted{trace.model, trace.plans, 0, {}};
    for (size_t p = 0; p < trace.plans.size(); ++p) fitted.plans[p].kl = cost_of_plan(trace, p).kl;
    std::map<int32_t, double> seen;
    for (size_t t = 0; t < trace.n_tokens(); ++t) {
        double cost = 0, plans = 0;
        for (size_t p = 0; p < trace.plans.size(); ++p) {
            if (!(fitted.plans[p].kl > 0)) continue;
            cost += trace.at(t)[p].kl / fitted.plans[p].kl;
            ++plans;
        }
        fitted.costs[trace.inputs[t]] += plans > 0 ? cost / plans : 1;
        ++seen[trace.inputs[t]];
    }
    for (auto& [id, cost] : fitted.costs) cost = (cost + kPriorTokens) / (seen[id] + kPriorTokens);

    const auto mean_bytes = [&](double price) {
        fitted.price = price;
        double sum = 0;
        for (const auto& [id, times] : seen) sum += times * bytes_of(fitted.plans[fitted.rung(id)]);
        return sum / static_cast<double>(trace.n_tokens());
    };
    const double wanted = std::max(bytes, bytes_of(trace.plans.back()));
    if (mean_bytes(0) <= wanted) return fitted;
    double low = 0, high = kLeastPrice;
    while (mean_bytes(high) > wanted) {
        low = high;
        high *= 4;
    }
    for (int i = 0; i < 60; ++i) {
        const double middle = (low + high) / 2;
        (mean_bytes(middle) > wanted ? low : high) = middle;
    }
    fitted.price = high;
    return fitted;
}

Groups all_together(const TokenTrace& trace) {
    Groups groups = empty_groups(1, trace.plans.size());
    for (size_t t = 0; t < trace.n_tokens(); ++t) add(&groups, 0, trace.at(t));
    return groups;
}

Groups each_alone(const TokenTrace& trace) {
    Groups groups = empty_groups(trace.n_tokens(), trace.plans.size());
    for (size_t t = 0; t < trace.n_tokens(); ++t) add(&groups, t, trace.at(t));
    return groups;
}

Groups by_entropy(const TokenTrace& trace, Whose whose, size_t n) {
    std::vector<double> entropies = finest(trace, [](const Signal& s) { return s.entropy; });
    const std::vector<double> bounds = quantiles(entropies, n);
    Groups groups = empty_groups(n + 1, trace.plans.size());
    for (size_t t = 0; t < trace.n_tokens(); ++t) {
        if (whose == Whose::kBefore && begins_window(trace, t)) {
            add(&groups, n, trace.at(t));  // there is none before
            continue;
        }
        add(&groups, group_of(bounds, entropies[whose == Whose::kOwn ? t : t - 1]), trace.at(t));
    }
    return groups;
}

double least_kl(std::span<const RatedPlan> plans, const Groups& groups, double bytes) {
    const double tokens = std::accumulate(groups.tokens.begin(), groups.tokens.end(), 0.0);
    const double wanted = std::max(bytes, bytes_of(plans.back()));
    // At a price for a byte each group takes its cheapest plan, of equals the coarser. Bytes that are left over,
    // times the price, are given back: the dual, which no assignment within the bytes undercuts.
    struct Priced {
        double dual = 0, mean_bytes = 0;
    };
    const auto at_price = [&](double price) {
        Priced sum;
        for (size_t g = 0; g < groups.tokens.size(); ++g) {
            size_t best = plans.size() - 1;
            const auto cost = [&](size_t p) {
                return groups.kl[g * plans.size() + p] + price * groups.tokens[g] * bytes_of(plans[p]);
            };
            for (size_t p = plans.size() - 1; p-- > 0;)
                if (cost(p) < cost(best)) best = p;
            sum.dual +=
                groups.kl[g * plans.size() + best] + price * groups.tokens[g] * (bytes_of(plans[best]) - wanted);
            sum.mean_bytes += groups.tokens[g] * bytes_of(plans[best]) / tokens;
        }
        sum.dual /= tokens;
        return sum;
    };
    const Priced free = at_price(0);
    if (free.mean_bytes <= wanted) return free.dual;
    // From far below what a byte is worth on the way from the finest plan to the coarsest.
    double kl = 0;
    for (size_t g = 0; g < groups.tokens.size(); ++g) kl += groups.kl[(g + 1) * plans.size() - 1] - groups.kl[g * plans.size()];
    const double worth = std::abs(kl) / tokens / (bytes_of(plans.front()) - wanted);
    double low = 0, high = std::max(worth * 1e-4, kLeastPrice);
    while (at_price(high).mean_bytes > wanted) {
        low = high;
        high *= 4;
    }
    for (int i = 0; i < 40; ++i) {
        const double middle = (low + high) / 2;
        (at_price(middle).mean_bytes > wanted ? low : high) = middle;
    }
    return std::max(at_price(low).dual, at_price(high).dual);
}

Worth worth_of(std::span<const RatedPlan> plans, std::span<const WindowSums> windows) {
    const auto mixed = [&](const Sum& sum) { return least_kl(plans, sum.mix, sum.mean().bytes); };
    Sum all(plans.size());
    for (const WindowSums& w : windows) all.add(w);
    Worth worth{all.mean(), mixed(all), 0, 0};
    std::mt19937_64 random(kSeed);
    std::vector<double> ratios;
    for (size_t draw = 0; draw < kDraws; ++draw) {
        Sum drawn(plans.size());
        for (size_t i = 0; i < windows.size(); ++i) drawn.add(windows[random() % windows.size()]);
        const double chance = mixed(drawn);
        ratios.push_back(chance > 0 ? drawn.mean().kl / chance : 1);
    }
    std::sort(ratios.begin(), ratios.end());
    worth.low = ratios[kDraws / 40];
    worth.high = ratios[kDraws - 1 - kDraws / 40];
    return worth;
}

Worth worth_of(const TokenTrace& trace, const Tuning& tuning) { return worth_of(trace.plans, sums_of(trace, tuning)); }

Worth worth_of(const TokenTrace& trace, const TokenPlans& by_token) {
    return worth_of(trace.plans, sums_of(trace, by_token));
}

Bounds bounds_of(const TokenTrace& trace, double bytes) {
    return {least_kl(trace.plans, by_entropy(trace, Whose::kBefore, kSignalGroups), bytes),
            least_kl(trace.plans, by_entropy(trace, Whose::kOwn, kSignalGroups), bytes),
            least_kl(trace.plans, each_alone(trace), bytes)};
}

}  // namespace weir::sched
