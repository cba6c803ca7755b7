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
                EXPECT_EQ(engine.store->stats().level, static_cast<int>(level));
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

TEST(NativeEngine, AdvisedIsRefused) {
    const TinyShape shape;
    const TinyNativeFile file(shape);
    EngineOptions options{.paging = PagingMode::kAdvised};
    options.frame_bytes = 1 << 24;
    EXPECT_THROW(Engine(file.path(), options), Error);
}

}  // namespace
}  // namespace weir::test
