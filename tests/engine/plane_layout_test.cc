// How planes lie in the Region: every byte where it says, no Extent of two kinds, numbered as they are walked.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/engine/paging_shape.h"
#include "runtime/engine/plane_layout.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

constexpr size_t kGranule = 4 << 10;

// Offset in the file of a byte of the Region.
uint64_t source_of(const PlaneLayout& layout, uint64_t at) {
    const size_t extent = layout.extent_in[at / layout.extents.extent_bytes];
    const uint64_t in_slot = at % layout.extents.extent_bytes;
    for (const pager::Segment& s : layout.extents.extent(extent))
        if (in_slot >= s.slot_offset && in_slot < s.slot_offset + s.bytes)
            return s.file_offset + (in_slot - s.slot_offset);
    return 0;
}

std::vector<sched::Plan> plans_of(size_t n_layers, bool mixed) {
    std::vector<sched::Plan> plans;
    for (const uint8_t level : sched::kLevels) plans.push_back(sched::uniform_plan(n_layers, level));
    if (mixed) {
        plans.push_back(mixed_plan(n_layers, 0));
        plans.push_back(mixed_plan(n_layers, 1));
    }
    return plans;
}

void check(const GgufFile& file, const std::vector<sched::Plan>& plans, size_t extent_bytes) {
    const ModelConfig config = read_config(file);
    ModelMap map = build_model_map(file, config, kGranule, false, plans);
    const PlaneLayout layout = gather_planes(map, plans, extent_bytes, kGranule);
    place_planes(layout, &map);

    std::set<uint32_t> slots(layout.extents.slots.begin(), layout.extents.slots.end());
    EXPECT_EQ(slots.size(), layout.n_extents());
    ASSERT_EQ(layout.worth.size(), layout.n_extents());

    // Both ends of every run are where the map says, and so is what lies between.
    for (const PlacedTensor& placed : map.tensors) {
        if (placed.part == nullptr) {
            for (uint64_t i = 0; i < placed.bytes; i += 512)
                ASSERT_EQ(source_of(layout, placed.at + i), placed.tensor->offset + i);
            continue;
        }
        for (size_t b = 0; b < placed.bands.size(); ++b) {
            const auto runs = band_runs(*placed.part, b, file.native()->page);
            for (size_t r = 0; r < kRuns; ++r) {
                if (!placed.has_run(r)) continue;
                for (uint64_t i = 0; i < runs[r].bytes; i += 512)
                    ASSERT_EQ(source_of(layout, placed.bands[b].run_at[r] + i), runs[r].offset + i);
                ASSERT_EQ(source_of(layout, placed.bands[b].run_at[r] + runs[r].bytes - 1),
                          runs[r].offset + runs[r].bytes - 1);
            }
        }
    }

    // What a plan touches is what it reads, in whole granules; and its Extents hold nothing else.
    for (const sched::Plan& plan : plans) {
        std::set<uint32_t> touched;
        std::set<uint64_t> granules;
        for (const PlaneLayout::Piece& piece : layout.pieces) {
            if (!piece.read_by(plan)) continue;
            for (const uint32_t e : layout.extents_of(piece)) touched.insert(e);
            const uint64_t offset = source_of(layout, piece.at);
            for (uint64_t g = offset / kGranule; g <= (offset + piece.bytes - 1) / kGranule; ++g) granules.insert(g);
        }
        uint64_t bytes = 0;
        for (const uint32_t e : touched)
            for (const pager::Segment& s : layout.extents.extent(e)) bytes += s.bytes;
        // A granule that two Extents share is in both. Experts' planes lie together, whatever reads them.
        if (config.n_experts == 0) {
            EXPECT_LE(bytes, (granules.size() + layout.n_extents()) * kGranule);
        }
        const bool all_in_planes = std::none_of(map.tensors.begin(), map.tensors.end(),
                                                [](const PlacedTensor& t) { return t.part == nullptr; });
        if (config.n_experts == 0 && all_in_planes) {
            EXPECT_EQ(bytes, granules.size() * kGranule);
        }
    }

    // As first touched; what is done with is never touched again, and of the rest no more is begun with than is held.
    uint32_t next = 0, done = 0;
    for (size_t i = 0; i < layout.pieces.size(); ++i) {
        ASSERT_GE(layout.done[i], done);
        done = layout.done[i];
        for (const uint32_t e : layout.extents_of(layout.pieces[i])) {
            EXPECT_LE(e, next);
            next = std::max(next, e + 1);
            EXPECT_GE(layout.extents.closes[e], done);
        }
        EXPECT_LE(next - done, layout.holding.of_one());
        const auto& closes = layout.extents.closes;
        EXPECT_EQ(std::count_if(closes.begin(), closes.end(), [done](uint32_t c) { return c < done; }), done);
    }
    EXPECT_EQ(next, layout.n_extents());
}

