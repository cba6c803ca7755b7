// Native files over the pager: at every level and budget the bits that resident planes give.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "runtime/model/native_format.h"
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

// Every read that is made is of runs that the level reads, or of rows of the embedding, which is kept apart here.
TEST(NativePaged, ReadsNoByteOfAnotherLevel) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.dim = 256;
    shape.ffn_dim = 512;
    const TinyNativeFile native(shape, 64 << 10);
    const std::string trace = native.path() + ".trace";
    for (const Level level : kernels::kLevels) {
        uint64_t bytes_read = 0;
        {
            EngineOptions options{.paging = PagingMode::kUffd, .level = level};
            options.frame_bytes = 1 << 20;
            options.trace_io = trace;
            Engine engine(native.path(), options);
            (void)engine.logits(std::vector<int32_t>{1, 2, 3, 4}, 1);
            bytes_read = engine.store->stats().bytes_read;
        }
        const GgufFile file = GgufFile::open(native.path());
        const NativeTable& table = *file.native();
        std::ifstream in(trace);
        uint64_t offset = 0, bytes = 0, sum = 0;
        while (in >> offset >> bytes) {
            sum += bytes;
            for (const NativePart& part : table.parts) {
                for (uint64_t b = 0; b < part.bands(); ++b) {
                    const auto runs = band_runs(part, b, table.page);
                    for (size_t r = 0; r < kRuns; ++r) {
                        const bool touched = offset < runs[r].offset + runs[r].bytes && offset + bytes > runs[r].offset;
                        ASSERT_TRUE(!touched || reads_run(level, r)) << "level " << static_cast<int>(level) << " reads run " << r;
                    }
                }
            }
        }
        EXPECT_GE(sum, bytes_read) << static_cast<int>(level);
        EXPECT_GT(bytes_read, 0u);
        std::filesystem::remove(trace);
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
