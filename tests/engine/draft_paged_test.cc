// Drafts by a lower level over the pager: in any budget the answer of resident planes, no fault, and bytes that are counted.
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/engine/draft.h"
#include "runtime/engine/generate.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"
#include "tests/engine/plain_vocabulary.h"

namespace weir::test {
namespace {

TEST(DraftPaged, GivesTheAnswerOfResidentPlanes) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.dim = 256;
    shape.ffn_dim = 512;
    shape.n_ctx = 60;
    const TinyNativeFile file(shape, 64 << 10);
    const std::vector<TokenId> prompt{1, 260, 265, 270, 280, 290, 261};
    GenerateOptions options;
    options.sampler.seed = 11;
    const size_t drafts = 4;
    // The last plan drafts from a head of its own.
    const auto answer = [&](const EngineOptions& engine_options, std::initializer_list<size_t> drafting_plans, size_t* accepted) {
        Engine engine(file.path(), engine_options);
        Drafter drafter(*engine.store, drafts, false);
        for (const size_t p : drafting_plans) {
            std::unique_ptr<DraftHead> head;
            std::vector<TokenId> likely(150);
            std::iota(likely.begin(), likely.end(), 150);
            if (engine_options.plans[p].levels.back() == sched::kNotRead)
                head = std::make_unique<DraftHead>(*engine.store, *engine.model.head, kernels::Level::k4, likely, 200);
            drafter.add(std::make_unique<PlanDraft>("plan", *engine.forward, *engine.cache, *engine.store, engine_options.plans[p],
                                                    engine_options.plans[0], options.sampler, std::move(head)));
        }
        const GenerateResult result = generate(*engine.forward, *engine.cache, *engine.store, PlainVocabulary(-1), prompt, options, {},
                                               drafting_plans.size() > 0 ? &drafter : nullptr);
        const bool apart = drafting_plans.size() > 0 && engine_options.plans[*drafting_plans.begin()].levels.back() == sched::kNotRead;
        EXPECT_EQ(engine.store->stats().faults, 0u);
        EXPECT_EQ(engine.store->bytes_read(), engine_options.paging == PagingMode::kUffd ? engine.store->stats().bytes_read : 0);
        if (result.drafts) {
            *accepted = result.drafts->sources[0].accepted;
            const uint64_t drafting = result.drafts->sources[0].bytes_read;  // with rows copied into a head
            EXPECT_TRUE(apart || result.first_token_bytes + result.drafts->verify_bytes_read + drafting <= engine.store->bytes_read());
            EXPECT_TRUE(!apart || engine_options.frame_bytes < 64u << 20 || drafting > 0);  // though all planes stay
        }
        return result;
    };
    EngineOptions engine_options{.paging = PagingMode::kResident, .plans = {sched::uniform_plan(4, 8), sched::uniform_plan(4, 4), mixed_plan(4, 1)}};
    engine_options.plans.push_back(engine_options.plans[1]);
    engine_options.plans.back().levels.back() = sched::kNotRead;
    engine_options.max_batch = engine_options.logit_rows = drafts + 1;
    engine_options.n_ctx = shape.n_ctx;
    engine_options.forms = ActivationForms::product();
    const GenerateResult expected = answer(engine_options, {}, nullptr);
    EXPECT_EQ(expected.ids.size(), shape.n_ctx - prompt.size() + 1);
    engine_options.paging = PagingMode::kUffd;
    for (const uint64_t budget : {1u << 20, 64u << 20}) {
        for (const size_t threads : {1, 2}) {
            for (const size_t plan : {1, 2, 3}) {
                SCOPED_TRACE(std::to_string(budget) + " bytes, " + std::to_string(threads) + " threads, plan " + std::to_string(plan));
                engine_options.frame_bytes = budget;
                engine_options.threads = threads;
                size_t accepted = 0;
                const GenerateResult result = answer(engine_options, {plan}, &accepted);
                EXPECT_EQ(result.ids, expected.ids);
                EXPECT_EQ(result.logits_hash, expected.logits_hash);
                EXPECT_GT(accepted, 0u);
            }
        }
    }
}

}  // namespace
}  // namespace weir::test
