// Groups in slots: whatever the choice, the budget and the failure, bytes in a slot are those of the file, memory is within the
// budget in force, and nobody waits for ever.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "pager/pager.h"
#include "pager/system.h"
#include "tests/pager/faulty.h"
#include "tests/pager/fault_fixture.h"
#include "tests/pager/live.h"

namespace weir::test {
namespace {

constexpr size_t kPlaces = 6;
constexpr size_t kGroupsOfPlace = 10;
constexpr size_t kGroups = kPlaces * kGroupsOfPlace;
constexpr size_t kSlices = 3;

class Groups : public ::testing::Test {
  protected:
    // A group is three slices, a third of the file apart, of one or two granules each; Extents are the file's first ones.
    void SetUp() override {
        granule_ = file_.granule();
        pager::Layout& slots = layout_.slots;
        slots.first_segment.push_back(0);
        for (size_t g = 0; g < kGroups; ++g) {
            uint32_t at = 0;
            for (size_t s = 0; s < kSlices; ++s) {
                const auto bytes = static_cast<uint32_t>(granule_ * (1 + (g + s) % 2));
                slots.segments.push_back({(s * kGroups + g) * 2 * granule_, at, bytes});
                at += bytes;
            }
            slots.first_segment.push_back(static_cast<uint32_t>(slots.segments.size()));
            slots.extent_bytes = std::max<size_t>(slots.extent_bytes, at);
            layout_.places.push_back(static_cast<uint32_t>(g / kGroupsOfPlace));
        }
    }

    size_t frames_for(size_t slots) const { return (slots * layout_.slots.extent_bytes + kExtent - 1) / kExtent; }

    std::unique_ptr<pager::Pager> start(size_t slot_frames, std::unique_ptr<pager::ReadQueue> queue = nullptr) {
        pager::PagerOptions o;
        o.workers = 2;
        o.frames = 8;
        o.groups = layout_;
        o.slot_frames = slot_frames;
        o.patience = {.no_memory_ms = 150, .stuck_ms = 3000, .slow_ms = 5000};
        o.on_unanswerable = end;
        o.read_queue = std::move(queue);
        return pager::Pager::start(file_, pager::cut_layout(ranges_, kExtent), std::move(o));
    }

    bool is_right(const std::byte* slot, uint32_t group) const {
        for (const pager::Segment& s : layout_.slots.extent(group)) {
            for (size_t at = 0; at < s.bytes; at += 8) {
                uint64_t value;
                std::memcpy(&value, slot + s.slot_offset + at, 8);
                if (value != PatternFile::word(s.file_offset + at)) return false;
            }
        }
        return true;
    }

    // Tokens that use three groups of each place, two workers reading; false where the pager gave up.
    bool walk(pager::Pager& pager, size_t tokens, unsigned seed) {
        std::mt19937 random(seed);
        pager::GroupSlots& slots = *pager.slots();
        for (size_t token = 0; token < tokens; ++token) {
            for (uint32_t place = 0; place < kPlaces; ++place) {
                uint32_t chosen[3];
                chosen[0] = static_cast<uint32_t>(place * kGroupsOfPlace + random() % kGroupsOfPlace);
                chosen[1] = place * kGroupsOfPlace + (chosen[0] + 1) % kGroupsOfPlace;
                chosen[2] = place * kGroupsOfPlace + (chosen[0] + 4) % kGroupsOfPlace;
                if (!use(pager, chosen)) return false;
                const uint32_t next = (place + 1) % kPlaces;
                const auto guess = static_cast<uint32_t>(next * kGroupsOfPlace + random() % kGroupsOfPlace);
                (void)slots.hint(guess);
                if (random() % 3 == 0) slots.cancel(guess);
            }
            slots.end_token();
        }
        return true;
    }

    bool use(pager::Pager& pager, std::span<const uint32_t> chosen) {
        pager::GroupSlots& slots = *pager.slots();
        size_t used = 0;
        for (size_t done = 0; done < chosen.size();) {
            for (;;) {
                const uint32_t seen = slots.news();
                while (used < chosen.size() && slots.use(chosen[used])) ++used;
                if (used > done) break;
                if (pager.failed()) return false;
                slots.wait_for_news(seen);
            }
            std::atomic<bool> through{true};
            for (; done < used; ++done) {
                const auto look = [&](size_t worker) {
                    const std::byte* const slot = slots.acquire(worker, chosen[done]);
                    if (slot == nullptr)
                        through = false;
                    else
                        EXPECT_TRUE(is_right(slot, chosen[done])) << chosen[done];
                };
                if (done % 4 == 0) {
                    std::thread other(look, 1);
                    look(0);
                    other.join();
                } else {
                    look(0);
                }
                slots.release(chosen[done]);
            }
            if (!through) return false;
        }
        return true;
    }

