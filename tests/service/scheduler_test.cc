#include "runtime/service/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // that nothing here takes

TinyShape shape() {
    TinyShape made;
    made.n_ctx = 700;
    made.body = kernels::Type::kQ8_0;
    made.down = kernels::Type::kQ8_0;
    return made;
}

// An engine with slots, and a scheduler over it.
using Caches = std::vector<std::unique_ptr<KvCache>>;

// A cache for each slot, which `owner` keeps.
std::vector<KvCache*> make_caches(const ModelConfig& config, size_t slots, size_t n_ctx, Caches* owner) {
    std::vector<KvCache*> all;
    for (size_t i = 0; i < slots; ++i) all.push_back(owner->emplace_back(std::make_unique<KvCache>(config, KvType::kF16, n_ctx, n_ctx)).get());
    return all;
}

struct Service {
    explicit Service(size_t slots, size_t max_queue = 8, size_t n_ctx = 600, size_t max_batch = 64, RestHook rest = {}, WatchHook watch = {})
        : file(shape()), engine(file.path(), options(n_ctx, max_batch, slots)), tokenizer(Tokenizer::from_gguf(engine.file)), trie(*tokenizer) {
        scheduler = std::make_unique<Scheduler>(*engine.forward, *engine.store, *tokenizer, trie, make_caches(engine.config, slots, n_ctx, &caches),
                                                max_queue, std::move(rest), std::move(watch));
    }
    static EngineOptions options(size_t n_ctx, size_t max_batch, size_t slots) {
        EngineOptions made;
        made.n_ctx = n_ctx;
        made.max_batch = max_batch;
        made.logit_rows = slots;
        made.threads = 2;
        made.forms = ActivationForms::product();
        return made;
    }
    TinyModelFile file;
    Engine engine;
    std::unique_ptr<Tokenizer> tokenizer;
    TokenTrie trie;
    Caches caches;
    std::unique_ptr<Scheduler> scheduler;
};

GenerationRequest request(size_t prompt, size_t max_tokens, uint32_t seed, float temperature = 0.9f) {
    GenerationRequest made;
    std::mt19937 random(seed);
    for (size_t i = 0; i < prompt; ++i) made.prompt.push_back(static_cast<TokenId>(3 + random() % 250));
    made.sampler.temperature = temperature;
    made.sampler.seed = seed;
    made.max_tokens = max_tokens;
    made.ignore_end = true;
    return made;
}

std::vector<TokenId> read_all(Generation& generation) {
    std::vector<TokenId> ids;
    for (GeneratedToken token;;) {
        const Generation::Next next = generation.next(&token, kLong);
        EXPECT_NE(next, Generation::Next::kNothing);
        if (next != Generation::Next::kToken) return ids;
        ids.push_back(token.id);
    }
}

TEST(Scheduler, AnswersAreTheSameAloneAndAmongOthers) {
    std::vector<std::vector<TokenId>> alone;
    const size_t prompts[] = {1, 5, 70, 130, 17, 33};
    {
        Service service(1);
        for (uint32_t i = 0; i < 6; ++i) {
            alone.push_back(read_all(*service.scheduler->submit(request(prompts[i], 10 + 5 * i, i, i % 2 == 0 ? 0 : 0.9f))));
            EXPECT_EQ(alone.back().size(), 10u + 5 * i);
        }
    }
    Service service(3);
    std::vector<std::shared_ptr<Generation>> all;
    for (uint32_t i = 0; i < 6; ++i) {
        all.push_back(service.scheduler->submit(request(prompts[i], 10 + 5 * i, i, i % 2 == 0 ? 0 : 0.9f)));
    }
    for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(read_all(*all[i]), alone[i]) << i;
    const SchedulerStats stats = service.scheduler->stats();
    EXPECT_EQ(stats.finished, 6u);
    EXPECT_EQ(stats.generated_tokens, 10u + 15 + 20 + 25 + 30 + 35);
    EXPECT_EQ(stats.prompt_tokens + stats.cached_tokens, 1u + 5 + 70 + 130 + 17 + 33);
    EXPECT_LT(stats.passes, stats.generated_tokens);
    EXPECT_EQ(all[5]->outcome().finish, FinishReason::kLimit);
}

