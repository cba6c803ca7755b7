// Plans by token, their choice and their file.
#include "schedtool/token_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace weir::sched {
namespace {

using testing::HasSubstr;

TokenPlans some() {
    return {"model", {{uniform_plan(2, 8), 900, 0.001}, {uniform_plan(2, 4), 500, 0.01}, {uniform_plan(2, 2), 300, 0.2}}, 1e-4, {{7, 40.0}, {128000, 0.05}}};
}

TEST(TokenPlans, AreTheLeastSumOfDivergenceAndPrice) {
    const TokenPlans plans = some();
    EXPECT_EQ(plans.cost(3), 1);
    EXPECT_EQ(plans.rung(3), 1u);       // 0.091, 0.06, 0.23
    EXPECT_EQ(plans.rung(7), 0u);       // 0.13, 0.45, 8.03
    EXPECT_EQ(plans.rung(128000), 2u);  // 0.09005, 0.0505, 0.04
}

TEST(TokenPlans, OfEqualsTheCoarserIsRead) {
    TokenPlans plans = some();
    plans.price = 0;
    EXPECT_EQ(plans.rung(3), 0u);
    plans.plans[1].kl = plans.plans[0].kl;
    EXPECT_EQ(plans.rung(3), 1u);
}

TEST(TokenPlans, AreReadBackAsWritten) {
    const TokenPlans read = read_token_plans(token_plans_json(some()), "t.json");
    EXPECT_EQ(read.model, "model");
    EXPECT_EQ(read.price, 1e-4);
    EXPECT_EQ(read.costs, some().costs);
    ASSERT_EQ(read.plans.size(), 3u);
    EXPECT_EQ(read.plans[1].plan, uniform_plan(2, 4));
    EXPECT_EQ(read.plans[1].bytes, 500u);
    EXPECT_EQ(read.plans[1].kl, 0.01);
}

TEST(TokenPlans, RefusesWhatIsNone) {
    const auto why_not = [](const std::string& text) -> std::string {
        try {
            (void)read_token_plans(text, "t.json");
        } catch (const std::runtime_error& error) {
            return error.what();
        }
        return "taken";
    };
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = token_plans_json(some());
        EXPECT_NE(text.find(from), std::string::npos) << from;
        return why_not(text.replace(text.find(from), from.size(), to));
    };
    EXPECT_EQ(why_not(token_plans_json(some())), "taken");
    for (const std::string text : {"", "7", "{}", "[1]", "{\"weir_token_plans\""})
        EXPECT_THAT(why_not(text), HasSubstr("t.json: is no plans by token"));
    EXPECT_THAT(changed("_plans\":1", "_plans\":9"), HasSubstr("another version"));
    EXPECT_THAT(changed("\"model\":\"model\"", "\"model\":3"), HasSubstr("no \"model\""));
    EXPECT_THAT(changed("\"price\":", "\"price\":-"), HasSubstr("no \"price\""));
    EXPECT_THAT(changed("\"plans\":[", "\"plans\":7,\"x\":["), HasSubstr("no \"plans\""));
    EXPECT_THAT(changed("\"plans\":[", "\"plans\":[7,"), HasSubstr("t.json: has a plan without"));
    EXPECT_THAT(changed("\"bytes\":500", "\"bytes\":200"), HasSubstr("finest first"));
    EXPECT_THAT(changed("\"costs\":[", "\"costs\":7,\"x\":["), HasSubstr("no \"costs\""));
    for (const char* const bad : {"[-7,", "[7.5,", "[2147483648,", "[\"a\",", "[7,1,"}) EXPECT_THAT(changed("[7,", bad), HasSubstr("no token's")) << bad;
    EXPECT_THAT(changed("[7,", "[7,-"), HasSubstr("no token's"));
}

TEST(TokenPlans, RefusesPlansOfSeveralModels) {
    TokenPlans plans = some();
    plans.plans[2].plan = uniform_plan(3, 2);
    EXPECT_THROW((void)read_token_plans(token_plans_json(plans), "t.json"), std::runtime_error);
}

}  // namespace
}  // namespace weir::sched
