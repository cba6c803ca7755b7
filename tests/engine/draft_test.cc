// Drafts change how fast an answer comes and no bit of it: whoever drafts, however wrong.
#include "runtime/engine/draft.h"

#include <gtest/gtest.h>

#include "runtime/engine/generate.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"
#include "tests/engine/plain_vocabulary.h"

namespace weir::test {
namespace {

// ---- how long ----

TEST(DraftLength, ExpectsWhatIsRightInARow) {
    EXPECT_DOUBLE_EQ(expected_tokens(0.5, 0), 1);
    EXPECT_DOUBLE_EQ(expected_tokens(0.5, 3), 1.875);
    EXPECT_DOUBLE_EQ(expected_tokens(1, 7), 8);
    EXPECT_DOUBLE_EQ(expected_tokens(0, 7), 1);
}

TEST(DraftLength, APassCostsWhatPassesOfItsRowsCost) {
    PassCost cost;
    EXPECT_FALSE(cost.known());
    for (int i = 0; i < 40; ++i) cost.took(5, 0.5);
    EXPECT_NEAR(cost.seconds(5), 0.5, 1e-9);
    EXPECT_GT(cost.seconds(9), 0.5);  // nothing is known of other sizes: rows cost something
    for (int i = 0; i < 40; ++i) cost.took(1 + static_cast<size_t>(i % 9), 0.3 + 0.02 * (i % 9));
    EXPECT_NEAR(cost.seconds(1), 0.3, 0.03);
    EXPECT_NEAR(cost.seconds(9), 0.46, 0.03);
    for (int i = 0; i < 100; ++i) cost.took(3, 2.0);  // and what is now counts, not what was
    EXPECT_NEAR(cost.seconds(3), 2.0, 0.1);
    for (int i = 0; i < 100; ++i) cost.took(1 + static_cast<size_t>(i % 9), 1.0 - 0.1 * (i % 9));  // noise that falls
    EXPECT_GE(cost.seconds(1), cost.seconds(9) - 1e-9);
    EXPECT_GT(cost.seconds(16), 0);
}

DraftRecord record_of(double acceptance, double seconds) {
    DraftRecord record;
    for (int i = 0; i < 400; ++i) {
        record.took(1, seconds);
        record.judged(100, static_cast<size_t>(100 * acceptance));
    }
    return record;
}

TEST(DraftLength, MostTokensASecond) {
    PassCost flat;  // a pass takes what its reads take
    for (int i = 0; i < 60; ++i) flat.took(1 + static_cast<size_t>(i % 9), 1.0);
    EXPECT_EQ(choose_draft(record_of(0, 0.1), flat, 8).tokens, 0u);
    EXPECT_EQ(choose_draft(record_of(1, 0.1), flat, 8).tokens, 8u);
    EXPECT_EQ(choose_draft(record_of(0.7, 0), flat, 8).tokens, 8u);
    EXPECT_EQ(choose_draft(record_of(0.7, 1.0), flat, 8).tokens, 0u);  // no cheaper than the pass itself
    // In between it is what a look at every length finds.
    for (const double acceptance : {0.3, 0.6, 0.8, 0.9}) {
        for (const double seconds : {0.02, 0.1, 0.3}) {
            const DraftRecord record = record_of(acceptance, seconds);
            const DraftChoice choice = choose_draft(record, flat, 16);
            for (size_t k = 0; k <= 16; ++k) {
                const double pass_s = static_cast<double>(k) * record.seconds_per_token() + flat.seconds(k + 1);
                EXPECT_LE(expected_tokens(record.acceptance(), k) / pass_s, choice.tokens_per_s + 1e-9);
            }
        }
    }
    EXPECT_LT(choose_draft(record_of(0.8, 0.3), flat, 16).tokens, choose_draft(record_of(0.8, 0.1), flat, 16).tokens);
    EXPECT_LT(choose_draft(record_of(0.6, 0.1), flat, 16).tokens, choose_draft(record_of(0.9, 0.1), flat, 16).tokens);
}

TEST(DraftLength, TextsThatChangeAreFollowed) {
    DraftRecord record = record_of(1, 0.1);
    EXPECT_GT(record.acceptance(), 0.95);
    for (int i = 0; i < 60; ++i) record.judged(1, 0);
    EXPECT_LT(record.acceptance(), 0.9);
    for (int i = 0; i < 100; ++i) record.judged(1, 0);
    EXPECT_LT(record.acceptance(), 0.1);
}

// ---- what is drafted ----

std::vector<TokenId> looked_up(std::vector<TokenId> tokens, size_t n) {
    LookupDraft lookup;
    const size_t before = tokens.size(), foreseen = lookup.foresees(tokens, n);
    if (foreseen == 0) return {};
    EXPECT_EQ(foreseen, n);
    lookup.draft(&tokens, n);
    return {tokens.begin() + static_cast<std::ptrdiff_t>(before), tokens.end()};
}

TEST(LookupDraft, CopiesWhatFollowedTheLastWords) {
    using Ids = std::vector<TokenId>;
    EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 9, 2, 3}, 3), (Ids{4, 5, 9}));
    EXPECT_EQ(looked_up({7, 2, 3, 4, 8, 2, 3, 5, 7, 2, 3}, 2), (Ids{4, 8}));  // the longer match counts, though it is older
    EXPECT_EQ(looked_up({2, 3, 4, 2, 3, 5, 2, 3}, 1), (Ids{5}));              // and of two the younger
    EXPECT_EQ(looked_up({1, 2, 3, 2, 3}, 5), (Ids{2, 3, 2, 3, 2}));           // round and round
    EXPECT_EQ(looked_up({1, 2, 3, 4}, 2), Ids{});
    EXPECT_EQ(looked_up({5}, 2), Ids{});
    EXPECT_EQ(looked_up({}, 2), Ids{});
}

