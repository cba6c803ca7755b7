#include "schedtool/pareto.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace weir::sched {
namespace {

// A shard goes from one level to a lower one.
struct Step {
    size_t shard;
    size_t to;
    double price;  // divergence for a byte saved
};

double price(const ShardCost& cost, size_t from, size_t to) {
    const double saved = static_cast<double>(cost.bytes[from]) - static_cast<double>(cost.bytes[to]);
    return saved > 0 ? (cost.kl[to] - cost.kl[from]) / saved : INFINITY;
}

// The shard's own hull from the highest level down: from each corner the step of the least price; of equals the longest.
// Prices ascend.
void add_steps(const Sensitivity& table, size_t shard, std::vector<Step>* steps) {
    const ShardCost& cost = table.shards[shard];
    for (size_t at = kHighest; at > 0;) {
        size_t best = at - 1;
        for (size_t to = at - 1; to-- > 0;)
            if (price(cost, at, to) <= price(cost, at, best)) best = to;
        if (std::isinf(price(cost, at, best))) break;  // no level below saves anything
        steps->push_back({shard, best, price(cost, at, best)});
        at = best;
    }
}

}  // namespace

std::vector<RatedPlan> pareto_list(const Sensitivity& measured) {
    Sensitivity table = measured;
    make_monotone(&table);
    std::vector<Step> steps;
    for (size_t s = 0; s < table.shards.size(); ++s) add_steps(table, s, &steps);
    std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.price < b.price; });
    std::vector<RatedPlan> list{rate(table, uniform_plan(table.n_layers(), kLevels[kHighest]))};
    for (const Step& step : steps) {
        Plan plan = list.back().plan;
        plan.levels[step.shard] = kLevels[step.to];
        list.push_back(rate(table, plan));
    }
    return list;
}

RatedPlan best_within(const Sensitivity& measured, uint64_t bytes) {
    constexpr size_t kCells = 16384;
    Sensitivity table = measured;
    make_monotone(&table);
    const std::vector<RatedPlan> list = pareto_list(measured);
    const auto hull = std::find_if(list.begin(), list.end(), [&](const RatedPlan& p) { return p.bytes <= bytes; });
    if (hull == list.end()) return list.back();

    // Levels for the shards so far, of which each cell keeps the least divergence; room: bytes above the fewest that there are.
    struct Partial {
        double kl = INFINITY;
        uint64_t bytes = 0;
    };
    struct Choice {
        uint32_t before = 0;  // its cell
        uint8_t level = 0;    // index
    };
    const uint64_t room = std::min(bytes, list.front().bytes) - list.back().bytes;
    const auto cell_of = [&](uint64_t above) { return static_cast<size_t>(above / (room / kCells + 1)); };
    const size_t cells = cell_of(room) + 1;
    std::vector<Partial> now(cells), next(cells);
    now[0] = {0, 0};
    std::vector<Choice> choices(table.shards.size() * cells);
    for (size_t s = 0; s < table.shards.size(); ++s) {
        const ShardCost& cost = table.shards[s];
        const uint64_t fewest = *std::min_element(cost.bytes.begin(), cost.bytes.end());
        std::fill(next.begin(), next.end(), Partial{});
        for (size_t from = 0; from < cells; ++from) {
            if (std::isinf(now[from].kl)) continue;
            for (size_t l = kLevels.size(); l-- > 0;) {
                const Partial with{now[from].kl + cost.kl[l], now[from].bytes + cost.bytes[l] - fewest};
                if (with.bytes > room) continue;
                Partial& kept = next[cell_of(with.bytes)];
                if (std::tie(with.kl, with.bytes) >= std::tie(kept.kl, kept.bytes)) continue;
                kept = with;
                choices[s * cells + cell_of(with.bytes)] = {static_cast<uint32_t>(from), static_cast<uint8_t>(l)};
            }
        }
        now.swap(next);
    }
    auto cell = static_cast<size_t>(std::min_element(now.begin(), now.end(), [](const Partial& a, const Partial& b) {
                                        return a.kl < b.kl;
                                    }) - now.begin());
    Plan plan = hull->plan;
    for (size_t s = table.shards.size(); s-- > 0;) {
        const Choice& choice = choices[s * cells + cell];
        plan.levels[s] = kLevels[choice.level];
        cell = choice.before;
    }
    const RatedPlan found = rate(table, plan);
    return found.kl < hull->kl ? found : *hull;  // rounding may have lost the hull's
}

std::vector<Plan> static_priors(size_t n_layers) {
    struct Prior {
        int first_attention, attention, first_ffn, ffn, last_ffn, head;
    };
    constexpr Prior kPriors[] = {{8, 8, 8, 8, 8, 8}, {8, 8, 6, 6, 6, 8}, {8, 6, 6, 4, 4, 6}, {8, 4, 4, 4, 4, 6},
                                 {8, 4, 4, 4, 3, 4}, {8, 4, 4, 3, 3, 4}, {8, 4, 3, 3, 2, 4}, {8, 3, 3, 2, 2, 4}};
    std::vector<Plan> plans;
    for (const Prior& prior : kPriors) {
        Plan plan;
        for (size_t layer = 0; layer < n_layers; ++layer) {
            const bool first = 4 * layer < n_layers, last = 4 * layer >= 3 * n_layers;
            const int attention = first ? prior.first_attention : prior.attention;
            const int ffn = first ? prior.first_ffn : last ? prior.last_ffn : prior.ffn;
            for (const int level : {attention, attention, ffn, ffn}) plan.levels.push_back(static_cast<uint8_t>(level));
        }
        plan.levels.push_back(static_cast<uint8_t>(prior.head));
        plans.push_back(std::move(plan));
    }
    return plans;
}

}  // namespace weir::sched
