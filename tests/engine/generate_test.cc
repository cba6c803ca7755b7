#include "runtime/engine/generate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/plain_vocabulary.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

constexpr TokenId kNone = -1;

class Generate : public ::testing::Test {
  protected:
    GenerateResult run(const EngineOptions& engine_options, const GenerateOptions& options,
                       const GenerateHooks& hooks = {}, TokenId end = kNone) {
        Engine engine(file.path(), engine_options);
        return generate(*engine.forward, *engine.cache, *engine.store, PlainVocabulary(end), prompt, options, hooks);
    }
    static GenerateOptions greedy(size_t n) {
        GenerateOptions options;
        options.sampler.temperature = 0;
        options.max_tokens = n;
        return options;
    }

    const TinyModelFile file{TinyShape{}};
    const std::vector<TokenId> prompt{1, 260, 265, 270, 280, 290, 261, 262, 263};
};

TEST_F(Generate, StopsAtTheLimit) {
    const auto result = run({}, greedy(7));
    EXPECT_EQ(result.ids.size(), 7u);
    EXPECT_EQ(result.finish, FinishReason::kLimit);
    EXPECT_EQ(result.logits_hash.size(), 16u);
    EXPECT_GT(result.mean_entropy, 0);
    ASSERT_TRUE(result.steady.has_value());
    EXPECT_EQ(result.steady->tokens, 5u);
    EXPECT_FALSE(run({}, greedy(2)).steady.has_value());
    EXPECT_TRUE(run({}, greedy(0)).ids.empty());
}

TEST_F(Generate, SameAnswerAndHashHoweverItIsComputed) {
    GenerateOptions options = greedy(12);
    for (const float temperature : {0.0f, 1.0f}) {
        options.sampler.temperature = temperature;
        options.sampler.seed = 5;
        const auto expected = run({}, options);
        for (const size_t batch : {1, 4, 9}) {
            for (const size_t threads : {1, 2}) {
                EngineOptions engine_options;
                engine_options.max_batch = batch;
                engine_options.logit_rows = 1;
                engine_options.threads = threads;
                const auto result = run(engine_options, options);
                EXPECT_EQ(result.ids, expected.ids);
                EXPECT_EQ(result.logits_hash, expected.logits_hash);
            }
        }
    }
    EngineOptions other;
    other.kv_type = KvType::kF16;
    EXPECT_NE(run(other, greedy(12)).logits_hash, run({}, greedy(12)).logits_hash);
}

TEST_F(Generate, EndsAtAnEndToken) {
    const auto free = run({}, greedy(10));
    const auto ended = run({}, greedy(10), {}, free.ids[4]);
    EXPECT_EQ(ended.finish, FinishReason::kEnd);
    const auto first = std::find(free.ids.begin(), free.ids.end(), free.ids[4]);
    EXPECT_EQ(ended.ids, std::vector<TokenId>(free.ids.begin(), first + 1));
    GenerateOptions ignoring = greedy(10);
    ignoring.ignore_end = true;
    EXPECT_EQ(run({}, ignoring, {}, free.ids[4]).ids, free.ids);
}

TEST_F(Generate, EndsWithTheContext) {
    EngineOptions small;
    small.n_ctx = 13;
    const auto result = run(small, greedy(100));
    EXPECT_EQ(result.finish, FinishReason::kContext);
    // Four tokens find a place behind the nine of the prompt, and a fifth is still drawn.
    EXPECT_EQ(result.ids.size(), 5u);
    EXPECT_EQ(result.ids, run({}, greedy(5)).ids);
    small.n_ctx = 8;
    EXPECT_THROW(run(small, greedy(1)), Error);
}

TEST_F(Generate, StopsWhenAskedTo) {
    std::atomic<bool> stop{false};
    GenerateHooks hooks;
    hooks.stop = &stop;
    size_t n = 0;
    hooks.on_token = [&](TokenId) {
        if (++n == 3) stop = true;
        return true;
    };
    const auto result = run({}, greedy(50), hooks);
    EXPECT_EQ(result.finish, FinishReason::kInterrupted);
    EXPECT_EQ(result.ids.size(), 3u);
    // Before the first token, too.
    const auto none = run({}, greedy(50), hooks);
    EXPECT_EQ(none.finish, FinishReason::kInterrupted);
    EXPECT_TRUE(none.ids.empty());

    GenerateHooks refusing;
    refusing.on_token = [](TokenId) { return false; };
    EXPECT_EQ(run({}, greedy(50), refusing).ids.size(), 1u);
}

TEST_F(Generate, TellsHowThePromptGetsOn) {
    EngineOptions engine_options;
    engine_options.max_batch = engine_options.logit_rows = 4;
    std::vector<size_t> done;
    GenerateHooks hooks;
    hooks.on_prompt = [&](size_t n, size_t total) {
        EXPECT_EQ(total, 9u);
        done.push_back(n);
    };
    run(engine_options, greedy(1), hooks);
    EXPECT_EQ(done, (std::vector<size_t>{4, 8, 9}));
}

TEST_F(Generate, NeedsAPrompt) {
    Engine engine(file.path(), {});
    EXPECT_THROW(generate(*engine.forward, *engine.cache, *engine.store, PlainVocabulary(kNone), {}, greedy(1), {}), Error);
}

}  // namespace
}  // namespace weir::test
