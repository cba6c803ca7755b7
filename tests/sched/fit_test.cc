// Fitting on traces drawn at random: where the entropy tells what the next token costs, the scheduler finds it; where it tells
// nothing, nothing is claimed; bounds are bounds.
#include "schedtool/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "schedtool/fit_report.h"

namespace weir::sched {
namespace {

// Every so often a hard stretch comes, in which coarse plans cost a hundred times as much. telling: entropy is high in it, one
// token ahead; else it is noise.
TokenTrace drawn_trace(uint32_t seed, bool telling, size_t windows = 12, size_t window_tokens = 40) {
    std::mt19937 random(seed);
    const auto share = [&] { return static_cast<double>(random() % 1000) / 1000; };
    TokenTrace trace;
    for (const uint64_t bytes : {1000, 700, 500, 400}) trace.plans.push_back({uniform_plan(1, 8), bytes, 0});
    for (size_t w = 0; w < windows; ++w) {
        bool hard = share() < 1.0 / 3;  // as often as anywhere in it
        for (size_t t = 0; t < window_tokens; ++t) {
            const bool next_hard = share() < (hard ? 0.9 : 0.05);
            const double entropy = (telling && next_hard ? 3 : 1) + share();
            trace.windows.push_back(w);
            trace.inputs.push_back(static_cast<int32_t>(t % 7));
            for (size_t p = 0; p < trace.plans.size(); ++p) {
                const double coarse = static_cast<double>(p * p) * (hard ? 0.1 : 0.001);
                trace.tokens.push_back({{entropy, 0.5}, coarse * (0.5 + share()) + 1e-5});
            }
            hard = next_hard;
        }
    }
    return trace;
}

TEST(Fit, FindsWhatEntropyTells) {
    for (uint32_t seed = 0; seed < 2; ++seed) {
        SCOPED_TRACE(seed);
        const TokenTrace trace = drawn_trace(seed, true), held_out = drawn_trace(seed + 100, true);
        const Tuning tuning = fit_scheduler(trace, 600);
        EXPECT_LE(cost_of(trace, tuning).bytes, 600);
        const Worth worth = worth_of(held_out, tuning);
        const Bounds bounds = bounds_of(held_out, worth.rule.bytes);
        EXPECT_LT(worth.high, 0.8);
        EXPECT_LT(bounds.before, 0.5 * worth.mixed);
        EXPECT_LE(bounds.oracle, bounds.before);
    }
}

TEST(Fit, ClaimsNothingWhereEntropyIsNoise) {
    for (uint32_t seed = 0; seed < 2; ++seed) {
        SCOPED_TRACE(seed);
        const TokenTrace trace = drawn_trace(seed, false), held_out = drawn_trace(seed + 100, false);
        const Worth worth = worth_of(held_out, fit_scheduler(trace, 600));
        const Bounds bounds = bounds_of(held_out, worth.rule.bytes);
        EXPECT_GT(worth.high, 0.95);
        EXPECT_GT(bounds.before, 0.8 * worth.mixed);
        EXPECT_LT(bounds.oracle, 0.5 * worth.mixed);  // which does know
        EXPECT_GT(worth_of(held_out, fit_token_plans(trace, 600)).high, 0.95);
    }
}

// Seven ids are hard to have read, seven are not; entropy tells nothing.
TEST(Fit, FindsWhichTokensCost) {
    const auto name = [](TokenTrace trace) {
        for (size_t t = 0; t < trace.n_tokens(); ++t) trace.inputs[t] += trace.at(t)[3].kl > 0.1 ? 0 : 7;
        return trace;
    };
    const TokenTrace trace = name(drawn_trace(1, false)), held_out = name(drawn_trace(101, false));
    const TokenPlans fitted = fit_token_plans(trace, 600);
    for (int32_t id = 0; id < 7; ++id) {
        EXPECT_GT(fitted.cost(id), 3 * fitted.cost(id + 7));
        EXPECT_LE(fitted.rung(id), fitted.rung(id + 7));
    }
    EXPECT_EQ(fitted.cost(99), 1);
    const Worth own = worth_of(trace, fitted), worth = worth_of(held_out, fitted);
    EXPECT_LE(own.rule.bytes, 600);
    EXPECT_GT(own.rule.bytes, 500);
    EXPECT_LT(worth.high, 0.5);
    EXPECT_GE(worth.rule.kl, bounds_of(held_out, worth.rule.bytes).oracle);
}

TEST(Fit, ATokenThatWasSeenOnceIsNearlyAsAnyOther) {
    TokenTrace trace = drawn_trace(1, false);
    trace.inputs[0] = 50;
    for (size_t p = 0; p < trace.plans.size(); ++p) trace.tokens[p].kl *= 1000;
    const TokenPlans fitted = fit_token_plans(trace, 600);
    EXPECT_GT(fitted.cost(50), fitted.cost(1));
    EXPECT_LT(fitted.cost(50), 80);  // 480 tokens: alone it would have most of them
    trace.inputs.assign(trace.n_tokens(), 50);
    EXPECT_NEAR(fit_token_plans(trace, 600).cost(50), 1, 1e-9);
}

TEST(Fit, PlansByTokenKeepToTheirBytes) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
        TokenTrace trace = drawn_trace(seed, false);
        std::mt19937 random(seed);
        for (int32_t& id : trace.inputs) id = static_cast<int32_t>(random() % 100);
        double before = 0;
        for (const double bytes : {400, 430, 500, 600, 777, 990, 2000}) {
            const double took = worth_of(trace, fit_token_plans(trace, bytes)).rule.bytes;
            EXPECT_LE(took, bytes);
            EXPECT_GE(took, before);
            before = took;
        }
        EXPECT_EQ(before, 1000);
        EXPECT_EQ(worth_of(trace, fit_token_plans(trace, 1)).rule.bytes, 400);  // the fewest that there are
    }
}