TinyShape many_layers() {
    TinyShape shape;
    shape.n_layers = 6;
    shape.dim = 256;
    shape.ffn_dim = 512;
    return shape;
}

const GgufFile& many_layers_file() {
    static const TinyNativeFile native(many_layers(), 64 << 10);
    static const GgufFile file = GgufFile::open(native.path());
    return file;
}

TEST(PlaneLayout, EveryByteIsWhereItSays) {
    const GgufFile& file = many_layers_file();
    for (const size_t extent : {4 << 10, 16 << 10, 64 << 10, 2 << 20})
        for (const bool mixed : {false, true}) check(file, plans_of(6, mixed), extent);
}

TEST(PlaneLayout, OnePlanLiesAsTheWalkGoes) {
    const GgufFile& file = many_layers_file();
    const std::vector<sched::Plan> plans{sched::uniform_plan(6, 3)};
    check(file, plans, 16 << 10);
    const PlaneLayout layout =
        gather_planes(build_model_map(file, read_config(file), kGranule, false, plans), plans, 16 << 10, kGranule);
    EXPECT_EQ(layout.kinds, 1u);
    for (size_t e = 0; e < layout.n_extents(); ++e) EXPECT_EQ(layout.extents.slots[e], e);
}

TEST(PlaneLayout, RowsThatAreKeptAreThereToo) {
    TinyShape shape = many_layers();
    shape.dim = 72;  // no multiple of 32
    shape.n_heads = 2;
    shape.n_kv_heads = 1;
    shape.ffn_dim = 320;
    const TinyNativeFile native(shape, 64 << 10);
    const GgufFile file = GgufFile::open(native.path());
    for (const size_t extent : {4 << 10, 16 << 10}) check(file, plans_of(6, true), extent);
}

TEST(PlaneLayout, ExpertsStayTogether) {
    TinyShape shape;
    shape.architecture = "qwen3moe";
    shape.n_experts = 5;
    shape.expert_ffn_dim = 64;
    const TinyNativeFile native(shape, 16 << 10);
    const GgufFile file = GgufFile::open(native.path());
    check(file, plans_of(shape.n_layers, false), 16 << 10);
}

// Large where everything stays; else what is open leaves most frames to what stays, and the walk is possible at all.
TEST(PlaneLayout, ChoosesTheSizeOfExtents) {
    const GgufFile& file = many_layers_file();
    const std::vector<sched::Plan> plans = plans_of(6, true);
    const ModelMap map = build_model_map(file, read_config(file), kGranule, false, plans);
    EXPECT_GE(gather_planes_for(map, plans, 1 << 30, 2, kGranule).extents.extent_bytes, 1u << 20);
    size_t before = SIZE_MAX;
    for (uint64_t frames = map.image_bytes; frames > 512 << 10; frames /= 2) {
        const PlaneLayout layout = gather_planes_for(map, plans, frames, 2, kGranule);
        EXPECT_LE(layout.extents.extent_bytes, before);
        before = layout.extents.extent_bytes;
        EXPECT_NO_THROW(shape_paging(layout, frames, 2)) << frames;
    }
}

}  // namespace
}  // namespace weir::test