TEST(Scheduler, CancellingFreesTheSlotAndDisturbsNobody) {
    Service service(2);
    const std::vector<TokenId> expected = read_all(*service.scheduler->submit(request(20, 60, 7)));
    auto endless = service.scheduler->submit(request(20, SIZE_MAX, 8));
    auto other = service.scheduler->submit(request(20, 60, 7));
    GeneratedToken token;
    ASSERT_EQ(endless->next(&token, kLong), Generation::Next::kToken);
    endless->cancel();
    read_all(*endless);
    EXPECT_EQ(endless->outcome().finish, FinishReason::kInterrupted);
    EXPECT_EQ(endless->outcome().error, "");
    auto next = service.scheduler->submit(request(9, 3, 9));
    EXPECT_EQ(read_all(*next).size(), 3u);
    EXPECT_EQ(read_all(*other), expected);
    EXPECT_EQ(service.scheduler->stats().cancelled, 1u);
}

TEST(Scheduler, QueueIsBoundedAndSaysWhenToComeBack) {
    Service service(1, 2);
    auto running = service.scheduler->submit(request(5, SIZE_MAX, 1));
    GeneratedToken token;
    ASSERT_EQ(running->next(&token, kLong), Generation::Next::kToken);
    auto first = service.scheduler->submit(request(5, 2, 2));
    auto second = service.scheduler->submit(request(5, 2, 3));
    try {
        service.scheduler->submit(request(5, 2, 4));
        FAIL() << "taken in";
    } catch (const Busy& busy) {
        EXPECT_GE(busy.retry_after_s, 1u);
    }
    EXPECT_EQ(service.scheduler->stats().queued, 2u);
    second->cancel();  // while it waits
    running->cancel();
    EXPECT_EQ(read_all(*first).size(), 2u);
    EXPECT_TRUE(read_all(*second).empty());
    EXPECT_EQ(read_all(*service.scheduler->submit(request(5, 2, 5))).size(), 2u);
    EXPECT_EQ(service.scheduler->stats().refused, 1u);
}

TEST(Scheduler, TurnsOfAConversationComputeWhatIsNewOnly) {
    Service cold(1), warm(2);
    GenerationRequest first = request(40, 12, 3, 0);
    const std::vector<TokenId> answer = read_all(*warm.scheduler->submit(first));
    read_all(*warm.scheduler->submit(request(30, 4, 99)));  // somebody else, in the other slot
    GenerationRequest second = first;
    second.prompt.insert(second.prompt.end(), answer.begin(), answer.end());
    for (TokenId id = 5; id < 15; ++id) second.prompt.push_back(id);
    auto warmly = warm.scheduler->submit(second);
    const std::vector<TokenId> expected = read_all(*cold.scheduler->submit(second));
    EXPECT_EQ(read_all(*warmly), expected);
    EXPECT_EQ(warmly->outcome().cached_tokens, 40u + 11);  // the answer's last token had not been computed
    // The same once more: all but the last token of the prompt is there.
    auto again = warm.scheduler->submit(second);
    EXPECT_EQ(read_all(*again), expected);
    EXPECT_EQ(again->outcome().cached_tokens, second.prompt.size() - 1);
}

TEST(Scheduler, ContextEndsAnswersAndRefusesPrompts) {
    Service service(1, 4, 32);
    auto full = service.scheduler->submit(request(20, SIZE_MAX, 1));
    EXPECT_EQ(read_all(*full).size(), 13u);  // the last one is not in the cache
    EXPECT_EQ(full->outcome().finish, FinishReason::kContext);
    EXPECT_THROW(service.scheduler->submit(request(32, 1, 1)), Error);
    EXPECT_THROW(service.scheduler->submit(request(0, 1, 1)), Error);
    EXPECT_EQ(read_all(*service.scheduler->submit(request(31, 5, 1))).size(), 2u);
    EXPECT_TRUE(read_all(*service.scheduler->submit(request(3, 0, 1))).empty());
}

