// Native files over the pager: at every level and budget the bits that resident planes give.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "runtime/model/model_map.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

using kernels::Level;

void expect_same_bits(const TinyShape& shape, uint64_t band_bytes, std::initializer_list<uint64_t> budgets) {
    const TinyNativeFile file(shape, band_bytes);
    std::mt19937 random(21);
    std::vector<int32_t> ids(12);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
    for (const Level level : kernels::kLevels) {
        EngineOptions options{.paging = PagingMode::kResident, .level = level};
        options.forms = ActivationForms::product();
        const auto expected = Engine(file.path(), options).logits(ids, 5);
        options.paging = PagingMode::kUffd;
        for (const uint64_t budget : budgets) {
            for (const size_t threads : {1, 2}) {
                SCOPED_TRACE("level " + std::to_string(static_cast<int>(level)) + ", " + std::to_string(budget) + " bytes, " +
                             std::to_string(threads) + " threads");
                options.frame_bytes = budget;
                options.threads = threads;
                Engine engine(file.path(), options);
                for (const size_t chunk : {1, 5}) {
                    engine.cache->set_length(0);
                    const auto logits = engine.logits(ids, chunk);
                    ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)));
                }
                EXPECT_EQ(engine.store->stats().faults, 0u);
            }
        }
    }
}

TEST(NativePaged, GivesTheSameBits) {
    TinyShape shape;
    shape.dim = 256;
    shape.ffn_dim = 512;
    expect_same_bits(shape, 64 << 10, {1 << 20, 64 << 20});
}

// Every read that is made is of runs that the level reads, or of rows of the embedding, which is kept apart here; also where
// other plans could be in force and are not.
TEST(NativePaged, ReadsNoByteOfAnotherLevel) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.dim = 256;
    shape.ffn_dim = 512;
    const TinyNativeFile native(shape, 64 << 10);
    const std::string trace = native.path() + ".trace";
    std::vector<sched::Plan> plans{mixed_plan(shape.n_layers, 0), mixed_plan(shape.n_layers, 1)};
    for (const uint8_t level : sched::kLevels) plans.push_back(sched::uniform_plan(shape.n_layers, level));
    for (size_t i = 0; i < 2 * plans.size(); ++i) {
        const sched::Plan& plan = plans[i / 2];
        const bool alone = i % 2 == 0;
        SCOPED_TRACE(sched::precision_json(plan) + (alone ? " alone" : " of many"));
        uint64_t bytes_read = 0;
        {
            EngineOptions options{.paging = PagingMode::kUffd, .plans = {plan}};
            if (!alone) options.plans.insert(options.plans.end(), plans.begin(), plans.end());
            options.frame_bytes = 1 << 20;
            options.trace_io = trace;
            Engine engine(native.path(), options);
            (void)engine.logits(std::vector<int32_t>{1, 2, 3, 4}, 1);
            bytes_read = engine.store->stats().bytes_read;
        }
        const GgufFile file = GgufFile::open(native.path());
        const NativeTable& table = *file.native();
        const ModelMap map = build_model_map(file, read_config(file), table.page, false, {plan});
        std::ifstream in(trace);
        uint64_t offset = 0, bytes = 0, sum = 0;
        while (in >> offset >> bytes) {
            sum += bytes;
            for (const PlacedTensor& t : map.tensors) {
                const auto level = static_cast<Level>(plan.levels[t.shard]);
                for (size_t b = 0; b < t.bands.size(); ++b) {
                    const auto runs = band_runs(*t.part, b, table.page);
                    for (size_t r = 0; r < kRuns; ++r) {
                        const bool touched = offset < runs[r].offset + runs[r].bytes && offset + bytes > runs[r].offset;
                        ASSERT_TRUE(!touched || reads_run(level, r)) << t.tensor->name << " reads run " << r;
                    }
                }
            }
        }
        EXPECT_GE(sum, bytes_read);
        EXPECT_GT(bytes_read, 0u);
        std::filesystem::remove(trace);
    }
}

// With all the time in the world nothing comes too late; with none refinement is left out, nobody waits for it, and no trace of
// that stays.
TEST(NativePaged, WhatComesTooLateIsDoneWithout) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.dim = 256;
    shape.ffn_dim = 512;
    const TinyNativeFile file(shape, 64 << 10);
    const std::vector<int32_t> ids = {5, 77, 140, 3, 9, 250};
    const std::vector<sched::Plan> plans{sched::uniform_plan(shape.n_layers, 8), sched::uniform_plan(shape.n_layers, 4)};
    const auto alone = [&](const sched::Plan& plan) {
        return Engine(file.path(), {.paging = PagingMode::kResident, .plans = {plan}}).logits(ids, 1);
    };
    const auto high = alone(plans[0]), low = alone(plans[1]);
    for (const uint64_t budget : {800u << 10, 64u << 20}) {
        for (const size_t threads : {1, 2}) {
            SCOPED_TRACE(std::to_string(budget) + " bytes, " + std::to_string(threads) + " threads");
            EngineOptions options{.paging = PagingMode::kUffd, .plans = plans};
            options.frame_bytes = budget;
            options.threads = threads;
            Engine engine(file.path(), options);
            const auto pass = [&] {
                engine.cache->set_length(0);
                return engine.logits(ids, 1);
            };
            engine.store->set_deadline(std::chrono::hours(1));
            ASSERT_EQ(high, pass());
            const StoreStats patient = engine.store->stats();
            EXPECT_GT(patient.refined_units, 0u);
            EXPECT_EQ(patient.late_units, 0u);
            engine.store->set_deadline(std::chrono::microseconds(1));
            for (int i = 0; i < 4; ++i)
                for (const float logit : pass()) ASSERT_TRUE(std::isfinite(logit));
            const StoreStats hasty = engine.store->stats();
            EXPECT_EQ(hasty.late_units == 0, hasty.late_passes == 0);
            EXPECT_LE(hasty.late_units, hasty.refined_units);
            if (budget < 1 << 20) {
                EXPECT_GT(hasty.late_units, 0u);
            } else {
                EXPECT_EQ(hasty.late_units, 0u);  // all of it has stayed since
            }
            engine.store->use_plan(plans[1]);
            ASSERT_EQ(low, pass());
            EXPECT_EQ(engine.store->stats().refined_units, hasty.refined_units);
            engine.store->use_plan(plans[0]);
            engine.store->set_deadline(std::chrono::microseconds(0));
            ASSERT_EQ(high, pass());
            EXPECT_EQ(engine.store->stats().refined_units, hasty.refined_units);
        }
    }
}

