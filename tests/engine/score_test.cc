// Scoring a text: the arithmetic against closed forms, and windows against plain passes over the same tokens.
#include "runtime/engine/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

TEST(Score, SurpriseOfKnownDistributions) {
    const std::vector<float> even(8, 3.0f);
    EXPECT_NEAR(surprise(even, 5), std::log(8.0), 1e-12);
    const std::vector<float> skewed = {static_cast<float>(std::log(6.0)), static_cast<float>(std::log(3.0)), 0.0f};
    EXPECT_NEAR(surprise(skewed, 0), -std::log(0.6), 1e-6);
    EXPECT_NEAR(surprise(skewed, 2), -std::log(0.1), 1e-6);
    const std::vector<float> large = {10000.0f, 9999.0f};  // no overflow
    EXPECT_NEAR(surprise(large, 1), 1 + std::log1p(std::exp(-1.0)), 1e-9);
}

TEST(Score, DivergenceOfKnownDistributions) {
    const std::vector<float> p = {static_cast<float>(std::log(0.5)), static_cast<float>(std::log(0.25)), static_cast<float>(std::log(0.25))};
    const std::vector<float> q = {static_cast<float>(std::log(0.25)), static_cast<float>(std::log(0.5)), static_cast<float>(std::log(0.25))};
    const Divergence d = divergence(p, q, 1);
    EXPECT_NEAR(d.kl, 0.25 * std::log(2.0), 1e-6);  // 0.5 log 2 - 0.25 log 2
    EXPECT_FALSE(d.same_first);
    EXPECT_NEAR(d.surprise, std::log(2.0), 1e-6);
    EXPECT_NEAR(d.truth_surprise, std::log(4.0), 1e-6);
    std::vector<float> shifted = p;  // a shift of all logits changes nothing
    for (float& x : shifted) x += 7;
    EXPECT_NEAR(divergence(p, shifted, 0).kl, 0, 1e-6);
    EXPECT_TRUE(divergence(p, shifted, 0).same_first);
}

TEST(Score, TotalsAndIntervals) {
    WindowScore a(8, false), b(8, false);
    a.surprise = {1, 2, 3};
    b.surprise = {2, 2, 2};
    const std::vector<WindowScore> windows = {a, b};
    const Total t = total_of(windows);
    EXPECT_EQ(t.scored, 6u);
    EXPECT_NEAR(t.nll, 2, 1e-12);
    EXPECT_NEAR(t.perplexity(), std::exp(2.0), 1e-9);
    EXPECT_NEAR(t.nll_error, std::sqrt((2.0 / 6) / 5), 1e-12);
    const std::vector<double> same(20, 0.25);
    EXPECT_EQ(bootstrap(same).low, 0.25);
    EXPECT_EQ(bootstrap(same).high, 0.25);
    std::mt19937_64 random(3);
    std::vector<double> noise;
    for (int i = 0; i < 400; ++i) noise.push_back(static_cast<double>(random() % 1000));
    const Interval i = bootstrap(noise);  // uniform over 0 to 1000: standard error 289 / 20
    EXPECT_LT(i.low, i.mean);
    EXPECT_LT(i.mean, i.high);
    EXPECT_NEAR(i.high - i.low, 2 * 1.96 * 289 / 20, 12);
    EXPECT_EQ(bootstrap(noise).low, i.low);
}

TEST(Score, AWindowIsScoredAsPlainPassesWould) {
    TinyShape shape;
    shape.body = shape.embedding = shape.head = kernels::Type::kQ8_0;
    const TinyModelFile file(shape);
    EngineOptions options;
    options.threads = 2;
    options.forms = ActivationForms::product();
    Engine engine(file.path(), options);
    options.forms = ActivationForms::all(kernels::Activation::kF32);
    Engine truth(file.path(), options);
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) ids.push_back(3 + i * 37 % 290);
    const size_t n_vocab = engine.config.n_vocab, first = ids.size() / 2;
    const std::vector<float> logits = engine.logits(ids, 64), exact = truth.logits(ids, 64);

    for (const size_t rows : {1u, 7u, 64u}) {
        for (const bool compared : {false, true}) {
            WindowScore score(ids.size(), compared);
            ASSERT_EQ(score.surprise.size(), scored_per_window(ids.size()));
            score_window(ids, {engine.forward.get(), engine.cache.get()},
                         compared ? std::optional(Reader{truth.forward.get(), truth.cache.get()}) : std::nullopt, *engine.team, rows, true, &score);
            for (size_t i = 0; i < score.surprise.size(); ++i) {
                const auto row = std::span(logits).subspan((first + i) * n_vocab, n_vocab);
                EXPECT_EQ(score.surprise[i], surprise(row, ids[first + i + 1]));
                if (!compared) continue;
                const Divergence d = divergence(std::span(exact).subspan((first + i) * n_vocab, n_vocab), row, ids[first + i + 1]);
                EXPECT_EQ(score.compared[i].kl, d.kl);
                EXPECT_GE(d.kl, 0);
                EXPECT_LT(d.kl, 0.1);
            }
        }
    }
    EXPECT_EQ(scored_per_window(512), 255u);
    EXPECT_EQ(scored_per_window(kLeastWindow), 1u);
}

}  // namespace
}  // namespace weir::test
