#include "runtime/engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace weir {
namespace {

SamplerOptions off() {
    SamplerOptions o;
    o.temperature = 1;
    o.top_k = 0;
    o.top_p = 1;
    o.min_p = 0;
    return o;
}

std::vector<float> random_logits(std::mt19937& random, size_t n) {
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(n);
    for (float& logit : logits) logit = normal(random);
    return logits;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
    const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    std::vector<double> p;
    double sum = 0;
    for (const float logit : logits) sum += p.emplace_back(std::exp((static_cast<double>(logit) - top) / temperature));
    for (double& x : p) x /= sum;
    return p;
}

TEST(Sampler, GreedyTakesTheHighestAndTheLowestIdAmongEquals) {
    SamplerOptions o;
    o.temperature = 0;
    Sampler sampler(o);
    EXPECT_EQ(sampler.sample(std::vector<float>{1, 5, 5, 2}, {}, 0), 1);
    EXPECT_EQ(sampler.sample(std::vector<float>{-3}, {}, 7), 0);
    o.repeat_penalty = 2;
    EXPECT_EQ(Sampler(o).sample(std::vector<float>{5, 5, 5}, {}, 0), 0);
}

// Some tokens are drawn from as the vocabulary is where all others are out of the question.
TEST(Sampler, SomeTokensAreDrawnFromAsTheWholeVocabularyIs) {
    const std::vector<TokenId> ids{2, 5, 6, 11, 17};
    std::vector<float> whole(20, -1e9f), some;
    for (const TokenId id : ids) some.push_back(whole[static_cast<size_t>(id)] = 0.3f * static_cast<float>(id % 7) - 1);
    const std::vector<TokenId> history{6, 6, 3, 11};
    for (const float temperature : {0.0f, 0.8f}) {
        for (const float penalty : {1.0f, 1.5f}) {
            SamplerOptions o;
            o.temperature = temperature;
            o.repeat_penalty = penalty;
            o.seed = 9;
            std::set<TokenId> seen;
            for (uint64_t position = 0; position < 100; ++position) {
                const TokenId id = Sampler(o).sample_of(ids, some, history, position);
                EXPECT_EQ(id, Sampler(o).sample(whole, history, position));
                seen.insert(id);
            }
            EXPECT_EQ(seen.size() > 1, temperature > 0);
        }
    }
}

TEST(Sampler, NoiseDependsOnItsArgumentsAlone) {
    double sum = 0;
    std::set<double> seen;
    for (uint64_t position = 0; position < 10000; ++position) {
        const double noise = counter_noise(1, position);
        ASSERT_GE(noise, 0.0);
        ASSERT_LT(noise, 1.0);
        EXPECT_EQ(noise, counter_noise(1, position));
        sum += noise;
        seen.insert(noise);
        seen.insert(counter_noise(2, position));
    }
    EXPECT_NEAR(sum / 10000, 0.5, 0.01);
    EXPECT_EQ(seen.size(), 20000u);
}

TEST(Sampler, ADrawDoesNotDependOnTheDrawsBefore) {
    std::mt19937 random(3);
    const auto logits = random_logits(random, 100);
    SamplerOptions o = off();
    o.seed = 11;
    Sampler one(o);
    std::vector<TokenId> forwards, backwards(50);
    for (uint64_t position = 0; position < 50; ++position) forwards.push_back(one.sample(logits, {}, position));
    for (uint64_t position = 50; position-- > 0;) backwards[position] = Sampler(o).sample(logits, {}, position);
    EXPECT_EQ(forwards, backwards);
    o.seed = 12;
    std::vector<TokenId> other;
    for (uint64_t position = 0; position < 50; ++position) other.push_back(Sampler(o).sample(logits, {}, position));
    EXPECT_NE(forwards, other);
}

TEST(Sampler, DrawsFollowTheSoftmaxAtTheTemperature) {
    const std::vector<float> logits{2, 1, 0, -1};
    for (const float temperature : {0.5f, 1.0f, 2.0f}) {
        SamplerOptions o = off();
        o.temperature = temperature;
        Sampler sampler(o);
        std::vector<double> share(logits.size());
        constexpr int kDraws = 40000;
        for (int i = 0; i < kDraws; ++i) {
            share[static_cast<size_t>(sampler.sample(logits, {}, static_cast<uint64_t>(i)))] += 1.0 / kDraws;
        }
        const auto expected = softmax(logits, static_cast<double>(temperature));
        // Five standard deviations of a share of 40,000 draws.
        for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(share[i], expected[i], 0.0125) << temperature;
    }
}

// What each filter lets through, by its definition, over random logits and settings.
TEST(SamplerProperty, OnlyWhatTheFiltersKeepIsDrawn) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform;
    for (int round = 0; round < 300; ++round) {
        const auto logits = random_logits(random, 1 + random() % 60);
        SamplerOptions o = off();
        o.temperature = 0.1f + 3 * uniform(random);
        if (random() % 2 == 0) o.top_k = random() % 70;
        if (random() % 2 == 0) o.top_p = uniform(random);
        if (random() % 2 == 0) o.min_p = uniform(random) * 0.3f;
        o.seed = random();

        std::vector<size_t> order(logits.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
            return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
        });
        if (o.top_k != 0 && o.top_k < order.size()) order.resize(o.top_k);
        std::vector<float> kept;
        for (const size_t i : order) kept.push_back(logits[i]);
        const auto p = softmax(kept, 1);
        std::set<TokenId> allowed;
        double before = 0;
        for (size_t i = 0; i < order.size(); ++i) {
            // A little slack: the sums of test and sampler may differ in the last bit.
            const bool in_top_p = i == 0 || o.top_p >= 1 || before < static_cast<double>(o.top_p) + 1e-9;
            const bool in_min_p = i == 0 || p[i] >= static_cast<double>(o.min_p) * p[0] * (1 - 1e-6);
            if (in_top_p && in_min_p) allowed.insert(static_cast<TokenId>(order[i]));
            before += p[i];
        }
        Sampler sampler(o);
        for (uint64_t position = 0; position < 40; ++position) {
            const TokenId id = sampler.sample(logits, {}, position);
            ASSERT_TRUE(allowed.count(id)) << "round " << round << ", id " << id;
        }
    }
}

