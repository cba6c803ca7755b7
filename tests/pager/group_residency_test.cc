// The policy for groups: what it promises whatever is asked of it, and the order in which groups leave.
#include "pager/group_residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace weir::pager {
namespace {

using Answer = GroupResidency::Answer;

std::vector<Group> equal_groups(size_t n, uint32_t frames = 1, uint32_t places = 1) {
    std::vector<Group> groups;
    for (size_t i = 0; i < n; ++i) groups.push_back({frames, static_cast<uint32_t>(i * places / n)});
    return groups;
}

std::vector<uint32_t> list(std::span<const uint32_t> s) { return {s.begin(), s.end()}; }

// Touches, reads and releases.
void use(GroupResidency* r, uint32_t group) {
    const Answer answer = r->touch(group);
    ASSERT_NE(answer, Answer::kNoRoom);
    if (answer == Answer::kRead) r->arrived(group);
    r->release(group);
}

TEST(GroupResidency, ReadsOnceAndKeeps) {
    GroupResidency r(equal_groups(4), 2);
    EXPECT_EQ(r.touch(0), Answer::kRead);
    EXPECT_TRUE(r.reading(0));
    EXPECT_EQ(r.touch(0), Answer::kHere);  // on its way
    r.arrived(0);
    r.release(0);
    r.release(0);
    EXPECT_EQ(r.touch(0), Answer::kHere);
    EXPECT_EQ(r.used(), 1u);
}

TEST(GroupResidency, WhatIsTouchedMoreOftenStays) {
    GroupResidency r(equal_groups(4), 2);
    for (int i = 0; i < 3; ++i) use(&r, 0);
    use(&r, 1);
    EXPECT_EQ(r.touch(2), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{1});
}

TEST(GroupResidency, TouchesAge) {
    GroupResidency r(equal_groups(4), 2);
    for (int i = 0; i < 5; ++i) use(&r, 0);
    for (int token = 0; token < 500; ++token) r.end_token();
    for (int i = 0; i < 2; ++i) use(&r, 1);
    EXPECT_EQ(r.touch(2), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{0});
}

TEST(GroupResidency, AgeingNeverEnds) {  // the scale is set back many times over
    GroupResidency r(equal_groups(4), 2);
    for (int token = 0; token < 200'000; ++token) {
        use(&r, 0);
        use(&r, token % 2 == 0 ? 1 : 2);
        r.end_token();
        ASSERT_TRUE(r.resident(0));
    }
}

// Every other token repeats what the one before used, all groups being equally frequent.
TEST(GroupResidency, WhereTokensRepeatWhatWasJustUsedStays) {
    constexpr uint32_t kN = 100;
    GroupResidency r(equal_groups(kN), 20);
    std::mt19937 random(1);
    uint32_t group = 0;
    size_t repeats = 0, lost = 0;
    for (int token = 0; token < 2000; ++token) {
        if (token % 2 == 0)
            group = static_cast<uint32_t>(random() % kN);
        else if (token > 200) {
            ++repeats;
            // Another group comes first: what was just used must not make room for it.
            use(&r, static_cast<uint32_t>(random() % kN));
            lost += !r.resident(group);
        }
        use(&r, group);
        r.end_token();
    }
    EXPECT_LE(lost * 50, repeats);
}

TEST(GroupResidency, OfEquallyLikelyGroupsTheFarthestInTheWalkLeaves) {
    GroupResidency r(equal_groups(4, 1, 4), 3);
    for (const uint32_t g : {0, 1, 2}) use(&r, g);
    EXPECT_EQ(r.touch(3), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{2});  // the walk has just passed it
}

TEST(GroupResidency, ACycleIsReadAsLittleAsTheOptimumReadsIt) {
    constexpr size_t kN = 40, kCapacity = 30, kTokens = 50;
    GroupResidency r(equal_groups(kN, 1, kN), kCapacity);
    size_t reads = 0;
    for (size_t token = 0; token < kTokens; ++token) {
        for (uint32_t g = 0; g < kN; ++g) {
            const Answer answer = r.touch(g);
            if (answer == Answer::kRead) {
                r.arrived(g);
                reads += token > 0;
            }
            r.release(g);
        }
        r.end_token();
    }
    EXPECT_LE(reads, (kTokens - 1) * (kN - kCapacity + 1));
}

TEST(GroupResidency, AWrongHintLeavesFirst) {
    GroupResidency r(equal_groups(6), 3);
    use(&r, 0);
    use(&r, 1);
    EXPECT_EQ(r.hint(2), Answer::kRead);
    r.arrived(2);
    r.cancel(2);
    EXPECT_EQ(r.touch(3), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{2});
}

TEST(GroupResidency, AWrongHintLeavesOnceItHasArrived) {
    GroupResidency r(equal_groups(6), 3);
    use(&r, 0);
    use(&r, 1);
    EXPECT_EQ(r.hint(2), Answer::kRead);
    r.cancel(2);  // the read goes on
    EXPECT_EQ(r.touch(3), Answer::kRead);
    EXPECT_NE(list(r.evicted()), std::vector<uint32_t>{2});
    r.arrived(2);
    EXPECT_EQ(r.touch(4), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{2});
}

TEST(GroupResidency, AWrongHintThatIsUsedAfterAllIsKept) {
    GroupResidency r(equal_groups(6), 2);
    EXPECT_EQ(r.hint(2), Answer::kRead);
    r.arrived(2);
    r.cancel(2);
    for (int i = 0; i < 3; ++i) use(&r, 2);
    use(&r, 0);
    EXPECT_EQ(r.touch(1), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{0});
}

TEST(GroupResidency, AHintForWhatIsHereCostsItNothing) {
    GroupResidency r(equal_groups(6), 2);
    for (int i = 0; i < 3; ++i) use(&r, 0);
    use(&r, 1);
    EXPECT_EQ(r.hint(0), Answer::kHere);
    r.cancel(0);
    EXPECT_EQ(r.touch(2), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{1});
}

TEST(GroupResidency, AnOpenHintIsTheLastToGiveWay) {
    GroupResidency r(equal_groups(6), 2);
    for (int i = 0; i < 3; ++i) use(&r, 0);
    EXPECT_EQ(r.hint(1), Answer::kRead);
    r.arrived(1);
    EXPECT_EQ(r.touch(2), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{0});
    EXPECT_EQ(r.hint(3), Answer::kNoRoom);  // hints do not push each other out
    EXPECT_TRUE(r.evicted().empty());
    EXPECT_EQ(r.touch(3), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{1});
    EXPECT_EQ(r.touch(4), Answer::kNoRoom);  // 2 and 3 are being read
    EXPECT_FALSE(r.resident(4));
}

TEST(GroupResidency, AHintThatNobodyConfirmsIsWrongAfterAToken) {
    GroupResidency r(equal_groups(6), 2);
    use(&r, 0);
    EXPECT_EQ(r.hint(1), Answer::kRead);
    r.arrived(1);
    r.end_token();
    EXPECT_EQ(r.hint(2), Answer::kRead);  // given in the token before, which may still use it in this one
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{0});
    r.arrived(2);
    r.end_token();
    EXPECT_EQ(r.touch(3), Answer::kRead);
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{1});
}

