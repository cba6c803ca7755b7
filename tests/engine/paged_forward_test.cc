// Paging changes where the weights are and nothing else: the forward pass over the pager, from the least number of
// frames to all of them, gives the bits that resident weights give.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/tiny_model.h"
#include "tests/pager/live.h"

namespace weir::test {
namespace {

using kernels::Activation;
using kernels::Type;

std::vector<int32_t> some_ids(size_t n) {
    std::mt19937 random(21);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
    return ids;
}

void expect_same_bits(const TinyShape& shape, std::initializer_list<uint64_t> budgets) {
    const TinyModelFile file(shape);
    const auto ids = some_ids(14);
    EngineOptions options;
    options.paging = PagingMode::kResident;
    options.forms = ActivationForms::product();
    const auto expected = Engine(file.path(), options).logits(ids, 5);
    options.paging = PagingMode::kUffd;
    for (const uint64_t budget : budgets) {
        for (const bool gates : {true, false}) {
            for (const size_t threads : {1, 2}) {
                SCOPED_TRACE(std::to_string(budget) + " bytes of frames, " + std::to_string(threads) + " threads, gates " +
                             (gates ? "on" : "off"));
                options.frame_bytes = budget;
                options.gates = gates;
                options.threads = threads;
                Engine engine(file.path(), options);
                for (const size_t chunk : {1, 5}) {
                    engine.cache->set_length(0);
                    const auto logits = engine.logits(ids, chunk);
                    ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)));
                }
                const StoreStats stats = engine.store->stats();
                EXPECT_GT(stats.bytes_read, 0u);
                EXPECT_LE(stats.frame_bytes, budget);
            }
        }
    }
}

TEST(PagedForward, SameBitsAtEveryBudget) {
    WEIR_NEEDS_UFFD();
    TinyShape shape;
    shape.n_layers = 6;
    expect_same_bits(shape, {64 << 10, 128 << 10, 300 << 10, 4 << 20});
}

TEST(PagedForward, SameBitsWithATiedHeadAndMixedTypes) {
    WEIR_NEEDS_UFFD();
    TinyShape shape;
    shape.dim = 256;
    shape.ffn_dim = 512;
    shape.body = Type::kQ4_K;
    shape.down = Type::kQ6_K;
    shape.embedding = Type::kQ8_0;
    shape.tied = true;
    expect_same_bits(shape, {64 << 10, 200 << 10, 1 << 20});
}

// A row of ffn_down takes 16 KiB, four Extents and more at the smallest budget: one worker has to hold five.
TEST(PagedForward, RowsLongerThanAnExtent) {
    WEIR_NEEDS_UFFD();
    TinyShape shape;
    shape.n_layers = 1;
    shape.ffn_dim = 4096;
    expect_same_bits(shape, {56 << 10, 300 << 10});

    // Too few frames for that are refused, where two workers would wait for each other for ever.
    const TinyModelFile file(shape);
    EngineOptions options;
    options.paging = PagingMode::kUffd;
    options.frame_bytes = 40 << 10;
    options.threads = 2;
    EXPECT_THROW(Engine(file.path(), options), UsageError);
}

// The file loses its end while it is in use: the run ends with an error that says so, and nobody hangs.
TEST(PagedForward, AFileThatShrinksIsAnError) {
    WEIR_NEEDS_UFFD();
    for (const size_t threads : {1, 2}) {
        TinyShape shape;
        shape.n_layers = 6;
        const TinyModelFile file(shape);
        EngineOptions options;
        options.paging = PagingMode::kUffd;
        options.frame_bytes = 96 << 10;
        options.threads = threads;
        Engine engine(file.path(), options);
        const auto ids = some_ids(4);
        engine.logits(ids, 1);
        std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) / 2);
        EXPECT_THROW(engine.logits(ids, 1), Error);
    }
}

}  // namespace
}  // namespace weir::test