TEST(Sampler, AllThatTheFiltersKeepIsDrawnInTheEnd) {
    SamplerOptions o = off();
    o.top_k = 3;
    o.temperature = 5;
    Sampler sampler(o);
    std::set<TokenId> drawn;
    for (uint64_t position = 0; position < 200; ++position) {
        drawn.insert(sampler.sample(std::vector<float>{0, 3, 1, 2, -1}, {}, position));
    }
    EXPECT_EQ(drawn, (std::set<TokenId>{1, 2, 3}));
}

TEST(Sampler, RepetitionIsPenalisedWithinTheWindow) {
    SamplerOptions o;
    o.temperature = 0;
    o.repeat_penalty = 1.5f;
    o.repeat_last_n = 2;
    const std::vector<float> positive{3, 2.5f, 1};
    EXPECT_EQ(Sampler(o).sample(positive, std::vector<TokenId>{0, 2}, 0), 1);
    EXPECT_EQ(Sampler(o).sample(positive, std::vector<TokenId>{0, 2, 2}, 0), 0) << "out of the window";
    EXPECT_EQ(Sampler(o).sample(positive, std::vector<TokenId>{0, 0}, 0), 1) << "once, however often";
    const std::vector<float> negative{-1, -1.2f};
    EXPECT_EQ(Sampler(o).sample(negative, std::vector<TokenId>{0}, 0), 1) << "a negative logit becomes lower, too";
    EXPECT_EQ(Sampler(o).sample(positive, std::vector<TokenId>{-5, 77}, 0), 0) << "ids that are no token are ignored";
}

}  // namespace
}  // namespace weir