TEST(GroupResidency, AnAbandonedReadGivesItsFramesBack) {
    GroupResidency r(equal_groups(6, 2), 4);
    EXPECT_EQ(r.hint(0), Answer::kRead);
    r.cancel(0);
    EXPECT_EQ(r.used(), 2u);
    r.abandon(0);
    EXPECT_EQ(r.used(), 0u);
    EXPECT_FALSE(r.resident(0));
    EXPECT_EQ(r.touch(0), Answer::kRead);
}

TEST(GroupResidency, ShrinksAroundWhatIsInUse) {
    GroupResidency r(equal_groups(6), 4);
    for (const uint32_t g : {0, 1, 2}) use(&r, g);
    EXPECT_EQ(r.touch(3), Answer::kRead);
    r.set_capacity(1);
    EXPECT_EQ(r.evicted().size(), 3u);
    EXPECT_EQ(r.used(), 1u);
    EXPECT_TRUE(r.resident(3));
    EXPECT_EQ(r.touch(0), Answer::kNoRoom);
    r.set_capacity(2);
    EXPECT_EQ(r.touch(0), Answer::kRead);
    r.set_capacity(1);
    EXPECT_EQ(r.used(), 2u);  // both are being read
    r.arrived(0);
    r.release(0);
    r.trim();
    EXPECT_EQ(list(r.evicted()), std::vector<uint32_t>{0});
    EXPECT_EQ(r.used(), 1u);
}