// A plan of many levels reads its own runs and no others, and plans that take turns give the bits that each gives alone.
TEST(NativePaged, PlansTakeTurns) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.dim = 256;
    shape.ffn_dim = 512;
    const TinyNativeFile file(shape, 64 << 10);
    std::mt19937 random(21);
    std::vector<int32_t> ids(6);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
    std::vector<sched::Plan> plans{sched::uniform_plan(shape.n_layers, 8), sched::uniform_plan(shape.n_layers, 2)};
    for (const uint32_t seed : {0u, 1u, 2u}) plans.push_back(mixed_plan(shape.n_layers, seed));
    for (const uint64_t budget : {1u << 20, 64u << 20}) {
        EngineOptions options{.paging = PagingMode::kUffd, .plans = plans};
        options.frame_bytes = budget;
        options.threads = 2;
        Engine engine(file.path(), options);
        for (const size_t p : {1, 0, 3, 4, 2, 1}) {
            SCOPED_TRACE("plan " + std::to_string(p) + ", " + std::to_string(budget) + " bytes");
            const EngineOptions alone{.paging = PagingMode::kResident, .plans = {plans[p]}};
            const auto expected = Engine(file.path(), alone).logits(ids, 1);
            engine.store->use_plan(plans[p]);
            engine.cache->set_length(0);
            const auto logits = engine.logits(ids, 1);
            ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)));
        }
        EXPECT_EQ(engine.store->stats().faults, 0u);
    }
}

// Without gates every absence is a fault at an address of the Region, where Extents do not lie in their order.
TEST(NativePaged, FaultsFindGatheredPlanes) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.dim = 256;
    shape.ffn_dim = 512;
    const TinyNativeFile file(shape, 64 << 10);
    const std::vector<int32_t> ids{1, 2, 3, 4};
    std::vector<sched::Plan> plans;
    for (const uint8_t level : sched::kLevels) plans.push_back(sched::uniform_plan(shape.n_layers, level));
    EngineOptions options{.paging = PagingMode::kUffd, .plans = plans, .frame_bytes = 1 << 20, .gates = false};
    Engine engine(file.path(), options);
    for (const sched::Plan& plan : plans) {
        const auto expected = Engine(file.path(), {.paging = PagingMode::kResident, .plans = {plan}}).logits(ids, 1);
        engine.store->use_plan(plan);
        engine.cache->set_length(0);
        const auto logits = engine.logits(ids, 1);
        ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)));
    }
}

// What the levels of one file differ in is read or not, however large Extents are.
TEST(NativePaged, ALowPlanReadsItsShare) {
    TinyShape shape;
    shape.n_layers = 12;
    shape.dim = 256;
    shape.ffn_dim = 768;
    const TinyNativeFile file(shape, 1 << 20);
    std::vector<sched::Plan> plans;
    for (const uint8_t level : sched::kLevels) plans.push_back(sched::uniform_plan(shape.n_layers, level));
    EngineOptions options{.paging = PagingMode::kUffd, .plans = plans, .frame_bytes = 2 << 20};
    Engine engine(file.path(), options);
    for (const sched::Plan& plan : plans) {
        engine.store->use_plan(plan);
        engine.cache->set_length(0);
        (void)engine.logits(std::vector<int32_t>{1, 2, 3}, 1);
        const StoreStats stats = engine.store->stats();
        EXPECT_LE(static_cast<double>(stats.pass_bytes), 1.05 * static_cast<double>(stats.weights_bytes)) << sched::precision_json(plan);
    }
}

TEST(NativePaged, GathersATiedEmbeddingFromItsPlanes) {
    TinyShape shape;
    shape.dim = 576;
    shape.n_heads = 9;
    shape.n_kv_heads = 3;
    shape.ffn_dim = 288;
    shape.tied = true;
    expect_same_bits(shape, 64 << 10, {2 << 20});
}

TEST(NativePaged, ReadsExpertsByParts) {
    TinyShape shape;
    shape.architecture = "qwen3moe";
    shape.n_experts = 5;
    shape.expert_ffn_dim = 64;
    expect_same_bits(shape, 16 << 10, {2 << 20});
}

}  // namespace
}  // namespace weir::test