TEST(Fit, MoreBytesNeverCostMore) {
    const TokenTrace trace = drawn_trace(5, true);
    double before = HUGE_VAL;
    for (const double bytes : {400, 450, 600, 900}) {
        const Tuning tuning = fit_scheduler(trace, bytes);
        const Cost cost = cost_of(trace, tuning);
        EXPECT_LE(cost.bytes, std::max(bytes, 440.0))
            << bytes;  // a window begins in the middle and takes some tokens down
        if (bytes >= 450) {
            EXPECT_LE(cost.kl, before * 1.02) << bytes;
            before = cost.kl;
        }
    }
}

TEST(Fit, LeastKlIsTheHullOfAllAssignments) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
        SCOPED_TRACE(seed);
        const TokenTrace trace = drawn_trace(seed, seed % 2 == 0, 1, 5);
        const size_t n = trace.n_tokens();
        const Groups alone = each_alone(trace), together = all_together(trace);
        for (size_t code = 0; code < 1024; ++code) {  // 4 plans, 5 tokens
            Cost cost;
            for (size_t t = 0, rest = code; t < n; ++t, rest /= 4) {
                cost.bytes += static_cast<double>(trace.plans[rest % 4].bytes) / static_cast<double>(n);
                cost.kl += trace.at(t)[rest % 4].kl / static_cast<double>(n);
            }
            ASSERT_LE(least_kl(trace.plans, alone, cost.bytes), cost.kl * (1 + 1e-9));
        }
        for (size_t p = 0; p < 4; ++p) {
            const Cost cost = cost_of_plan(trace, p);
            ASSERT_LE(least_kl(trace.plans, together, cost.bytes), cost.kl * (1 + 1e-9));
        }
        // Between its corners the hull of plans in a convex order is a line.
        const Cost a = cost_of_plan(trace, 0), b = cost_of_plan(trace, 1);
        if (least_kl(trace.plans, together, 700) > b.kl * (1 - 1e-9)) {
            EXPECT_NEAR(least_kl(trace.plans, together, 850), (a.kl + b.kl) / 2, 1e-9 + 1e-6 * b.kl);
        }
        EXPECT_EQ(least_kl(trace.plans, alone, 1), least_kl(trace.plans, alone, 400));
    }
}

TEST(Fit, WhoKnowsMoreDoesNoWorse) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
        SCOPED_TRACE(seed);
        const TokenTrace trace = drawn_trace(seed, seed % 2 == 0);
        for (const double bytes : {420, 550, 777, 990}) {
            const double mixed = least_kl(trace.plans, all_together(trace), bytes) * (1 + 1e-9);
            const double oracle = least_kl(trace.plans, each_alone(trace), bytes) * (1 - 1e-9);
            for (const Whose whose : {Whose::kBefore, Whose::kOwn}) {
                const double between = least_kl(trace.plans, by_entropy(trace, whose, 16), bytes);
                EXPECT_LE(between, mixed);
                EXPECT_GE(between, oracle);
            }
        }
    }
}

TEST(Fit, ReportsForPeopleAndMachines) {
    const TokenTrace trace = drawn_trace(1, true, 3, 20);
    TokenTrace other = drawn_trace(2, true, 2, 20);
    const FitReport alone = fit_report(trace, nullptr, 0, ""), held = fit_report(trace, &other, 600, "h");
    EXPECT_EQ(alone.rows.size(), 4u);  // as a run has it, and between each two of four plans
    EXPECT_NE(fit_text(alone).find("very text"), std::string::npos);
    EXPECT_NE(fit_text(held).find("held out 40 of 2"), std::string::npos);
    const auto json = nlohmann::json::parse(fit_json(held), nullptr, false);
    ASSERT_EQ(json["rows"].size(), 2u);
    EXPECT_EQ(json["rows"][1]["wanted_bytes"], 600);
    EXPECT_GT(json["rows"][1]["held_out"]["oracle_kl"], 0);
    EXPECT_EQ(json["held_out"]["plans"].size(), 4u);
    other.plans[1].bytes = 701;
    EXPECT_THROW(fit_report(trace, &other, 0, "h"), std::runtime_error);
}

}  // namespace
}  // namespace weir::sched