    PatternFile pattern_{kGroups * kSlices * 2 * 64 * 1024};
    pager::File file_ = pager::File::open(pattern_.path(), pager::IoMode::kAuto);
    std::vector<pager::ImageRange> ranges_ = {{0, 0, 8 * kExtent}};
    pager::GroupLayout layout_;
    size_t granule_ = 0;
};

TEST_F(Groups, BytesAreRightFromTwoSlotsToAll) {
    WEIR_NEEDS_UFFD();
    const size_t least = pager::GroupSlots::least_frames(layout_, kExtent), all = pager::GroupSlots::all_frames(layout_, kExtent);
    for (const size_t frames : {least, frames_for(5), frames_for(20), all}) {
        auto pager = start(frames);
        ASSERT_TRUE(walk(*pager, 40, 7)) << pager->failure();
        const pager::PagerStats s = pager->stats();
        EXPECT_EQ(s.groups.uses, 40 * kPlaces * 3);
        EXPECT_LE(s.groups.held_frames, frames);
        EXPECT_EQ(s.groups.slots, std::min(kGroups, frames * kExtent / layout_.slots.extent_bytes));
        if (frames == all) {
            EXPECT_LE(s.reads, kGroups * kSlices);  // nothing twice
        }
    }
}

TEST_F(Groups, ASmallerBudgetGivesMemoryBackAndALargerOneTakesIt) {
    WEIR_NEEDS_UFFD();
    const size_t all = pager::GroupSlots::all_frames(layout_, kExtent);
    auto pager = start(all);
    ASSERT_TRUE(walk(*pager, 10, 1));
    std::mt19937 random(3);
    for (int change = 0; change < 30; ++change) {
        const size_t wanted = random() % (8 + all + 4);
        const size_t granted = pager->set_budget(wanted);
        EXPECT_EQ(pager->stats().budget_frames, granted);
        ASSERT_TRUE(walk(*pager, 3, static_cast<unsigned>(change))) << pager->failure();
        // Nothing is in use now; a hint may still be landing.
        const uint64_t until = pager::monotonic_ns() + 3'000'000'000;
        while (pager->stats().held_frames > granted && pager::monotonic_ns() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_LE(pager->stats().held_frames, granted) << "change " << change;
    }
}

TEST_F(Groups, ABudgetThatChangesWhileGroupsAreInUse) {
    WEIR_NEEDS_UFFD();
    const size_t all = pager::GroupSlots::all_frames(layout_, kExtent);
    auto pager = start(all);
    std::atomic<bool> over{false};
    std::thread changes([&] {
        std::mt19937 random(5);
        while (!over) {
            pager->set_budget(random() % (8 + all + 4));
            std::this_thread::sleep_for(std::chrono::microseconds(300));
        }
    });
    EXPECT_TRUE(walk(*pager, 60, 11)) << pager->failure();
    over = true;
    changes.join();
}

TEST_F(Groups, WhatPassesIsRetriedAndNoByteIsWrong) {
    WEIR_NEEDS_UFFD();
    for (uint64_t nth = 1; nth <= 40; nth += 3) {
        for (const ReadFault fault : {ReadFault::kShort, ReadFault::kEio, ReadFault::kEioDirect, ReadFault::kEagain,
                                      ReadFault::kNoRoom}) {
            auto pager = start(frames_for(5), std::make_unique<FaultyQueue>(fault, Nth{nth, false}, file_.fd()));
            ASSERT_TRUE(walk(*pager, 3, 2)) << static_cast<int>(fault) << " at " << nth << ": " << pager->failure();
        }
    }
    auto pager = start(frames_for(5), std::make_unique<FaultyQueue>(ReadFault::kReorder, Nth{1, true}));
    EXPECT_TRUE(walk(*pager, 10, 2)) << pager->failure();
}

TEST_F(Groups, WhatStaysEndsInOneText) {
    WEIR_NEEDS_UFFD();
    for (uint64_t nth = 1; nth <= 60; nth += 4) {
        for (const ReadFault fault : {ReadFault::kEio, ReadFault::kEnd}) {
            auto pager = start(frames_for(4), std::make_unique<FaultyQueue>(fault, Nth{nth, true}));
            EXPECT_FALSE(walk(*pager, 20, 2));
            EXPECT_NE(pager->failure().find(pattern_.path()), std::string::npos) << pager->failure();
        }
    }
}

// What a hint has begun to read is not read again when it is used, and its bytes count as absent once.
TEST_F(Groups, AHintThatComesTrueIsReadOnce) {
    WEIR_NEEDS_UFFD();
    auto pager = start(frames_for(6));
    pager::GroupSlots& slots = *pager->slots();
    for (uint32_t seen = slots.news(); !slots.hint(12); seen = slots.news()) slots.wait_for_news(seen);
    const uint32_t chosen[] = {12};
    ASSERT_TRUE(use(*pager, chosen));
    ASSERT_TRUE(use(*pager, chosen));
    const pager::PagerStats s = pager->stats();
    EXPECT_EQ(s.reads, kSlices);
    EXPECT_EQ(s.groups.foreseen, 1u);
    EXPECT_EQ(s.groups.here, 1u);
    EXPECT_EQ(s.groups.absent_bytes, s.bytes_read);
}

}  // namespace
}  // namespace weir::test
