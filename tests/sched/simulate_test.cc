// What formulas of speed must hold to whatever the figures: more of a device never slows, bounds are reached.
#include "schedtool/simulate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace weir::sched {
namespace {

struct Drawn {
    explicit Drawn(uint32_t seed) : random(seed) {
        uint64_t bytes = 100000 + random() % 1000000;
        for (const char* const name : {"8 bits", "6 bits", "4 bits", "3 bits", "2 bits"}) {
            plans.push_back({name, bytes, 1e-3 * (1 + share())});
            bytes -= bytes / 5;
        }
        device = {1e7 + 1e9 * share(), random() % 1200000, 1e-4 * share()};
        for (int i = 0; i < 5; ++i) acceptance.push_back(share());
    }
    double share() { return static_cast<double>(random() % 1001) / 1000; }

    std::mt19937 random;
    std::vector<SimulatedPlan> plans;
    Device device;
    std::vector<double> acceptance;
};

TEST(Simulate, MoreOfEverythingNeverSlows) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        Drawn d(seed);
        const std::vector<double> shares = {0.1, 0, 0.4, 0.3, 0.2};
        Device faster = d.device, larger = d.device;
        faster.bytes_per_s *= 1.5;
        larger.frames += 50000;
        for (const Device& better : {faster, larger}) {
            for (const SimulatedPlan& plan : d.plans)
                EXPECT_LE(seconds_per_token(plan, better), seconds_per_token(plan, d.device));
            EXPECT_GE(auto_tokens_per_s(d.plans, shares, better), auto_tokens_per_s(d.plans, shares, d.device));
            for (const size_t k : {1, 4, 16})
                EXPECT_GE(exact_tokens_per_s(d.plans[0], d.plans[2], d.acceptance, k, better),
                          exact_tokens_per_s(d.plans[0], d.plans[2], d.acceptance, k, d.device));
        }
        std::vector<double> righter = d.acceptance;
        for (double& a : righter) a = (1 + a) / 2;
        for (const size_t k : {1, 4, 16}) EXPECT_GE(tokens_per_pass(righter, k), tokens_per_pass(d.acceptance, k));
    }
}

TEST(Simulate, NothingAcceptedGainsNothing) {
    const std::vector<double> never = {0};
    for (uint32_t seed = 0; seed < 100; ++seed) {
        SCOPED_TRACE(seed);
        const Drawn d(seed);
        const double alone = 1 / seconds_per_token(d.plans[0], d.device);
        EXPECT_DOUBLE_EQ(exact_tokens_per_s(d.plans[0], d.plans[2], never, 0, d.device), alone);
        for (size_t k = 1; k <= 16; ++k)
            EXPECT_LT(exact_tokens_per_s(d.plans[0], d.plans[2], never, k, d.device), alone);
    }
}

TEST(Simulate, AllAcceptedReachesTheBound) {
    const std::vector<double> always = {1};
    for (uint32_t seed = 0; seed < 100; ++seed) {
        SCOPED_TRACE(seed);
        const Drawn d(seed);
        const double draft = 1 / seconds_per_token(d.plans[2], d.device);
        for (size_t k = 1; k <= 16; ++k) {
            EXPECT_DOUBLE_EQ(tokens_per_pass(always, k), static_cast<double>(k + 1));
            // k drafts take their time, and a pass brings one token more: below (k + 1) / k times drafts alone.
            const double rate = exact_tokens_per_s(d.plans[0], d.plans[2], always, k, d.device);
            EXPECT_LT(rate, draft * static_cast<double>(k + 1) / static_cast<double>(k));
            EXPECT_GE(rate, exact_tokens_per_s(d.plans[0], d.plans[2], d.acceptance, k, d.device));
        }
        EXPECT_NEAR(exact_tokens_per_s(d.plans[0], d.plans[2], always, 100000, {1e18, 0, 0}),
                    1 / d.plans[2].compute_s, 1e-4 / d.plans[2].compute_s);
    }
}

TEST(Simulate, IsWhatItsFormulasSay) {
    const std::vector<SimulatedPlan> plans = {{"8 bits", 1000, 0.1}, {"4 bits", 600, 0.05}};
    const Device device = {1000, 400, 0.01};
    EXPECT_DOUBLE_EQ(seconds_per_token(plans[0], device), 0.6);
    EXPECT_DOUBLE_EQ(seconds_per_token(plans[1], device), 0.2);
    const std::vector<double> shares = {1, 3}, acceptance = {0.8, 0.5};
    EXPECT_DOUBLE_EQ(auto_tokens_per_s(plans, shares, device), 4 / 1.2);
    EXPECT_DOUBLE_EQ(tokens_per_pass(acceptance, 3), 1 + 0.8 + 0.4 + 0.2);
    EXPECT_DOUBLE_EQ(exact_tokens_per_s(plans[0], plans[1], acceptance, 3, device), 2.4 / 1.2);
    const Simulation simulation = {plans, device, shares, acceptance, 1};
    const auto json = nlohmann::json::parse(simulation_json(simulation), nullptr, false);
    EXPECT_DOUBLE_EQ(json["auto_exact"]["lengths"][2]["tokens_per_s"], 2.0);
    EXPECT_EQ(json["auto_exact"]["lengths"].size(), 16u);
    EXPECT_EQ(json["plans"][1]["read_bytes"], 200);
    EXPECT_NE(simulation_text(simulation).find("drafted at 4 bits"), std::string::npos);
    const auto less = nlohmann::json::parse(simulation_json({plans, device, {}, {}, 0}), nullptr, false);
    EXPECT_TRUE(less["auto"].is_null());
    EXPECT_TRUE(less["auto_exact"].is_null());
}

}  // namespace
}  // namespace weir::sched
