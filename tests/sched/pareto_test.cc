// The list of plans against all plans there are, on tables drawn at random.
#include "schedtool/pareto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace weir::sched {
namespace {

using testing::HasSubstr;

// Of one layer, so that all 3125 plans can be looked at. Noise may make fewer bits look better.
Sensitivity random_table(uint32_t seed) {
    std::mt19937 random(seed);
    Sensitivity table;
    table.fixed_bytes = random() % 1000;
    table.shards.resize(shards_of(1));
    for (ShardCost& cost : table.shards) {
        const uint64_t weights = 1 + random() % 100;
        const double scale = std::exp(static_cast<double>(random() % 8)) * 1e-5;
        for (size_t l = 0; l < kLevels.size(); ++l) {
            cost.bytes[l] = weights * (2 * kLevels[l] + 1);
            cost.kl[l] =
                l == kHighest ? 0 : scale * std::pow(0.25, l) * (0.2 + static_cast<double>(random() % 100) / 50);
        }
        if (random() % 8 == 0) cost.bytes.fill(weights);  // a matrix that is kept whole
    }
    return table;
}

std::vector<RatedPlan> all_plans(const Sensitivity& measured) {
    Sensitivity table = measured;
    make_monotone(&table);
    std::vector<RatedPlan> plans;
    for (size_t n = 0; n < 3125; ++n) {
        Plan plan = uniform_plan(1, 8);
        for (size_t s = 0, rest = n; s < plan.levels.size(); ++s, rest /= 5) plan.levels[s] = kLevels[rest % 5];
        plans.push_back(rate(table, plan));
    }
    return plans;
}

TEST(Pareto, NoPlanOfAsFewBytesIsBetter) {
    for (uint32_t seed = 0; seed < 15; ++seed) {
        SCOPED_TRACE(seed);
        const Sensitivity table = random_table(seed);
        const std::vector<RatedPlan> list = pareto_list(table), all = all_plans(table);
        ASSERT_EQ(list.front().plan, uniform_plan(1, 8));
        for (size_t i = 1; i < list.size(); ++i) {
            EXPECT_LT(list[i].bytes, list[i - 1].bytes);
            EXPECT_GE(list[i].kl, list[i - 1].kl);
            size_t changed = 0;
            for (size_t s = 0; s < list[i].plan.levels.size(); ++s)
                changed += list[i].plan.levels[s] != list[i - 1].plan.levels[s];
            EXPECT_EQ(changed, 1u);
        }
        uint64_t fewest = UINT64_MAX;
        for (const RatedPlan& plan : all) {
            fewest = std::min(fewest, plan.bytes);
            for (const RatedPlan& listed : list)
                if (plan.bytes <= listed.bytes) {
                    ASSERT_GE(plan.kl, listed.kl * (1 - 1e-9));
                }
        }
        EXPECT_EQ(list.back().bytes, fewest);
    }
}

TEST(Pareto, LinesBetweenNeighboursLieBelowAllPlans) {
    for (uint32_t seed = 0; seed < 15; ++seed) {
        SCOPED_TRACE(seed);
        const Sensitivity table = random_table(seed);
        const std::vector<RatedPlan> list = pareto_list(table), all = all_plans(table);
        for (size_t i = 1; i < list.size(); ++i) {
            const double slope = (list[i].kl - list[i - 1].kl) / static_cast<double>(list[i - 1].bytes - list[i].bytes);
            for (const RatedPlan& plan : all) {
                const double on_line =
                    list[i].kl + slope * (static_cast<double>(list[i].bytes) - static_cast<double>(plan.bytes));
                ASSERT_GE(plan.kl, on_line - 1e-9 * list.back().kl);
            }
        }
    }
}

TEST(Pareto, BestWithinKeepsToItsBytes) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        const Sensitivity table = random_table(seed);
        const std::vector<RatedPlan> list = pareto_list(table);
        for (uint64_t bytes = list.back().bytes; bytes <= list.front().bytes; bytes += 1 + list.front().bytes / 40) {
            const RatedPlan best = best_within(table, bytes);
            EXPECT_LE(best.bytes, bytes);
            for (const RatedPlan& listed : list)
                if (listed.bytes <= bytes) {
                    EXPECT_LE(best.kl, listed.kl * (1 + 1e-9));
                }
        }
        EXPECT_EQ(best_within(table, 0).plan, list.back().plan);
        EXPECT_EQ(best_within(table, UINT64_MAX).plan.levels.size(), 5u);
    }
}