TEST(Scheduler, LongPromptsDoNotStarveWhoIsReading) {
    Service service(2);
    auto reader = service.scheduler->submit(request(5, SIZE_MAX, 1));
    GeneratedToken token;
    ASSERT_EQ(reader->next(&token, kLong), Generation::Next::kToken);
    auto prompt = service.scheduler->submit(request(500, 1, 2));
    const size_t before = reader->outcome().tokens;
    ASSERT_EQ(prompt->next(&token, kLong), Generation::Next::kToken);
    // 500 tokens take 8 passes of 64 at least, each with a token for the reader; one may have passed before it was counted.
    EXPECT_GE(reader->outcome().tokens, before + 7);
    reader->cancel();
}

TEST(Scheduler, DrainsAndStops) {
    Service service(2);
    auto some = service.scheduler->submit(request(30, 40, 1));
    auto waits = service.scheduler->submit(request(30, 40, 2));
    auto queued = service.scheduler->submit(request(30, 40, 3));
    EXPECT_TRUE(service.scheduler->drain(kLong));
    EXPECT_THROW(service.scheduler->submit(request(3, 1, 1)), Busy);
    for (auto& generation : {some, waits, queued}) EXPECT_EQ(read_all(*generation).size(), 40u);

    Service other(1);
    auto endless = other.scheduler->submit(request(5, SIZE_MAX, 1));
    auto never = other.scheduler->submit(request(5, SIZE_MAX, 1));
    EXPECT_FALSE(other.scheduler->drain(1ms));
    other.scheduler.reset();
    read_all(*endless);
    read_all(*never);
    EXPECT_NE(endless->outcome().error, "");
    EXPECT_NE(never->outcome().error, "");
}

TEST(Scheduler, LogprobsAreThoseOfTheModel) {
    Service service(1);
    GenerationRequest asked = request(12, 5, 4, 0);
    asked.logprobs = true;
    asked.top_logprobs = 300;  // all there are
    auto generation = service.scheduler->submit(asked);
    size_t n = 0;
    for (GeneratedToken token; generation->next(&token, kLong) == Generation::Next::kToken; ++n) {
        ASSERT_EQ(token.top.size(), 300u);
        EXPECT_EQ(token.top.front().id, token.id);  // greedy
        EXPECT_EQ(token.top.front().logprob, token.logprob);
        double sum = 0;
        for (size_t i = 0; i < token.top.size(); ++i) {
            sum += std::exp(token.top[i].logprob);
            EXPECT_LE(token.top[i].logprob, token.top[i == 0 ? 0 : i - 1].logprob);
        }
        EXPECT_NEAR(sum, 1, 1e-4);
    }
    EXPECT_EQ(n, 5u);
}

TEST(Scheduler, EmbeddingsAreTheSameHoweverTheyAreComputed) {
    GenerationRequest asked = request(90, 1, 5);
    asked.embeds = true;
    std::vector<std::vector<float>> all;
    for (const size_t batch : {64u, 7u, 200u}) {
        Service service(3, 8, 600, batch);
        read_all(*service.scheduler->submit(request(90, 1, 5)));  // the prompt is in a cache, which must not be taken over
        auto other = service.scheduler->submit(request(20, 40, 1));
        auto embedding = service.scheduler->submit(asked);
        EXPECT_TRUE(read_all(*embedding).empty());
        EXPECT_EQ(embedding->outcome().finish, FinishReason::kEnd);
        EXPECT_EQ(embedding->outcome().cached_tokens, 0u);
        all.push_back(embedding->outcome().embedding);
        EXPECT_EQ(read_all(*other).size(), 40u);
    }
    ASSERT_EQ(all[0].size(), shape().dim);
    double squares = 0;
    for (const float value : all[0]) squares += static_cast<double>(value) * value;
    EXPECT_NEAR(squares, 1, 1e-5);
    EXPECT_EQ(all[1], all[0]);
    EXPECT_EQ(all[2], all[0]);
}

