#include "runtime/engine/draft_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/engine/draft.h"
#include "runtime/engine/generate.h"
#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"
#include "tests/engine/plain_vocabulary.h"

namespace weir::test {
namespace {

const std::vector<TokenId> kText{1, 260, 265, 270, 280};

EngineOptions options_of(const TinyShape& shape) {
    EngineOptions options{.forms = ActivationForms::product()};
    for (const int level : {8, 6, 4, 3, 2}) options.plans.push_back(sched::uniform_plan(shape.n_layers, level));
    return options;
}

// Of two runs of rows that cross a band's end, one row alone and one far away.
std::vector<TokenId> some_tokens() {
    std::vector<TokenId> ids{299, 7};
    for (TokenId id = 40; id < 170; ++id) ids.push_back(id);
    ids.push_back(3);
    return ids;
}

void expect_rows_of(std::span<const float> whole, std::span<const float> logits, std::span<const TokenId> ids) {
    ASSERT_EQ(logits.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(logits[i], whole[static_cast<size_t>(ids[i])]) << "token " << ids[i];
}

TEST(DraftHead, HasTheLogitsOfTheWholeHead) {
    for (const bool tied : {false, true}) {
        TinyShape shape;
        shape.tied = tied;
        if (tied) {
            shape.architecture = "gemma2";
            shape.attention_soft_cap = 50;
            shape.logit_soft_cap = 30;
            shape.window = 9;
        }
        const TinyNativeFile file(shape);
        EngineOptions options = options_of(shape);
        options.threads = 2;
        Engine engine(file.path(), options);
        ASSERT_GT(engine.model.head->bands.size(), 1u);
        for (const sched::Plan& plan : options.plans) {
            SCOPED_TRACE("level " + std::to_string(plan.levels.back()) + (tied ? ", tied" : ""));
            engine.store->use_plan(plan);
            DraftHead head(*engine.store, *engine.model.head, static_cast<kernels::Level>(plan.levels.back()), some_tokens(), 140);
            EXPECT_GT(head.bytes_read(), 0u);
            for (const TokenId added : {3, 20, 21, 290, 22, 23, 24, 25, 26, 291}) {  // of those that it has not, more than fit
                const uint64_t before = head.bytes_read();
                head.add(added);
                EXPECT_EQ(head.bytes_read() == before, added == 3);
            }
            EXPECT_EQ(head.tokens().size(), 140u);
            EXPECT_EQ(std::set<TokenId>(head.tokens().begin(), head.tokens().end()).size(), 140u);
            const auto has = [&](TokenId id) { return std::find(head.tokens().begin(), head.tokens().end(), id) != head.tokens().end(); };
            EXPECT_TRUE(has(291) && has(299) && has(169) && has(26));
            EXPECT_FALSE(has(20));
            engine.cache->set_length(0);
            const std::vector<float> whole = engine.logits(kText, kText.size());
            for (const size_t rows : {size_t{1}, size_t{3}}) {
                engine.cache->set_length(0);
                const SequencePart part{engine.cache.get(), kText, rows};
                const std::span<const float> logits = engine.forward->pass({&part, 1}, false, &head.matrix());
                for (size_t r = 0; r < rows; ++r)
                    expect_rows_of(std::span(whole).subspan((kText.size() - rows + r) * shape.n_vocab, shape.n_vocab),
                                   logits.subspan(r * head.tokens().size(), head.tokens().size()), head.tokens());
            }
        }
    }
}

TEST(DraftHead, DraftsWhatItHasAndChangesNoBit) {
    TinyShape shape;
    shape.n_ctx = 80;
    const TinyNativeFile file(shape);
    EngineOptions engine_options = options_of(shape);
    engine_options.n_ctx = shape.n_ctx;
    Engine engine(file.path(), engine_options);
    const sched::Plan &verify = engine_options.plans.front(), &coarse = engine_options.plans.at(2);
    for (const float temperature : {0.0f, 0.8f}) {
        GenerateOptions options;
        options.sampler.temperature = temperature;
        options.sampler.seed = 3;
        options.sampler.repeat_penalty = temperature == 0 ? 1.0f : 1.1f;
        const auto answer = [&](const sched::Plan* plan, std::vector<TokenId> first, uint64_t* read) {
            engine.cache->set_length(0);
            Drafter drafter(*engine.store, 4, false);
            if (plan != nullptr) {
                auto head = std::make_unique<DraftHead>(*engine.store, *engine.model.head, static_cast<kernels::Level>(plan->levels.back()), first,
                                                        first.size() + 3);
                const DraftHead& kept = *head;
                drafter.add(std::make_unique<PlanDraft>("plan", *engine.forward, *engine.cache, *engine.store, *plan, verify, options.sampler,
                                                        std::move(head)));
                const GenerateResult result = generate(*engine.forward, *engine.cache, *engine.store, PlainVocabulary(-1), kText, options, {}, &drafter);
                *read = kept.bytes_read();
                return result;
            }
            return generate(*engine.forward, *engine.cache, *engine.store, PlainVocabulary(-1), kText, options, {}, nullptr);
        };
        const GenerateResult expected = answer(nullptr, {}, nullptr);
        const std::set<TokenId> said(expected.ids.begin(), expected.ids.end());
        uint64_t read = 0;
        for (const sched::Plan* plan : {&verify, &coarse}) {
            SCOPED_TRACE("level " + std::to_string(plan->levels.front()) + ", temperature " + std::to_string(temperature));
            const GenerateResult few = answer(plan, {1, 2, 3}, &read);
            EXPECT_EQ(few.ids, expected.ids);
            EXPECT_EQ(few.logits_hash, expected.logits_hash);
            EXPECT_LE(few.drafts->sources.at(0).bytes_read, read);  // the store's own are none
            EXPECT_GT(few.drafts->sources.at(0).bytes_read, 0u);
            // All that is said, and by the same weights: at temperature 0 nothing else is the highest either.
            const GenerateResult all = answer(plan, {said.begin(), said.end()}, &read);
            EXPECT_EQ(all.ids, expected.ids);
            EXPECT_EQ(all.logits_hash, expected.logits_hash);
            EXPECT_TRUE(plan != &verify || temperature > 0 || all.drafts->sources.at(0).accepted == all.drafts->sources.at(0).drafted);
        }
    }
}

TEST(DraftHead, RowsThatAreNotThereAreAnError) {
    const TinyShape shape;
    const TinyNativeFile file(shape);
    Engine native(file.path(), options_of(shape)), plain(file.source(), {});
    std::vector<std::byte> memory(1 << 20);
    std::array<std::byte*, kernels::kPlanes> to;
    to.fill(memory.data());
    for (const TokenId id : {-1, 300}) EXPECT_THROW(native.store->copy_rows("output.weight", std::span(&id, 1), kernels::Level::k4, to), Error);
    EXPECT_THROW(native.store->copy_rows("output_norm.weight", kText, kernels::Level::k4, to), Error);
    EXPECT_THROW(native.store->copy_rows("none", kText, kernels::Level::k4, to), Error);
    EXPECT_THROW(plain.store->copy_rows("output.weight", kText, kernels::Level::k4, to), Error);
}

// Words by number, of which the last hundred have one character each, some of more bytes than one.
class Words : public PlainVocabulary {
  public:
    Words() : PlainVocabulary(-1) {}
    std::string piece(TokenId id, bool) const override {
        if (id < 200) return "word";
        return id % 2 == 0 ? "x" : "\xc3\xa4";
    }
};

TEST(LikelyTokens, AreTheFirstAndCharacters) {
    const Words words;
    std::vector<TokenId> expected;
    for (TokenId id = 0; id < 62; ++id) expected.push_back(id);
    expected.insert(expected.end(), {200, 201});
    EXPECT_EQ(likely_tokens(words, 64), expected);
    for (const size_t n : {size_t{0}, size_t{1}, size_t{250}, size_t{300}, size_t{301}}) {
        const std::vector<TokenId> tokens = likely_tokens(words, n);
        EXPECT_EQ(tokens.size(), std::min<size_t>(n, 300));
        EXPECT_EQ(std::set<TokenId>(tokens.begin(), tokens.end()).size(), tokens.size());
    }
}

}  // namespace
}  // namespace weir::test