TEST(Pareto, BestWithinIsTheBestOfAll) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        const Sensitivity table = random_table(seed);
        const std::vector<RatedPlan> all = all_plans(table);
        const auto [fewest, most] = std::minmax_element(all.begin(), all.end(), [](const RatedPlan& a, const RatedPlan& b) {
            return a.bytes < b.bytes;
        });
        for (uint64_t bytes = fewest->bytes; bytes <= most->bytes; bytes += 1 + most->bytes / 40) {
            const double found = best_within(table, bytes).kl;
            for (const RatedPlan& plan : all)
                if (plan.bytes <= bytes) {
                    ASSERT_LE(found, plan.kl * (1 + 1e-9)) << bytes;
                }
        }
    }
}

// One shard has two thirds of all bytes: the hull jumps over the plan of one level everywhere.
TEST(Pareto, BestWithinIsAsGoodAsAnyUniformLevel) {
    std::mt19937 random(1);
    for (int draw = 0; draw < 10; ++draw) {
        Sensitivity table;
        table.shards.resize(shards_of(30));
        for (ShardCost& cost : table.shards) {
            const bool is_head = &cost == &table.shards.back();
            const uint64_t bytes = is_head ? 20'000'001 : 50'000 + random() % 70'000;
            const double scale = (is_head ? 1.0 : 0.001) * (1 + static_cast<double>(random() % 50) / 25);
            for (size_t l = 0; l < kLevels.size(); ++l) {
                cost.bytes[l] = bytes * (2 * kLevels[l] + 1);
                cost.kl[l] = l == kHighest ? 0 : scale * std::pow(0.25, kLevels[l]);
            }
        }
        for (const uint8_t level : kLevels) {
            const RatedPlan uniform = rate(table, uniform_plan(30, level));
            const RatedPlan best = best_within(table, uniform.bytes);
            EXPECT_LE(best.bytes, uniform.bytes);
            EXPECT_LE(best.kl, uniform.kl * (1 + 1e-9)) << int{level};
        }
    }
}

TEST(Pareto, PriorsGoDown) {
    for (const size_t n_layers : {1, 8, 30}) {
        const std::vector<Plan> priors = static_priors(n_layers);
        EXPECT_EQ(priors.front(), uniform_plan(n_layers, 8));
        for (size_t i = 0; i < priors.size(); ++i) {
            ASSERT_EQ(priors[i].levels.size(), shards_of(n_layers));
            EXPECT_EQ(priors[i].levels[shard_of(0, Module::kQk)], 8);
            for (size_t s = 0; i > 0 && s < priors[i].levels.size(); ++s)
                EXPECT_LE(priors[i].levels[s], priors[i - 1].levels[s]);
        }
    }
}

TEST(Sensitivity, IsReadBackAsWritten) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
        Sensitivity table = random_table(seed);
        table.model = "0123";
        table.text = "4567";
        table.windows = 3;
        table.window_tokens = 256;
        table.scored_tokens = 127;
        const std::string text = sensitivity_json(table);
        const Sensitivity read = read_sensitivity(text, "x");
        EXPECT_EQ(sensitivity_json(read), text);
        EXPECT_EQ(read.shards[2].bytes, table.shards[2].bytes);
        EXPECT_EQ(read.shards[4].kl, table.shards[4].kl);
    }
}

TEST(Sensitivity, RefusesWhatIsNone) {
    const std::string good = sensitivity_json(random_table(1));
    const auto why_not = [](const std::string& text) -> std::string {
        try {
            read_sensitivity(text, "t.json");
        } catch (const std::runtime_error& error) {
            return error.what();
        }
        return "";
    };
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        return why_not(text);
    };
    EXPECT_EQ(why_not(good), "");
    for (const char* const text : {"", "7", "[]", "{}"}) EXPECT_THAT(why_not(text), HasSubstr("t.json: is no table"));
    EXPECT_THAT(why_not(good.substr(0, good.size() / 2)), HasSubstr("is no table"));
    EXPECT_THAT(changed("\"weir_sensitivity\": 1", "\"weir_sensitivity\": 0"), HasSubstr("another version"));
    EXPECT_THAT(changed("\"windows\": 0", "\"windows\": -1"), HasSubstr("windows"));
    EXPECT_THAT(changed("\"shards\": [", "\"shards\": [{},"), HasSubstr("has 6 shards"));
    EXPECT_THAT(changed("\"bytes\":[", "\"bytes\":[1,"), HasSubstr("\"bytes\" is no list of 5"));
    EXPECT_THAT(changed("\"kl\":[", "\"kl\":[\"x\",1,2,3,4],\"lk\":["), HasSubstr("no list of numbers"));
}

}  // namespace
}  // namespace weir::sched
