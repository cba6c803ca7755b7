// The pure parts: cutting the image, choosing what stays.
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "pager/layout.h"
#include "pager/pager_shared.h"
#include "pager/residency_policy.h"

namespace weir::pager {
namespace {

TEST(Layout, SegmentsFillEverySlotInOrder) {
    const std::vector<ImageRange> ranges = {{0, 8192, 12288}, {12288, 40960, 4096}, {16384, 0, 8192}};
    const Layout layout = cut_layout(ranges, 8192);
    ASSERT_EQ(layout.n_extents(), 3u);
    ASSERT_EQ(layout.extent(0).size(), 1u);
    ASSERT_EQ(layout.extent(1).size(), 2u);
    EXPECT_EQ(layout.extent(0)[0].file_offset, 8192u);
    EXPECT_EQ(layout.extent(1)[0].file_offset, 16384u);
    EXPECT_EQ(layout.extent(1)[0].bytes, 4096u);
    EXPECT_EQ(layout.extent(1)[1].file_offset, 40960u);
    EXPECT_EQ(layout.extent(1)[1].slot_offset, 4096u);
    EXPECT_EQ(layout.extent(2)[0].file_offset, 0u);
}

TEST(Layout, RandomImagesKeepEveryByteOnce) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 100; ++round) {
        std::vector<ImageRange> ranges;
        uint64_t place = 0;
        const size_t n = 1 + random() % 20;
        for (size_t i = 0; i < n; ++i) {
            const uint64_t bytes = (1 + random() % 50) * 4096;
            ranges.push_back({place, (random() % 1000) * 4096, bytes});
            place += bytes;
        }
        const size_t extent = size_t{4096} << (random() % 6);
        const Layout layout = cut_layout(ranges, extent);
        ASSERT_EQ(layout.n_extents(), (place + extent - 1) / extent);
        uint64_t at = 0;
        size_t range = 0;
        for (size_t e = 0; e < layout.n_extents(); ++e) {
            for (const Segment& s : layout.extent(e)) {
                ASSERT_EQ(e * extent + s.slot_offset, at);
                while (at >= ranges[range].place + ranges[range].bytes) ++range;
                ASSERT_EQ(s.file_offset, ranges[range].file_offset + (at - ranges[range].place));
                at += s.bytes;
            }
        }
        ASSERT_EQ(at, place);
    }
}

TEST(ExtentWord, AnExtentThatCameAndWentIsNotTheSameAsBefore) {
    uint32_t word = 0xfffffff0u;  // about to wrap
    for (int round = 0; round < 10; ++round) {
        const uint32_t before = word;
        for (const ExtentState s : {kReading, kPresent, kAbsent}) {
            word = next_word(word, s);
            EXPECT_EQ(state_of(word), s);
            EXPECT_NE(word, before);
        }
    }
}

TEST(ExtentSize, IsTheLargestPowerOfTwoThatLeavesEightFrames) {
    constexpr size_t kPage = 4096, kPmd = 2 << 20;
    EXPECT_EQ(choose_extent_bytes(uint64_t{1} << 30, kPage, kPmd), kPmd);
    EXPECT_EQ(choose_extent_bytes(16 << 20, kPage, kPmd), kPmd);
    EXPECT_EQ(choose_extent_bytes((16 << 20) - 1, kPage, kPmd), kPmd / 2);
    EXPECT_EQ(choose_extent_bytes(260 << 10, kPage, kPmd), size_t{32} << 10);
    EXPECT_EQ(choose_extent_bytes(1, kPage, kPmd), kPage);
    EXPECT_EQ(choose_extent_bytes(uint64_t{1} << 40, 65536, size_t{512} << 20), size_t{512} << 20);
    EXPECT_EQ(choose_extent_bytes(100, 16384, 32 << 20), 16384u);
}

TEST(HeldExtents, AreTwoUnlessARowIsLonger) {
    constexpr uint64_t kExtent = 4096;
    EXPECT_EQ(held_extents(0, kExtent), 2u);
    EXPECT_EQ(held_extents(1, kExtent), 2u);
    EXPECT_EQ(held_extents(kExtent, kExtent), 2u);
    EXPECT_EQ(held_extents(kExtent + 1, kExtent), 2u);
    EXPECT_EQ(held_extents(kExtent + 2, kExtent), 3u);
    EXPECT_EQ(held_extents(4 * kExtent, kExtent), 5u);
}