// What a plain run answers, right or made wrong from some place of each draft on.
class Oracle : public DraftSource {
  public:
    Oracle(size_t n_prompt, std::vector<TokenId> answer, size_t right) : n_prompt_(n_prompt), answer_(std::move(answer)), right_(right) {}
    std::string name() const override { return "oracle"; }
    void draft(std::vector<TokenId>* tokens, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            const TokenId next = answer_.at(tokens->size() - n_prompt_);
            tokens->push_back(i < right_ ? next : (next + 1) % 300);
        }
    }

  private:
    size_t n_prompt_;
    std::vector<TokenId> answer_;
    size_t right_;
};

constexpr size_t kDrafts = 5;

EngineOptions engine_options(const TinyShape& shape) {
    EngineOptions options{.plans = {sched::uniform_plan(shape.n_layers, 8), sched::uniform_plan(shape.n_layers, 4),
                                    sched::uniform_plan(shape.n_layers, 2)}};
    options.n_ctx = shape.n_ctx;
    options.max_batch = options.logit_rows = kDrafts + 1;
    options.kv_type = KvType::kF16;
    options.forms = ActivationForms::product();
    return options;
}

struct Answerer {
    Answerer(const std::string& path, const EngineOptions& options) : engine(path, options), other(path, other_model(options)) {}
    // The other engine drafts, as a small model would.
    static EngineOptions other_model(EngineOptions options) {
        options.plans = {options.plans.back()};
        return options;
    }

    std::unique_ptr<DraftSource> plan_draft(size_t plan, const EngineOptions& options, const SamplerOptions& sampler) {
        return std::make_unique<PlanDraft>("plan", *engine.forward, *engine.cache, *engine.store, options.plans[plan], options.plans[0], sampler);
    }
    std::unique_ptr<DraftSource> model_draft(const SamplerOptions& sampler) {
        other.cache->set_length(0);
        return std::make_unique<ModelDraft>("other", *other.forward, *other.cache, *other.store, sampler);
    }
    GenerateResult answer(std::span<const TokenId> prompt, const GenerateOptions& options, std::unique_ptr<DraftSource> source = nullptr,
                          bool adapts = false, const GenerateHooks& hooks = {}, TokenId end = -1) {
        engine.cache->set_length(0);
        Drafter drafter(*engine.store, kDrafts, adapts);
        const bool drafts = source != nullptr;
        if (drafts) drafter.add(std::move(source));
        return generate(*engine.forward, *engine.cache, *engine.store, PlainVocabulary(end), prompt, options, hooks, drafts ? &drafter : nullptr);
    }

    Engine engine, other;
};

const std::vector<TokenId> kPrompt{1, 260, 265, 270, 280, 290, 261, 262, 263};

std::vector<std::pair<std::string, TinyShape>> shapes() {
    TinyShape plain;
    plain.n_ctx = 100;
    TinyShape gemma = plain;  // one layer in two has a window, whose ring goes round several times
    gemma.architecture = "gemma2";
    gemma.tied = true;
    gemma.attention_soft_cap = 50;
    gemma.logit_soft_cap = 30;
    gemma.window = 9;
    TinyShape experts = plain;
    experts.architecture = "qwen3moe";
    experts.n_experts = 5;
    experts.expert_ffn_dim = 64;
    return {{"plain", plain}, {"window", gemma}, {"experts", experts}};
}

GenerateOptions options_for(float temperature, size_t n) {
    GenerateOptions options;
    options.sampler.temperature = temperature;
    options.sampler.seed = 7;
    options.sampler.repeat_penalty = temperature == 0 ? 1.0f : 1.1f;
    options.max_tokens = n;
    return options;
}

void expect_same(const GenerateResult& result, const GenerateResult& expected) {
    EXPECT_EQ(result.ids, expected.ids);
    EXPECT_EQ(result.logits_hash, expected.logits_hash);
    EXPECT_EQ(result.finish, expected.finish);
    EXPECT_EQ(result.mean_entropy, expected.mean_entropy);
}

