#include "runtime/engine/ring_length.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(RingLength, IsHalvedWhileNobodyWaits) {
    RingLength ring(8, 28);
    EXPECT_EQ(ring.extents(), 28u);
    EXPECT_FALSE(ring.took(0));
    EXPECT_FALSE(ring.took(0));
    EXPECT_TRUE(ring.took(0));
    EXPECT_EQ(ring.extents(), 14u);
    for (int i = 0; i < 3; ++i) ring.took(0.001);
    EXPECT_EQ(ring.extents(), 8u);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(ring.took(0));
}

TEST(RingLength, StaysLongWhereReadsBound) {
    RingLength ring(8, 28);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(ring.took(0.4));
    EXPECT_EQ(ring.extents(), 28u);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(ring.took(i % 3 == 2 ? 0.02 : 0));  // now and then a little
    EXPECT_EQ(ring.extents(), 28u);
}

TEST(RingLength, TriesLessOftenWhatWasTooShort) {
    RingLength ring(8, 16);
    int trials = 0;
    for (int pass = 0; pass < 1000; ++pass) {
        const bool changed = ring.took(ring.extents() < 16 ? 0.2 : 0);
        trials += changed && ring.extents() < 16;
    }
    EXPECT_EQ(ring.extents(), 16u);
    EXPECT_GE(trials, 5);
    EXPECT_LE(trials, 10);
}

TEST(RingLength, HasNothingToChooseWhereThereIsNoRoom) {
    RingLength ring(8, 8);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(ring.took(i % 2 == 0 ? 0.5 : 0));
    EXPECT_EQ(ring.extents(), 8u);
}

}  // namespace
}  // namespace weir
