// Passes that begin in the middle give the bits of whole ones, and what is measured is the divergence that whole passes show.
#include "runtime/engine/sensitivity.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/engine/score.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

constexpr size_t kTokens = 20, kScored = 9;

std::vector<int32_t> window(uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(kTokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
    return ids;
}

TinyShape shape() {
    TinyShape s;
    s.n_layers = 3;
    return s;
}

TEST(Sensitivity, APassFromALayerOnGivesTheSameBits) {
    const TinyModelFile file(shape());
    for (const size_t threads : {1, 2}) {
        EngineOptions options;
        options.threads = threads;
        Engine engine(file.path(), options);
        const auto ids = window(1);
        std::vector<float> states((engine.config.n_layers + 1) * kTokens * engine.config.dim);
        engine.forward->keep_states(states.data());
        const auto logits = engine.forward->pass(ids, kScored, true);
        const std::vector<float> whole(logits.begin(), logits.end());
        engine.forward->keep_states(nullptr);
        for (size_t layer = 0; layer <= engine.config.n_layers; ++layer) {
            engine.cache->set_length(0);
            const auto again =
                engine.forward->pass_from(layer, states.data(), {engine.cache.get(), ids, kScored}, true);
            EXPECT_TRUE(std::equal(whole.begin(), whole.end(), again.begin(), again.end())) << layer;
        }
        engine.cache->set_length(0);
        const auto after = engine.forward->pass(ids, kScored, false);
        EXPECT_TRUE(std::equal(whole.begin(), whole.end(), after.begin(), after.end()));
    }
}

// Rounding in 8 bits adds a divergence of its own wherever anything changes; in 16 bits what is left is the level's.
TEST(Sensitivity, RoundingIn16BitsAddsNothing) {
    const TinyNativeFile file(shape());
    const auto total = [&](kernels::Activation form) {
        EngineOptions options{.paging = PagingMode::kResident, .plans = plans_to_measure(shape().n_layers)};
        options.forms = ActivationForms::all(form);
        Engine engine(file.path(), options);
        sched::Sensitivity table = empty_table(
            build_model_map(engine.file, engine.config, engine.file.native()->page, false, options.plans), engine.config);
        SensitivityProbe probe({engine.forward.get(), engine.cache.get(), engine.store.get(), engine.team.get()},
                               engine.config, kTokens, kScored);
        for (const uint32_t seed : {1u, 2u}) EXPECT_TRUE(probe.measure(window(seed), &table, [](size_t) { return true; }));
        double sum = 0;
        for (const sched::ShardCost& shard : table.shards) sum += shard.kl[sched::kHighest - 1];
        return sum;
    };
    const double floats = total(kernels::Activation::kF32);
    EXPECT_NEAR(total(kernels::Activation::kWhole) / floats, 1, 0.02);
    EXPECT_GT(total(kernels::Activation::kInt8) / floats, 1.1);
}

TEST(Sensitivity, IsTheDivergenceOfWholePasses) {
    const TinyNativeFile file(shape());
    const size_t n_layers = shape().n_layers;
    EngineOptions options{.paging = PagingMode::kResident, .plans = plans_to_measure(n_layers)};
    Engine engine(file.path(), options);
    const ModelMap map = build_model_map(engine.file, engine.config, engine.file.native()->page, false, options.plans);
    sched::Sensitivity table = empty_table(map, engine.config);
    SensitivityProbe probe({engine.forward.get(), engine.cache.get(), engine.store.get(), engine.team.get()},
                           engine.config, kTokens, kScored);
    for (const uint32_t seed : {1u, 2u}) ASSERT_TRUE(probe.measure(window(seed), &table, [](size_t) { return true; }));
    EXPECT_EQ(table.windows, 2u);
    EXPECT_EQ(SensitivityProbe::passes(table), 1 + 4 * sched::shards_of(n_layers));

    const std::string before = sched::sensitivity_json(table);
    EXPECT_FALSE(probe.measure(window(3), &table, [](size_t pass) { return pass < 7; }));
    EXPECT_EQ(sched::sensitivity_json(table), before);

    const auto high = [&](uint32_t seed) { return Engine(file.path(), {}).logits(window(seed), kTokens); };
    for (const size_t shard : {size_t{0}, sched::shard_of(1, sched::Module::kGateUp), sched::head_of(n_layers)}) {
        sched::Plan plan = sched::uniform_plan(n_layers, 8);
        plan.levels[shard] = 3;
        double expected = 0;
        for (const uint32_t seed : {1u, 2u}) {
            const EngineOptions alone{.plans = {plan}};
            const auto truth = high(seed), logits = Engine(file.path(), alone).logits(window(seed), kTokens);
            const size_t n_vocab = logits.size() / kTokens;
            for (size_t t = kTokens - kScored; t < kTokens; ++t) {
                const auto row = [&](const std::vector<float>& all) {
                    return std::span(all).subspan(t * n_vocab, n_vocab);
                };
                expected += divergence(row(truth), row(logits), 0).kl / (2 * kScored);
            }
        }
        EXPECT_NEAR(table.shards[shard].kl[1], expected, 1e-6 + 1e-3 * expected) << sched::shard_name(shard, n_layers);
        EXPECT_GT(table.shards[shard].kl[0], table.shards[shard].kl[3]);
        EXPECT_EQ(table.shards[shard].kl[4], 0);
    }
    uint64_t bytes = 0;
    for (const sched::ShardCost& cost : table.shards) bytes += cost.bytes[2];
    const EngineOptions at_four{.level = kernels::Level::k4};
    EXPECT_EQ(bytes + table.fixed_bytes, Engine(file.path(), at_four).store->stats().weights_bytes);
}

}  // namespace
}  // namespace weir::test
