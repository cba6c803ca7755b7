// The plan's figures: the run's own arithmetic, and time as the larger of computing and reading.
#include <gtest/gtest.h>

#include "runtime/engine/compute_probe.h"
#include "runtime/engine/paging_shape.h"
#include "runtime/engine/plan.h"
#include "runtime/error.h"

namespace weir {
namespace {

constexpr uint64_t kMiB = 1 << 20;

PlanInput input(uint64_t ram) {
    PlanInput in;
    in.budget.mode = PagingMode::kUffd;
    in.budget.ram = ram;
    in.budget.limits.total = in.budget.limits.available = 8000 * kMiB;
    in.budget.base = 20 * kMiB;
    in.budget.kv_cache = 30 * kMiB;
    in.budget.activations = 10 * kMiB;
    in.budget.weights = 900 * kMiB;
    in.budget.threads = 2;
    in.image_bytes = 900 * kMiB;
    in.longest_row_bytes = 4 << 10;
    in.granule = 4 << 10;
    in.device_bytes_per_s = 1000.0 * kMiB;
    in.compute_s = 0.1;
    return in;
}

TEST(Plan, SpendsTheBudgetAsARunDoes) {
    const PlanInput in = input(500 * kMiB);
    const Plan p = make_plan(in);
    const Budget b = divide_memory(in.budget);
    EXPECT_EQ(p.budget.frames, b.frames);
    EXPECT_EQ(p.resident_bytes + p.streamed_bytes, in.image_bytes);
    EXPECT_LE(p.resident_bytes + p.ring_bytes, b.frames);
    EXPECT_GT(p.resident_bytes + p.ring_bytes + p.extent_bytes, b.frames);
}

TEST(Plan, TimeIsTheLargerOfComputingAndReading) {
    PlanInput in = input(500 * kMiB);
    Plan p = make_plan(in);
    EXPECT_EQ(p.bound, Bound::kDevice);
    EXPECT_NEAR(p.read_s, static_cast<double>(p.streamed_bytes) / in.device_bytes_per_s, 1e-9);
    EXPECT_NEAR(p.tokens_per_s, 1 / p.read_s, 1e-9);
    EXPECT_NEAR(p.first_token_s, 0.9, 1e-9);
    in.compute_s = 5;
    p = make_plan(in);
    EXPECT_EQ(p.bound, Bound::kCompute);
    EXPECT_NEAR(p.tokens_per_s, 0.2, 1e-9);
    EXPECT_NEAR(p.first_token_s, 5, 1e-9);
}

TEST(Plan, WhatGoesOnTogetherIsSlower) {
    EXPECT_DOUBLE_EQ(together_s(1, 4, {}), 4);
    EXPECT_DOUBLE_EQ(together_s(4, 1, {}), 4);
    EXPECT_DOUBLE_EQ(together_s(0, 3, {0.5, 0.5}), 3);
    EXPECT_DOUBLE_EQ(together_s(3, 0, {0.5, 0.5}), 3);
    // Computing takes 2 s at half its speed, in which 1.5 s worth of reading is done; 2.5 s of it are left.
    EXPECT_DOUBLE_EQ(together_s(1, 4, {0.5, 0.75}), 4.5);
    EXPECT_DOUBLE_EQ(together_s(1, 1, {0.2, 0.2}), 2);  // one after the other is faster than that
}

TEST(Plan, MoreMemoryIsNeverSlowerAndAtTheEndNothingIsRead) {
    PlanInput in = input(500 * kMiB);
    in.together = {0.6, 0.7};
    const uint64_t enough = ram_for_all(in);
    EXPECT_GT(enough, in.image_bytes);
    EXPECT_LT(enough, 1000 * kMiB);
    double before = 0;
    for (uint64_t ram = 120 * kMiB; ram <= enough; ram += 40 * kMiB) {
        const auto p = plan_at(in, ram);
        ASSERT_TRUE(p);
        EXPECT_GE(p->tokens_per_s, before);
        before = p->tokens_per_s;
    }
    EXPECT_EQ(plan_at(in, enough)->streamed_bytes, 0u);
    EXPECT_GT(plan_at(in, enough - 8 * kMiB)->streamed_bytes, 0u);
    EXPECT_FALSE(plan_at(in, 50 * kMiB));
    EXPECT_THROW(make_plan(input(50 * kMiB)), UsageError);
}

TEST(Plan, FewerBitsReadLess) {
    const PlanInput in = input(500 * kMiB);
    const Plan half = make_plan(with_weights(in, 0.5, 0.06));
    EXPECT_EQ(half.streamed_bytes, 450 * kMiB - half.resident_bytes);
    EXPECT_GT(half.tokens_per_s, make_plan(in).tokens_per_s);
}

TEST(Plan, WeightsOfATierAreTheSmallerPart) {
    PlanInput in = input(500 * kMiB);
    in.budget.weights_ram = 125 * kMiB;
    const Plan p = make_plan(in);
    EXPECT_LE(p.resident_bytes + p.ring_bytes, 125 * kMiB);
    EXPECT_LT(p.tokens_per_s, make_plan(input(500 * kMiB)).tokens_per_s);
}

// 16 layers of 64 experts of 1 MiB, of which a token uses 8.
PlanInput input_with_experts(uint64_t ram, double skew) {
    PlanInput in = input(ram);
    in.image_bytes = 100 * kMiB;
    in.device_bytes_per_s = 200.0 * kMiB;  // reads bound
    in.experts.experts = 64;
    in.experts.used = 8;
    in.experts.skew = skew;
    pager::Layout& slots = in.experts.groups.slots;
    slots.extent_bytes = kMiB;
    slots.first_segment.push_back(0);
    for (uint32_t g = 0; g < 16 * 64; ++g) {
        slots.segments.push_back({g * kMiB, 0, kMiB});
        slots.first_segment.push_back(g + 1);
        in.experts.groups.places.push_back(g / 64);
    }
    return in;
}

TEST(Plan, OfExpertsThoseAreReadThatAreNotExpectedToBeHere) {
    const Plan even = make_plan(input_with_experts(700 * kMiB, 0));
    const auto slots = static_cast<double>(even.expert_bytes / kMiB);
    EXPECT_GT(slots, 480);
    EXPECT_LT(slots, 530);
    EXPECT_NEAR(even.hit_rate, slots / 1024, 0.03);  // whatever the policy: nothing tells one expert from another
    EXPECT_NEAR(static_cast<double>(even.streamed_bytes) / kMiB, 128 * (1 - even.hit_rate), 1);
    const Plan skewed = make_plan(input_with_experts(700 * kMiB, 1.0));
    EXPECT_EQ(skewed.expert_bytes, even.expert_bytes);
    EXPECT_GT(skewed.hit_rate, even.hit_rate + 0.2);
    EXPECT_LT(skewed.streamed_bytes, even.streamed_bytes);
    EXPECT_GT(skewed.tokens_per_s, even.tokens_per_s);

    const uint64_t enough = ram_for_all(input_with_experts(700 * kMiB, 0));
    EXPECT_EQ(make_plan(input_with_experts(enough, 0)).streamed_bytes, 0u);
    EXPECT_NEAR(static_cast<double>(enough) / kMiB, 1024 + 100 + 75, 20);
}

TEST(PagingShape, LargerGranulesAndLongRows) {
    EXPECT_THROW(shape_paging(900 * kMiB, 4 << 10, 100 << 10, 2, 64 << 10), UsageError);
    const PagingShape shape = shape_paging(900 * kMiB, 4 << 10, 10 * kMiB, 2, 64 << 10);
    EXPECT_GE(shape.extent_bytes, size_t{64} << 10);
    EXPECT_EQ(shape.extent_bytes % (64 << 10), 0u);
    EXPECT_EQ(shape.n_extents, (900 * kMiB + shape.extent_bytes - 1) / shape.extent_bytes);
    EXPECT_EQ(shape.holding.of_one(), 2u);
    EXPECT_GT(shape_paging(900 * kMiB, 8 * kMiB, 100 * kMiB, 2, 4 << 10).holding.each, 4u);
}

TEST(ComputeProbe, MeasuresEveryPart) {
    const kernels::KernelSet* const set = kernels::select_kernels(nullptr);
    Team team(2);
    std::vector<ComputePart> parts = {{kernels::Type::kQ4_0, kernels::Activation::kInt8, 256, 1, 1, 0},
                                      {kernels::Type::kQ6_K, kernels::Activation::kFine, 512, 1, 1, 0},
                                      {kernels::Type::kF32, kernels::Activation::kF32, 100, 1, 1, 0}};
    for (const kernels::Level level : kernels::kLevels) {
        parts.push_back({kernels::Type::kF32, kernels::Activation::kInt8, 288, 1, 1, 0});
        parts.back().level = static_cast<int>(level);
    }
    EXPECT_GT(probe_compute(*set, team, {0.01, 1 << 20, 4 << 20}, parts), 0);
    for (const ComputePart& part : parts) EXPECT_GT(part.bytes_per_s, 0);
    EXPECT_EQ(probe_memory(1000), 1000u);
}

}  // namespace
}  // namespace weir