// Random calls against what the header promises; two that get the same calls give the same answers.
TEST(GroupResidency, KeepsItsPromisesWhateverIsAsked) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 30; ++round) {
        const size_t n = 2 + random() % 60;
        std::vector<Group> groups;
        for (size_t i = 0; i < n; ++i) groups.push_back({1 + static_cast<uint32_t>(random() % 4), static_cast<uint32_t>(random() % 5)});
        size_t capacity = 4 + random() % (2 * n);
        GroupResidency r(groups, capacity), twin(groups, capacity);
        std::vector<uint32_t> holds(n, 0);
        std::vector<bool> here(n, false), reading(n, false), wrong(n, false), open(n, false), for_hint(n, false);
        const auto idle = [&](uint32_t g) { return here[g] && !reading[g] && holds[g] == 0; };
        bool shrunk = false;
        for (int step = 0; step < 3000; ++step) {
            const auto g = static_cast<uint32_t>(random() % n);
            const unsigned what = random() % 16;
            if (what < 8) {
                const bool touched = what < 5;
                const bool was_here = here[g];
                const bool some_wrong = std::any_of(groups.begin(), groups.end(), [&, i = 0u](const Group&) mutable {
                    const uint32_t j = i++;
                    return wrong[j] && idle(j);
                });
                const Answer answer = touched ? r.touch(g) : r.hint(g);
                ASSERT_EQ(answer, touched ? twin.touch(g) : twin.hint(g));
                ASSERT_EQ(list(r.evicted()), list(twin.evicted()));
                ASSERT_EQ(answer == Answer::kHere, was_here);
                if (some_wrong && !r.evicted().empty()) {
                    ASSERT_TRUE(wrong[r.evicted()[0]]);
                }
                for (const uint32_t v : r.evicted()) {
                    ASSERT_TRUE(idle(v));
                    ASSERT_TRUE(touched || !open[v]);
                    ASSERT_NE(v, g);
                    here[v] = wrong[v] = open[v] = for_hint[v] = false;
                }
                if (answer == Answer::kNoRoom) {
                    ASSERT_TRUE(r.evicted().empty());
                    continue;
                }
                if (answer == Answer::kRead) here[g] = reading[g] = true;
                if (touched) {
                    ++holds[g];
                    wrong[g] = open[g] = for_hint[g] = false;
                } else {
                    wrong[g] = false;
                    open[g] = true;
                    for_hint[g] = for_hint[g] || answer == Answer::kRead;
                }
            } else if (what < 11) {
                if (holds[g] == 0) continue;
                --holds[g];
                r.release(g);
                twin.release(g);
            } else if (what < 13) {
                if (!reading[g]) continue;
                reading[g] = false;
                if (what == 12 && holds[g] == 0 && random() % 2 == 0) {
                    here[g] = wrong[g] = open[g] = for_hint[g] = false;
                    r.abandon(g);
                    twin.abandon(g);
                } else {
                    r.arrived(g);
                    twin.arrived(g);
                }
            } else if (what == 13) {
                wrong[g] = wrong[g] || (open[g] && for_hint[g]);
                open[g] = false;
                r.cancel(g);
                twin.cancel(g);
            } else if (what == 14 && random() % 8 == 0) {
                capacity = r.least_capacity() + random() % (2 * n);
                r.set_capacity(capacity);
                twin.set_capacity(capacity);
                for (const uint32_t v : r.evicted()) {
                    ASSERT_TRUE(idle(v));
                    here[v] = wrong[v] = open[v] = for_hint[v] = false;
                }
                shrunk = true;
            }
            size_t used = 0;
            for (uint32_t i = 0; i < n; ++i) {
                ASSERT_EQ(r.resident(i), here[i]);
                ASSERT_EQ(r.reading(i), reading[i]);
                used += here[i] ? groups[i].frames : 0;
            }
            ASSERT_EQ(r.used(), used);
            if (used <= capacity) shrunk = false;
            ASSERT_TRUE(used <= capacity || shrunk);
        }
    }
}

}  // namespace
}  // namespace weir::pager
