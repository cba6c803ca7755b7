// Native files in the engine: close to their source at level 8, further at each level below, and the same bits wherever the
// planes are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

using kernels::Level;

std::vector<int32_t> ids_for(size_t n) {
    std::mt19937 random(21);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
    return ids;
}

double distance(std::span<const float> a, std::span<const float> b) {
    double off = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        off += std::pow(static_cast<double>(a[i] - b[i]), 2);
        all += std::pow(static_cast<double>(b[i]), 2);
    }
    return std::sqrt(off / all);
}

std::vector<std::pair<std::string, TinyShape>> shapes() {
    TinyShape plain;
    TinyShape tied = plain;  // rows of 2 super-blocks and a short one, and an embedding that is gathered from planes
    tied.dim = 576;
    tied.n_heads = 9;
    tied.n_kv_heads = 3;
    tied.ffn_dim = 288;
    tied.tied = true;
    TinyShape odd = plain;  // ffn_down keeps its type
    odd.ffn_dim = 100;
    TinyShape experts = plain;
    experts.architecture = "qwen3moe";
    experts.n_experts = 5;
    experts.expert_ffn_dim = 64;
    return {{"plain", plain}, {"tied", tied}, {"odd", odd}, {"experts", experts}};
}

TEST(NativeEngine, LevelsComeCloserToTheSource) {
    for (const auto& [name, shape] : shapes()) {
        SCOPED_TRACE(name);
        const TinyNativeFile file(shape);
        const auto ids = ids_for(14);
        const auto source = Engine(file.source(), {}).logits(ids, 5);
        double before = 1e9;
        for (const Level level : kernels::kLevels) {
            const double off = distance(Engine(file.path(), {.level = level}).logits(ids, 5), source);
            EXPECT_LT(off, before) << static_cast<int>(level);
            before = off;
        }
        EXPECT_LT(before, 0.04);
    }
}

TEST(NativeEngine, TheSameBitsWhereverPlanesAre) {
    for (const auto& [name, shape] : shapes()) {
        const TinyNativeFile file(shape);
        const auto ids = ids_for(14);
        for (const Level level : kernels::kLevels) {
            SCOPED_TRACE(name + " at level " + std::to_string(static_cast<int>(level)));
            EngineOptions options{.level = level};
            options.forms = ActivationForms::product();
            const auto mapped = Engine(file.path(), options).logits(ids, 5);
            options.paging = PagingMode::kResident;
            for (const size_t threads : {1, 2}) {
                options.threads = threads;
                Engine engine(file.path(), options);
                const auto resident = engine.logits(ids, 1);
                ASSERT_EQ(0, std::memcmp(mapped.data(), resident.data(), mapped.size() * sizeof(float)));
                EXPECT_EQ(engine.store->stats().plan.uniform(), static_cast<int>(level));
            }
        }
    }
}

TEST(NativeEngine, ALevelReadsWhatItTakes) {
    TinyShape shape;
    shape.dim = 256;
    shape.ffn_dim = 512;
    const TinyNativeFile file(shape, 1 << 20);
    uint64_t before = 0;
    for (const Level level : kernels::kLevels) {
        EngineOptions options{.paging = PagingMode::kResident, .level = level};
        const StoreStats stats = Engine(file.path(), options).store->stats();
        EXPECT_GT(stats.bytes_read, before);
        EXPECT_LT(static_cast<double>(stats.bytes_read), 1.35 * static_cast<double>(stats.weights_bytes)) << static_cast<int>(level);
        before = stats.bytes_read;
    }
}

// Each matrix is computed at the level of its shard: with one shard below the others the logits lie between, and differ from
// those of every other shard below.
TEST(NativeEngine, APlanSetsEachShard) {
    const TinyShape shape;
    const TinyNativeFile file(shape);
    const auto ids = ids_for(9);
    const auto high = Engine(file.path(), {}).logits(ids, 9), low = Engine(file.path(), {.level = Level::k2}).logits(ids, 9);
    const size_t n_layers = shape.n_layers;
    std::vector<std::vector<float>> seen{high, low};
    for (size_t shard = 0; shard < sched::shards_of(n_layers); ++shard) {
        SCOPED_TRACE(sched::shard_name(shard, n_layers));
        EngineOptions options{.plans = {sched::uniform_plan(n_layers, 8)}};
        options.plans[0].levels[shard] = 2;
        seen.push_back(Engine(file.path(), options).logits(ids, 9));
        EXPECT_LT(distance(seen.back(), high), 1.2 * distance(low, high));
        for (size_t other = 0; other + 1 < seen.size(); ++other) EXPECT_NE(seen[other], seen.back()) << other;
    }
}

// A plan that comes into force later gives the bits that it gives from the start, for what comes after.
TEST(NativeEngine, PlansTakeTurns) {
    for (const auto& [name, shape] : shapes()) {
        SCOPED_TRACE(name);
        const TinyNativeFile file(shape);
        const auto ids = ids_for(14);
        std::vector<sched::Plan> plans{sched::uniform_plan(shape.n_layers, 8)};
        for (const uint32_t seed : {0u, 1u, 2u}) plans.push_back(mixed_plan(shape.n_layers, seed));
        for (const PagingMode mode : {PagingMode::kMmap, PagingMode::kResident}) {
            EngineOptions options{.paging = mode, .plans = plans};
            Engine engine(file.path(), options);
            for (const size_t p : {2, 0, 3, 1, 0}) {
                engine.store->use_plan(plans[p]);
                engine.cache->set_length(0);
                const EngineOptions alone{.paging = mode, .plans = {plans[p]}};
                EXPECT_EQ(engine.logits(ids, 5), Engine(file.path(), alone).logits(ids, 5)) << p;
                EXPECT_EQ(engine.store->stats().plan, plans[p]);
            }
            EngineOptions few{.paging = mode, .plans = {sched::uniform_plan(shape.n_layers, 2)}};
            EXPECT_THROW(Engine(file.path(), few).store->use_plan(plans[0]), Error);
        }
    }
}

TEST(NativeEngine, AdvisedIsRefused) {
    const TinyShape shape;
    const TinyNativeFile file(shape);
    EngineOptions options{.paging = PagingMode::kAdvised};
    options.frame_bytes = 1 << 24;
    EXPECT_THROW(Engine(file.path(), options), Error);
}

}  // namespace
}  // namespace weir::test