TEST(Residency, SpendsEveryFrameAndSpreadsWhatStreams) {
    for (const auto& [workers, holding] : {std::pair<size_t, Holding>{1, {2}}, {2, {2}}, {4, {2}}, {8, {2}}, {2, {5}}, {4, {1, 14}}}) {
        for (const bool copies : {false, true}) {
            for (size_t n = 1; n < 2000; n = n * 3 / 2 + 1) {
                for (size_t frames = least_frames(workers, holding) + 2; frames <= n + 4; frames += 1 + n / 37) {
                    const Residency r = choose_residency(n, frames, {workers, copies, holding});
                    size_t pinned = 0;
                    for (const bool p : r.pinned) pinned += p;
                    ASSERT_EQ(pinned, r.n_pinned);
                    ASSERT_LE(r.n_pinned + r.ring, frames);
                    if (r.n_pinned == n) continue;
                    ASSERT_EQ(r.n_pinned + r.ring, frames);
                    // The design's bound on the ring: at most max(8 Extents, 3 %) beyond what is shared, unless the workers need more.
                    ASSERT_LE(r.ring, std::max(holding.shared + std::max<size_t>(8, n * 3 / 100), least_frames(workers, holding) + 2));
                    ASSERT_GE(r.ring - r.staging, least_frames(workers, holding));
                    // Evenly spread: any window of the walk streams its share, give or take one.
                    const size_t streamed = n - r.n_pinned;
                    size_t seen = 0;
                    for (size_t e = 0; e < n; ++e) {
                        seen += !r.pinned[e];
                        ASSERT_LE(seen * n, (e + 1) * streamed + n);
                        ASSERT_GE(seen * n + n, (e + 1) * streamed);
                    }
                }
            }
        }
    }
}

TEST(Residency, WhatIsWorthMoreStaysFirst) {
    constexpr size_t kN = 400;
    std::vector<uint8_t> worth;
    for (size_t e = 0; e < kN; ++e) worth.push_back(static_cast<uint8_t>(e % 4));
    const auto pinned_of = [&](const Residency& r, uint8_t rank) {
        size_t n = 0;
        for (size_t e = 0; e < kN; ++e) n += r.pinned[e] && worth[e] == rank;
        return n;
    };
    const RingNeeds needs{1, false, {}, 8, worth};
    Residency r = choose_residency(kN, 8 + 150, needs);
    for (const size_t frames : {8 + 150, 8 + 250, 8 + 320, 8 + 60, 8 + 190}) {
        r = change_residency(r, frames, needs);
        size_t left = frames - 8;
        for (const uint8_t rank : {3, 2, 1, 0}) {
            EXPECT_EQ(pinned_of(r, rank), std::min<size_t>(100, left)) << frames << " frames, worth " << int{rank};
            left -= std::min<size_t>(100, left);
        }
    }
    // Evenly among equals.
    r = choose_residency(kN, 8 + 150, needs);
    for (size_t e = 0, run = 0; e < kN; ++e) {
        if (worth[e] == 2) run = r.pinned[e] ? 0 : run + 1;
        EXPECT_LE(run, 1u);
    }
}

TEST(Residency, ChangesNestAndStaySpread) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 40; ++round) {
        const size_t n = 30 + random() % 1000;
        const size_t workers = 1 + random() % 4;
        const bool copies = random() % 2 != 0;
        const size_t least = least_frames(workers) + 2;
        Residency now = choose_residency(n, least + random() % n, {workers, copies});
        for (int change = 0; change < 50; ++change) {
            const size_t frames = least + random() % n;
            const RingNeeds needs{workers, copies, {}, shortest_ring() + random() % (longest_ring(n) + 1 - shortest_ring())};
            const Residency next = change_residency(now, frames, needs);
            const Residency fresh = choose_residency(n, frames, needs);
            ASSERT_EQ(next.n_pinned, fresh.n_pinned);
            ASSERT_EQ(next.ring, fresh.ring);
            ASSERT_EQ(next.staging, fresh.staging);
            size_t pinned = 0;
            for (size_t e = 0; e < n; ++e) {
                pinned += next.pinned[e];
                if (next.n_pinned <= now.n_pinned) {
                    ASSERT_LE(next.pinned[e], now.pinned[e]);
                }
                if (next.n_pinned >= now.n_pinned) {
                    ASSERT_GE(next.pinned[e], now.pinned[e]);
                }
            }
            ASSERT_EQ(pinned, next.n_pinned);
            // Not as even as a fresh choice, but the walk never streams far more than its share at a stretch: reads may
            // fall behind by that many Extents of 2 MiB.
            const auto streamed = static_cast<double>(n - pinned);
            double seen = 0, most = 0, least_ahead = 0;
            for (size_t e = 0; e < n; ++e) {
                seen += !next.pinned[e];
                const double ahead = seen - streamed * static_cast<double>(e + 1) / static_cast<double>(n);
                most = std::max(most, ahead);
                least_ahead = std::min(least_ahead, ahead);
            }
            ASSERT_LE(most - least_ahead, 8 + static_cast<double>(n) / 50) << "change " << change;
            now = next;
        }
    }
}

}  // namespace
}  // namespace weir::pager
