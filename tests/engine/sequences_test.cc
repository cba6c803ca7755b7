// Several sequences in one pass over the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

std::vector<int32_t> random_ids(std::mt19937& random, size_t n, size_t n_vocab) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % n_vocab);
    return ids;
}

// Each sequence alone, then all together, cut and mixed at random: every logit of every token must be the same, to the bit.
void expect_the_same_alone_and_together(const TinyShape& shape, EngineOptions options, uint32_t seed) {
    SCOPED_TRACE(shape.architecture + ", " + std::to_string(options.threads) + " threads, seed " + std::to_string(seed));
    const TinyModelFile file(shape);
    Engine alone(file.path(), options);
    Engine together(file.path(), options);
    const size_t n_vocab = together.config.n_vocab;
    std::mt19937 random(seed);
    struct Sequence {
        std::vector<int32_t> ids;
        std::vector<float> expected;
        std::unique_ptr<KvCache> cache;
        size_t done = 0;
    };
    std::vector<Sequence> sequences(4);
    for (Sequence& s : sequences) {
        s.ids = random_ids(random, 1 + random() % 60, n_vocab);
        s.expected = alone.logits(s.ids, 7);
        alone.cache->set_length(0);
        s.cache = std::make_unique<KvCache>(together.config, options.kv_type, options.n_ctx, options.max_batch);
    }
    for (bool left = true; left;) {
        std::vector<SequencePart> parts;
        std::vector<Sequence*> whose;
        size_t room = options.max_batch;
        for (Sequence& s : sequences) {
            const size_t most = std::min({s.ids.size() - s.done, room, random() % 3 == 0 ? size_t{20} : size_t{1}});
            if (most == 0 || random() % 4 == 0) continue;
            const size_t n = 1 + random() % most;
            parts.push_back({s.cache.get(), std::span(s.ids).subspan(s.done, n), 1 + random() % n});
            whose.push_back(&s);
            room -= n;
        }
        if (!parts.empty()) {
            std::span<const float> rows = together.forward->pass(parts, true);
            for (size_t i = 0; i < parts.size(); ++i) {
                Sequence& s = *whose[i];
                s.done += parts[i].ids.size();
                const size_t values = parts[i].logit_rows * n_vocab;
                const float* const want = s.expected.data() + s.done * n_vocab - values;
                ASSERT_TRUE(std::equal(want, want + values, rows.begin())) << "sequence of " << s.ids.size() << " at " << s.done;
                rows = rows.subspan(values);
                EXPECT_EQ(s.cache->length(), s.done);
            }
            EXPECT_TRUE(rows.empty());
        }
        left = std::any_of(sequences.begin(), sequences.end(), [](const Sequence& s) { return s.done < s.ids.size(); });
    }
}

TEST(Sequences, GiveTheSameAloneAndTogether) {
    TinyShape llama;
    llama.body = kernels::Type::kQ4_0;
    llama.down = kernels::Type::kQ8_0;
    llama.embedding = kernels::Type::kQ4_0;
    TinyShape gemma;
    gemma.architecture = "gemma3";
    gemma.window = 24;
    TinyShape experts;
    experts.architecture = "qwen3moe";
    experts.n_experts = 5;
    experts.body = kernels::Type::kQ8_0;
    experts.down = kernels::Type::kQ8_0;
    uint32_t seed = 1;
    for (const TinyShape& shape : {llama, gemma, experts}) {
        for (const size_t threads : {1, 3}) {
            EngineOptions options;
            options.threads = threads;
            options.forms = ActivationForms::product();
            options.kv_type = threads == 1 ? KvType::kF16 : KvType::kF32;
            expect_the_same_alone_and_together(shape, options, seed++);
        }
    }
}

TEST(Sequences, RefusesWhatNoPassCanHold) {
    const TinyModelFile file(TinyShape{});
    EngineOptions options;
    options.max_batch = 8;
    options.logit_rows = 2;
    Engine engine(file.path(), options);
    KvCache other(engine.config, options.kv_type, 4, options.max_batch);
    const std::vector<int32_t> ids(9, 3);
    const auto refused = [&](std::vector<SequencePart> parts) { EXPECT_THROW(engine.forward->pass(parts, false), Error); };
    const auto some = [&](size_t n) { return std::span(ids).first(n); };
    refused({});
    refused({{engine.cache.get(), some(0), 0}});
    refused({{engine.cache.get(), some(9), 0}});
    refused({{engine.cache.get(), some(6), 0}, {&other, some(3), 0}});
    refused({{engine.cache.get(), some(2), 2}, {&other, some(1), 1}});
    refused({{engine.cache.get(), some(1), 2}});
    refused({{engine.cache.get(), some(1), 1}, {&other, some(5), 0}});
    refused({{engine.cache.get(), some(1), 1}, {engine.cache.get(), some(1), 0}});
    EXPECT_EQ(engine.cache->length(), 0u);
    EXPECT_EQ(other.length(), 0u);
    engine.forward->pass(std::vector<SequencePart>{{engine.cache.get(), some(4), 1}, {&other, some(4), 1}}, false);
    EXPECT_EQ(other.length(), 4u);
}

}  // namespace
}  // namespace weir::test
