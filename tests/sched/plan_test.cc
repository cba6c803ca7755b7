// Plans as files: what is written is read back, and what is no plan is told apart in one line.
#include "schedtool/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace weir::sched {
namespace {

using testing::HasSubstr;

std::string why_not(const std::string& text, size_t n_layers) {
    try {
        read_plan(text, n_layers, "plan.json");
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "";
}

TEST(Plan, IsReadBackAsWritten) {
    std::mt19937 random(7);
    for (const size_t n_layers : {1, 3, 40}) {
        Plan plan = uniform_plan(n_layers, 4);
        EXPECT_EQ(plan.n_layers(), n_layers);
        EXPECT_EQ(plan.uniform(), 4);
        for (uint8_t& level : plan.levels) level = kLevels[random() % kLevels.size()];
        plan.levels.front() = 2;
        plan.levels.back() = 8;
        EXPECT_EQ(plan.uniform(), std::nullopt);
        EXPECT_EQ(read_plan(plan_json(plan), n_layers, "x"), plan);
    }
}

TEST(Plan, NamesItsShards) {
    EXPECT_EQ(shard_name(shard_of(3, Module::kGateUp), 5), "layer 3 gate_up");
    EXPECT_EQ(shard_name(head_of(5), 5), "head");
}

TEST(Plan, InResultsALevelStandsForAll) {
    EXPECT_EQ(precision_json({}), "null");
    EXPECT_EQ(precision_json(uniform_plan(2, 3)), "3");
    Plan plan = uniform_plan(1, 3);
    plan.levels.back() = 8;
    EXPECT_EQ(precision_json(plan), R"({"layers":[{"qk":3,"vo":3,"gate_up":3,"down":3}],"head":8})");
}

TEST(Plan, RefusesWhatIsNone) {
    const std::string good = R"({"layers":[{"qk":3,"vo":3,"gate_up":3,"down":3}],"head":8})";
    EXPECT_EQ(why_not(good, 1), "");
    EXPECT_THAT(why_not(good, 2), HasSubstr("plan.json: has 1 layers and the model has 2"));
    for (const char* const text : {"", "[", "[]", "3", "{}", R"({"layers":4,"head":8})"})
        EXPECT_THAT(why_not(text, 1), HasSubstr("is no precision plan"));
    EXPECT_THAT(why_not(R"({"layers":[7],"head":8})", 1), HasSubstr("layer 0"));
    EXPECT_THAT(why_not(R"({"layers":[{"qk":3,"vo":3,"gate_up":3}],"head":8})", 1), HasSubstr("no \"down\""));
    EXPECT_THAT(why_not(R"({"layers":[{"qk":5,"vo":3,"gate_up":3,"down":3}],"head":8})", 1),
                HasSubstr("levels are 2, 3, 4, 6 and 8"));
    EXPECT_THAT(why_not(R"({"layers":[{"qk":3,"vo":3,"gate_up":3,"down":3}],"head":"8"})", 1), HasSubstr("\"head\""));
    EXPECT_THAT(why_not(R"({"layers":[{"qk":3,"vo":3,"gate_up":3,"down":3}]})", 1), HasSubstr("no \"head\""));
}

}  // namespace
}  // namespace weir::sched