TEST(Scheduler, ABrokenPassFailsItsRequestsAndNotTheService) {
    Service service(2);
    GenerationRequest bad = request(5, 5, 1);
    bad.prompt[2] = 5000;  // no token of this model
    auto failed = service.scheduler->submit(bad);
    EXPECT_TRUE(read_all(*failed).empty());
    EXPECT_NE(failed->outcome().error.find("5000"), std::string::npos);
    EXPECT_EQ(read_all(*service.scheduler->submit(request(5, 5, 1))).size(), 5u);
    EXPECT_EQ(service.scheduler->stats().failed, 1u);
}

TEST(Scheduler, SaysWhenItRestsAndMovesWhenItWorks) {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<bool> told;
    Service service(1, 8, 600, 64, {5ms, [&](bool rests) {
                                        const std::lock_guard lock(mutex);
                                        told.push_back(rests);
                                        changed.notify_all();
                                    }});
    for (size_t turn = 1; turn <= 2; ++turn) {
        std::unique_lock lock(mutex);
        ASSERT_TRUE(changed.wait_for(lock, kLong, [&] { return told.size() == 2 * turn - 1; }));
        EXPECT_TRUE(told.back());
        lock.unlock();
        const uint64_t moves = service.scheduler->moves();
        auto work = service.scheduler->submit(request(3, 4, 1));
        GeneratedToken token;
        EXPECT_EQ(work->next(&token, kLong), Generation::Next::kToken);
        lock.lock();
        EXPECT_GE(told.size(), 2 * turn) << "it is told before the work begins";
        EXPECT_FALSE(told[2 * turn - 1]);
        lock.unlock();
        EXPECT_EQ(read_all(*work).size(), 3u);
        EXPECT_GT(service.scheduler->moves(), moves);
    }
}

// What the pieces of prompts foretell, by an engine that decodes the same ids one after the other.
TEST(Scheduler, ScoresWhatPiecesOfPromptsForetell) {
    WatchHook watch;
    watch.options.window = 4;
    watch.options.recent_windows = 1;
    watch.options.baseline_perplexity = 1.0001;  // which no prompt drawn at random is as good as
    std::vector<sched::WarningChange> changes;
    watch.change = [&](const sched::WarningChange& change) { changes.push_back(change); };
    GenerationRequest asked = request(330, 2, 1);
    const std::vector<TokenId> prompt = asked.prompt;
    double expected = 0;
    {
        Service service(1, 8, 600, 8, {}, std::move(watch));
        read_all(*service.scheduler->submit(std::move(asked)));
        const SchedulerStats stats = service.scheduler->stats();
        EXPECT_EQ(stats.first_token.counts.size(), LatencyCounts::kBounds.size() + 1);
        EXPECT_EQ(std::accumulate(stats.first_token.counts.begin(), stats.first_token.counts.end(), uint64_t{0}), 1u);
        EXPECT_GT(stats.first_token.sum_s, 0);
        service.scheduler.reset();
        // The same, a prompt by itself: 330 tokens come in 42 pieces of 8, of which each eighth is scored but for the last.
        service.caches[0]->set_length(0);
        for (size_t at = 0; at + 64 < prompt.size(); at += 64) {
            const SequencePart part{service.caches[0].get(), std::span(prompt).subspan(at, 64), 1};
            for (size_t piece = 0; piece < 8; ++piece) {
                const SequencePart eight{part.cache, part.ids.subspan(piece * 8, 8), piece == 7 ? size_t{1} : 0};
                const std::span<const float> logits = service.engine.forward->pass({&eight, 1}, true);
                if (piece < 7 || at >= 256) continue;  // a window of four
                double sum = 0;
                for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
                expected += std::log(sum) - logits[static_cast<size_t>(prompt[at + 64])];
            }
        }
    }
    ASSERT_EQ(changes.size(), 1u);
    EXPECT_TRUE(changes[0].raised);
    EXPECT_EQ(changes[0].warning, sched::Warning::kPerplexity);
    char perplexity[32];
    std::snprintf(perplexity, sizeof perplexity, " %.2f,", std::exp(expected / 4));
    EXPECT_NE(changes[0].text.find(perplexity), std::string::npos) << changes[0].text << " " << perplexity;
}

// Levels 8, 6, 4, 3 and 2, finest first.
std::vector<sched::RatedPlan> ladder() {
    std::vector<sched::RatedPlan> made;
    for (const int level : {8, 6, 4, 3, 2}) made.push_back({sched::uniform_plan(shape().n_layers, level), static_cast<uint64_t>(1000 * level), 8.0 - level});
    return made;
}

