// What a level reads of a native file: the runs that it needs, and no byte of a higher plane nor of another level's scales.
#include <gtest/gtest.h>

#include "runtime/model/model_map.h"
#include "tests/model/native_fixture.h"

namespace weir {
namespace {

using kernels::Level;

TEST(NativeMap, HoldsTheRunsOfTheLevelAndNothingElse) {
    for (const bool tied : {false, true}) {
        test::SmallModel model = test::planed_model();
        model.tied = tied;
        model.layers = 2;
        ConvertOptions options;
        options.band_bytes = 3000;  // several bands
        const test::NativeFixture made(model, options);
        const GgufFile file = GgufFile::open(made.path);
        const NativeTable& table = *file.native();
        const ModelConfig config = read_config(file);
        for (const Level level : kernels::kLevels) {
            const ModelMap map = build_model_map(file, config, table.page, false, {sched::uniform_plan(config.n_layers, static_cast<int>(level))});
            const auto image_has = [&](uint64_t offset) {
                for (const PlacedRange& r : map.ranges)
                    if (offset >= r.file_offset && offset < r.file_offset + r.bytes) return true;
                return false;
            };
            for (const NativePart& part : table.parts) {
                for (uint64_t b = 0; b < part.bands(); ++b) {
                    const auto runs = band_runs(part, b, table.page);
                    for (size_t r = 0; r < kRuns; ++r) {
                        for (const uint64_t at : {runs[r].offset, runs[r].offset + runs[r].bytes - 1})
                            ASSERT_EQ(image_has(at), reads_run(level, r)) << static_cast<int>(level) << " run " << r;
                    }
                }
            }
            // Ranges ascend without gaps, and every band's runs are where the map says.
            uint64_t place = 0;
            for (const PlacedRange& r : map.ranges) {
                ASSERT_EQ(r.place, place);
                place += r.bytes;
            }
            EXPECT_EQ(place, map.image_bytes);
            uint64_t before = 0;
            for (const PlacedTensor& t : map.tensors) {
                EXPECT_GE(t.place, before);
                before = t.place;
                for (size_t b = 0; b < t.bands.size(); ++b) {
                    const auto runs = band_runs(*t.part, b, table.page);
                    for (size_t r = 0; r < kRuns; ++r) {
                        if (!reads_run(level, r)) continue;
                        uint64_t in_file = 0;
                        for (const PlacedRange& range : map.ranges) {
                            if (t.bands[b].run_place[r] >= range.place && t.bands[b].run_place[r] < range.place + range.bytes)
                                in_file = range.file_offset + (t.bands[b].run_place[r] - range.place);
                        }
                        EXPECT_EQ(in_file, runs[r].offset);
                    }
                }
            }
        }
    }
}

// Pages of the machine may be larger than the file's.
TEST(NativeMap, LargerPagesShareTheirEnds) {
    const test::NativeFixture made(test::planed_model());
    const GgufFile file = GgufFile::open(made.path);
    for (const Level level : kernels::kLevels) {
        const uint64_t page = 64u << 10;
        const ModelConfig config = read_config(file);
        const ModelMap map = build_model_map(file, config, page, false, {sched::uniform_plan(config.n_layers, static_cast<int>(level))});
        for (const PlacedRange& r : map.ranges) {
            EXPECT_EQ(r.file_offset % page, 0u);
            EXPECT_EQ(r.bytes % page, 0u);
            EXPECT_EQ(r.place % page, 0u);
        }
    }
}

}  // namespace
}  // namespace weir
