// Plans of answers and of passes, what is remembered of prompts, and what of a KV cache a prompt may take over.
#include "runtime/engine/auto_precision.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

constexpr TokenSignal kUnsure{0, 9, 0.01};

std::vector<sched::RatedPlan> ladder(size_t n_layers) {
    std::vector<sched::RatedPlan> made;
    for (const int level : {8, 6, 4, 3, 2}) made.push_back({sched::uniform_plan(n_layers, level), static_cast<uint64_t>(1000 * level), 8.0 - level});
    return made;
}

TEST(AutoPrecision, APromptOfAKindBeginsWhereTheLastOneEnded) {
    AutoPrecision precision(ladder(2), sched::PlanMemory());
    const std::vector<TokenId> prompt = {3, 4, 5, 6, 7}, other = {100, 90, 80, 70, 60, 50};
    AutoPrecision::Place first = precision.begin(prompt);
    EXPECT_FALSE(first.remembered);
    EXPECT_EQ(first.rung(), 2u);
    precision.end(first);  // it has said nothing
    EXPECT_EQ(precision.changed_memory(), std::nullopt);
    for (int i = 0; i < 5; ++i) precision.next(&first, 7, kUnsure);
    EXPECT_EQ(first.rung(), AutoPrecision::kFinest);
    precision.end(first);
    const std::optional<std::string> text = precision.changed_memory();
    ASSERT_TRUE(text);
    EXPECT_EQ(precision.changed_memory(), std::nullopt);

    AutoPrecision later(ladder(2), sched::PlanMemory::parse(*text, "memory"));
    const AutoPrecision::Place again = later.begin(prompt);
    EXPECT_TRUE(again.remembered);
    EXPECT_EQ(again.rung(), AutoPrecision::kFinest);
    EXPECT_FALSE(later.begin(other).remembered);
    EXPECT_EQ(later.report().remembered, 1u);
    EXPECT_EQ(precision.report().switches, 2u);
}

TEST(AutoPrecision, ByTokenEachTokenHasItsOwnPlan) {
    AutoPrecision precision(sched::TokenPlans{"m", ladder(2), 1e-3, {{7, 1000}, {8, 1e-6}}});
    EXPECT_EQ(precision.ladder().size(), 5u);
    AutoPrecision::Place place = precision.begin(std::vector<TokenId>{3, 4, 5});
    for (const TokenId id : {7, 7, 8, 7}) {
        const size_t rung = precision.next(&place, id, kUnsure);
        EXPECT_EQ(rung, id == 7 ? AutoPrecision::kFinest : 4u);
        EXPECT_EQ(place.rung(), rung);
    }
    EXPECT_EQ(precision.report().switches, 3u);  // from the middle, and twice
    precision.end(place);
    EXPECT_EQ(precision.changed_memory(), std::nullopt);
}

TEST(AutoPrecision, CountsPlansOfPassesAndTokens) {
    TinyShape shape;
    const TinyNativeFile file(shape);
    AutoPrecision precision(ladder(shape.n_layers), sched::PlanMemory());
    EngineOptions options;
    options.plans = precision.plans();
    const Engine engine(file.path(), options);
    precision.use(AutoPrecision::kFinest, 0, engine.store.get());
    precision.use(3, 2, engine.store.get());
    EXPECT_EQ(engine.store->stats().plan.uniform(), 3);
    precision.use(3, 1, engine.store.get());
    precision.use(0, 1, engine.store.get());
    const AutoReport& report = precision.report();
    EXPECT_EQ(report.plan_changes, 2u);
    EXPECT_EQ(report.rungs[3].tokens, 3u);
    EXPECT_EQ(report.mean_bytes(), (3 * 3000 + 8000) / 4.0);
}

TEST(CachedTokens, PromptsTakeOverWhatWasComputedAsPromptsAre) {
    CachedTokens cached;
    const std::vector<TokenId> prompt = {1, 2, 3}, answer = {4, 5}, whole = {1, 2, 3, 4, 5, 6};
    cached.add(prompt, true);
    EXPECT_EQ(cached.common(whole), 3u);
    EXPECT_EQ(cached.common(std::vector<TokenId>{1, 2}), 2u);
    EXPECT_EQ(cached.common(std::vector<TokenId>{1, 7, 3}), 1u);
    cached.add(std::span(answer).first(1), true);
    EXPECT_EQ(cached.common(whole), 4u);
    cached.add(std::span(answer).last(1), false);
    EXPECT_EQ(cached.size(), 5u);
    EXPECT_EQ(cached.common(whole), 4u);
    // What was computed on top of a coarser token is not what a prompt would have, whatever its own pass had.
    cached.add(std::vector<TokenId>{6}, true);
    EXPECT_EQ(cached.common(whole), 4u);
    cached.cut(4);
    cached.add(answer, true);
    EXPECT_EQ(cached.common(std::vector<TokenId>{1, 2, 3, 4, 4, 5}), 6u);
}

}  // namespace
}  // namespace weir::test