// A request whose answer wants this rung of the ladder.
struct Wish {
    GenerationRequest request;
    size_t rung;
};

constexpr sched::SchedulerOptions kStays{1e9, -1, -1, 1}, kIsUnsure{-1, -2, 2, 1};

// A native file, served at a precision that moves as the options say.
struct AutoService {
    AutoService(size_t slots, const std::vector<Wish>& wishes, const sched::SchedulerOptions& options = kStays)
        : file(shape()), precision(ladder(), memory_of(wishes), options), engine(file.path(), engine_options(slots)),
          tokenizer(Tokenizer::from_gguf(engine.file)), trie(*tokenizer) {
        scheduler = std::make_unique<Scheduler>(*engine.forward, *engine.store, *tokenizer, trie, make_caches(engine.config, slots, 600, &caches), 8,
                                                RestHook{}, WatchHook{}, &precision);
    }
    EngineOptions engine_options(size_t slots) const {
        EngineOptions made = Service::options(600, 64, slots);
        made.plans = precision.plans();
        return made;
    }
    static sched::PlanMemory memory_of(const std::vector<Wish>& wishes) {
        sched::PlanMemory memory;
        for (const Wish& wish : wishes) memory.remember(sched::prompt_signature(wish.request.prompt), wish.rung);
        return memory;
    }
    TinyNativeFile file;
    AutoPrecision precision;
    Engine engine;
    std::unique_ptr<Tokenizer> tokenizer;
    TokenTrie trie;
    Caches caches;
    std::unique_ptr<Scheduler> scheduler;
};

using Tokens = std::vector<uint64_t>;

TEST(AutoScheduler, TheHighestWantedLevelOfABatchWins) {
    const Wish coarse{request(20, SIZE_MAX, 1), 4}, fine{request(30, 10, 2), 1}, between{request(25, 10, 3), 3};
    const std::vector<Wish> wishes = {coarse, fine, between};
    GenerationRequest embedding = request(40, 1, 4);
    embedding.embeds = true;
    std::vector<TokenId> fine_alone, between_alone;
    std::vector<float> embedded_alone;
    {
        AutoService alone(1, wishes);
        auto work = alone.scheduler->submit(fine.request);
        fine_alone = read_all(*work);
        EXPECT_EQ(work->outcome().tokens_at, (Tokens{0, 9, 0, 0, 0}));
        between_alone = read_all(*alone.scheduler->submit(between.request));
        auto embedded = alone.scheduler->submit(embedding);
        read_all(*embedded);
        embedded_alone = embedded->outcome().embedding;
        EXPECT_EQ(alone.scheduler->stats().store.plan.uniform(), 8);
    }
    AutoService service(3, wishes);
    auto endless = service.scheduler->submit(coarse.request);
    GeneratedToken token;
    for (int i = 0; i < 2; ++i) ASSERT_EQ(endless->next(&token, kLong), Generation::Next::kToken);
    EXPECT_EQ(endless->outcome().tokens_at[1], 0u);
    auto other = service.scheduler->submit(fine.request);
    EXPECT_EQ(read_all(*other), fine_alone);
    EXPECT_EQ(other->outcome().tokens_at, (Tokens{0, 9, 0, 0, 0}));
    auto third = service.scheduler->submit(between.request);
    EXPECT_EQ(read_all(*third), between_alone);
    EXPECT_EQ(third->outcome().tokens_at, (Tokens{0, 0, 0, 9, 0}));
    auto embedded = service.scheduler->submit(embedding);
    read_all(*embedded);
    EXPECT_EQ(embedded->outcome().embedding, embedded_alone);
    EXPECT_TRUE(embedded->outcome().tokens_at.empty());
    for (int i = 0; i < 40; ++i) ASSERT_EQ(endless->next(&token, kLong), Generation::Next::kToken);
    endless->cancel();
    read_all(*endless);
    const Tokens at = endless->outcome().tokens_at;
    EXPECT_GE(at[0], 3u);  // beside the prompts
    EXPECT_EQ(at[1], 9u);
    EXPECT_EQ(at[2], 0u);
    EXPECT_EQ(at[3], 9u);
    EXPECT_GE(at[4], 1u);

    ASSERT_TRUE(service.scheduler->drain(kLong));
    service.scheduler.reset();  // and with it who writes
    const AutoReport& report = service.precision.report();
    EXPECT_EQ(report.rungs[1].tokens, 18u);
    EXPECT_EQ(report.switches, 0u);
    EXPECT_GE(report.plan_changes, 7u);  // 0 4 0 1 4 0 3 4 ...
    EXPECT_EQ(report.remembered, 3u);
}