// Until the context ends, so that drafts meet its end too.
TEST(Drafts, ChangeNoBit) {
    for (const auto& [name, shape] : shapes()) {
        const TinyNativeFile file(shape);
        const EngineOptions engine = engine_options(shape);
        Answerer answerer(file.path(), engine);
        for (const float temperature : {0.0f, 0.8f}) {
            SCOPED_TRACE(name + " at temperature " + std::to_string(temperature));
            const GenerateOptions options = options_for(temperature, SIZE_MAX);
            const GenerateResult expected = answerer.answer(kPrompt, options);
            EXPECT_EQ(expected.finish, FinishReason::kContext);
            EXPECT_EQ(expected.ids.size(), shape.n_ctx - kPrompt.size() + 1);
            for (const size_t right : {size_t{0}, size_t{2}, kDrafts}) {
                SCOPED_TRACE("the first " + std::to_string(right) + " are right");
                const GenerateResult result =
                    answerer.answer(kPrompt, options, std::make_unique<Oracle>(kPrompt.size(), expected.ids, right));
                expect_same(result, expected);
                ASSERT_TRUE(result.drafts.has_value());
                const DraftTally& tally = result.drafts->sources.at(0);
                EXPECT_EQ(tally.judged[0], tally.drafts);
                EXPECT_EQ(tally.right[0], right > 0 ? tally.drafts : 0);
                EXPECT_EQ(tally.accepted == 0, right == 0);
                EXPECT_EQ(tally.accepted == tally.drafted, right == kDrafts);
                EXPECT_EQ(result.drafts->passes + tally.accepted, expected.ids.size() - 1);
            }
            for (const size_t plan : {1, 2}) {
                for (const bool adapts : {false, true}) {
                    SCOPED_TRACE("drafted by plan " + std::to_string(plan));
                    const GenerateResult result = answerer.answer(kPrompt, options, answerer.plan_draft(plan, engine, options.sampler), adapts);
                    expect_same(result, expected);
                    EXPECT_TRUE(adapts || plan != 1 || result.drafts->sources.at(0).accepted > 0);
                    EXPECT_EQ(answerer.engine.store->stats().plan, engine.plans[0]);
                }
            }
            expect_same(answerer.answer(kPrompt, options, std::make_unique<LookupDraft>()), expected);
            const GenerateResult by_model = answerer.answer(kPrompt, options, answerer.model_draft(options.sampler));
            expect_same(by_model, expected);
            EXPECT_GT(by_model.drafts->sources.at(0).accepted, 0u);
        }
    }
}

// The same level draws the same tokens by the same noise: nothing that it drafts is wrong.
TEST(Drafts, OfTheSameWeightsAreAllRight) {
    const TinyShape shape = shapes()[0].second;
    const TinyNativeFile file(shape);
    EngineOptions engine = engine_options(shape);
    engine.plans = {engine.plans[0], engine.plans[0]};
    Answerer answerer(file.path(), engine);
    const GenerateOptions options = options_for(0.8f, 60);
    const GenerateResult expected = answerer.answer(kPrompt, options);
    for (const bool by_model : {false, true}) {
        const GenerateResult result =
            answerer.answer(kPrompt, options, by_model ? answerer.model_draft(options.sampler) : answerer.plan_draft(1, engine, options.sampler));
        expect_same(result, expected);
        EXPECT_EQ(result.drafts->sources.at(0).accepted, result.drafts->sources.at(0).drafted);
    }
}

// An answer may end at every place of a draft: at a limit, at an end token, or because whoever reads it has enough.
TEST(Drafts, EndWhereThePlainAnswerEnds) {
    const TinyShape shape = shapes()[0].second;
    const TinyNativeFile file(shape);
    Answerer answerer(file.path(), engine_options(shape));
    const std::vector<TokenId> whole = answerer.answer(kPrompt, options_for(0.8f, 40)).ids;
    const auto drafted = [&](size_t n, const GenerateHooks& hooks, TokenId end) {
        return answerer.answer(kPrompt, options_for(0.8f, n), std::make_unique<Oracle>(kPrompt.size(), whole, kDrafts), false, hooks, end);
    };
    for (size_t n = 1; n <= 2 * kDrafts + 4; ++n) {
        SCOPED_TRACE(n);
        const GenerateResult expected = answerer.answer(kPrompt, options_for(0.8f, n));
        const GenerateResult result = drafted(n, {}, -1);
        expect_same(result, expected);
        EXPECT_EQ(answerer.engine.cache->length(), kPrompt.size() + n - 1);
        size_t told = 0;
        GenerateHooks hooks;
        hooks.on_token = [&](TokenId) { return ++told < n; };
        const GenerateResult stopped = drafted(30, hooks, -1);
        EXPECT_EQ(stopped.ids, expected.ids);
        EXPECT_EQ(stopped.logits_hash, expected.logits_hash);
        EXPECT_EQ(stopped.finish, FinishReason::kInterrupted);
        EXPECT_EQ(answerer.engine.cache->length(), kPrompt.size() + n - 1);
        const TokenId end = whole[n - 1];
        const GenerateResult ended = drafted(30, {}, end);
        expect_same(ended, answerer.answer(kPrompt, options_for(0.8f, 30), nullptr, false, {}, end));
    }
}

}  // namespace
}  // namespace weir::test