TEST(AutoScheduler, WhicheverSlotItIsIn) {
    const Wish fine{request(20, SIZE_MAX, 1), 1}, coarse{request(30, 10, 2), 4};
    AutoService service(2, {fine, coarse});
    auto endless = service.scheduler->submit(fine.request);
    GeneratedToken token;
    ASSERT_EQ(endless->next(&token, kLong), Generation::Next::kToken);
    auto other = service.scheduler->submit(coarse.request);
    EXPECT_EQ(read_all(*other).size(), 10u);
    EXPECT_EQ(other->outcome().tokens_at, (Tokens{0, 9, 0, 0, 0}));
    endless->cancel();
    read_all(*endless);
}

TEST(AutoScheduler, PrefixesOfAnotherPrecisionAreNotTakenOver) {
    for (const size_t rung : {size_t{0}, size_t{4}}) {
        SCOPED_TRACE(rung);
        const GenerationRequest first = request(40, 12, 3, 0);
        GenerationRequest second = first;
        {
            AutoService service(1, {{first, rung}});
            const std::vector<TokenId> answer = read_all(*service.scheduler->submit(first));
            second.prompt.insert(second.prompt.end(), answer.begin(), answer.end());
        }
        for (TokenId id = 5; id < 15; ++id) second.prompt.push_back(id);
        const std::vector<Wish> wishes = {{first, rung}, {second, rung}};
        AutoService cold(1, wishes), warm(1, wishes);
        read_all(*warm.scheduler->submit(first));
        auto warmly = warm.scheduler->submit(second);
        EXPECT_EQ(read_all(*warmly), read_all(*cold.scheduler->submit(second)));
        // At the finest plan the answer is what a prompt would be; its last token had not been computed.
        EXPECT_EQ(warmly->outcome().cached_tokens, rung == 0 ? 40u + 11 : 40u);
        EXPECT_TRUE(warmly->outcome().remembered);
        auto again = warm.scheduler->submit(second);
        read_all(*again);
        EXPECT_EQ(again->outcome().cached_tokens, second.prompt.size() - 1);
    }
}

TEST(AutoScheduler, RepeatedPromptsBeginWithThePlanTheyEndedWith) {
    AutoService service(1, {}, kIsUnsure);
    auto first = service.scheduler->submit(request(40, 12, 3));
    read_all(*first);
    EXPECT_FALSE(first->outcome().remembered);
    EXPECT_EQ(first->outcome().tokens_at, (Tokens{10, 1, 0, 0, 0}));  // from the middle of the ladder a rung a token
    EXPECT_EQ(service.scheduler->stats().precision->switches, 2u);
    EXPECT_EQ(service.scheduler->stats().precision->plan_changes, 2u);
    auto second = service.scheduler->submit(request(40, 12, 3));
    read_all(*second);
    EXPECT_TRUE(second->outcome().remembered);
    EXPECT_EQ(second->outcome().tokens_at, (Tokens{11, 0, 0, 0, 0}));
    ASSERT_TRUE(service.scheduler->drain(kLong));
    const AutoReport report = *service.scheduler->stats().precision;
    EXPECT_EQ(report.switches, 2u);
    EXPECT_EQ(report.plan_changes, 2u);
    EXPECT_EQ(report.remembered, 1u);
    ASSERT_TRUE(service.precision.changed_memory());
    EXPECT_EQ(service.precision.changed_memory(), std::nullopt);
}

}  // namespace
}  // namespace weir::test
