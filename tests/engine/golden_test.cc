// Real models against llama.cpp's answers (figures in the shared material): the same stories, the same first choices,
// and logits no farther from the truth. F32 KV cache throughout.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/engine/score.h"
#include "tests/engine/engine_fixture.h"
#include "tests/material.h"

namespace weir::test {
namespace {

using kernels::Activation;
using nlohmann::json;

json read_json(const std::filesystem::path& path) {
    std::ifstream in(path);
    return json::parse(in);
}

// Files that scripts/fetch_model.sh leaves in the cache folder.
std::filesystem::path cached_file(const char* name) {
    const char* cache = std::getenv("WEIR_CACHE");
    if (cache != nullptr) return std::filesystem::path(cache) / name;
    const char* home = std::getenv("HOME");
    return std::filesystem::path(home != nullptr ? home : ".") / ".cache/weir" / name;
}
std::filesystem::path smollm2_file() { return cached_file("SmolLM2-135M-Instruct.Q4_1.gguf"); }
std::filesystem::path gemma3_file() { return cached_file("gemma-3-270m.Q4_K_M.gguf"); }

EngineOptions options(const ActivationForms& forms) {
    EngineOptions o;
    o.threads = default_thread_count();
    o.max_batch = o.logit_rows = 160;
    o.n_ctx = 512;
    o.forms = forms;
    return o;
}

size_t largest(std::span<const float> logits) {
    return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float gap_of_first_two(std::span<const float> logits) {
    std::vector<float> sorted(logits.begin(), logits.end());
    std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
    return *std::max_element(sorted.begin(), sorted.begin() + 1) - sorted[1];
}

double range_of(const std::vector<float>& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return static_cast<double>(*high) - static_cast<double>(*low);
}

double worst_distance(std::span<const float> a, const std::vector<float>& b) {
    double worst = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    }
    return worst;
}

// Logits of every step of an answer: row 0 after the prompt, row i after ids[i - 1]. In one pass: how tokens are batched
// does not change a bit, as forward_test shows.
std::vector<std::span<const float>> answer_logits(Engine& engine, const std::vector<int32_t>& prompt,
                                                  const std::vector<int32_t>& ids) {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), ids.begin(), ids.end() - 1);
    engine.cache->set_length(0);
    const std::span<const float> logits = engine.forward->pass(all, ids.size(), false);
    std::vector<std::span<const float>> rows;
    for (size_t i = 0; i < ids.size(); ++i) rows.push_back(logits.subspan(i * engine.config.n_vocab, engine.config.n_vocab));
    return rows;
}

// The first step whose choice is another one, and not by a near tie; the number of steps where there is none.
size_t first_difference(const std::vector<std::span<const float>>& rows, const std::vector<int32_t>& expected,
                        float near_tie) {
    for (size_t i = 0; i < expected.size(); ++i) {
        if (static_cast<int32_t>(largest(rows[i])) != expected[i] && gap_of_first_two(rows[i]) > near_tie) return i;
    }
    return expected.size();
}

TEST(Golden, Stories260kTellsLlamaCppsStory) {
    const auto model = shared_file("models/stories260K-F32.gguf");
    const auto figures = shared_file("models/expected/stories260K-F32.json");
    if (!require_material(model) || !require_material(figures)) return;
    const json expected = read_json(figures);
    Engine engine(model.string(), options(ActivationForms::product()));
    const auto expected_first = expected.at("logits_after_prompt").get<std::vector<float>>();
    const auto expected_last = expected.at("logits_at_last_step").get<std::vector<float>>();
    const auto expected_ids = expected.at("greedy_ids").get<std::vector<int32_t>>();

    // Free, token by token.
    std::vector<int32_t> ids;
    std::span<const float> logits = engine.forward->pass(expected.at("prompt_ids").get<std::vector<int32_t>>(), 1, true);
    EXPECT_LT(worst_distance(logits, expected_first), 1e-3 * range_of(expected_first));
    for (;;) {
        ids.push_back(static_cast<int32_t>(largest(logits)));
        if (ids.size() == expected_ids.size()) break;
        logits = engine.forward->pass({&ids.back(), 1}, 1, true);
    }
    EXPECT_EQ(ids, expected_ids);
    EXPECT_LT(worst_distance(logits, expected_last), 1e-3 * range_of(expected_last));
}

TEST(Golden, Stories260kInHalfPrecisionStaysClose) {
    const auto model = shared_file("models/stories260K-F16.gguf");
    const auto figures = shared_file("models/expected/stories260K-F32.json");
    if (!require_material(model) || !require_material(figures)) return;
    const json expected = read_json(figures);
    Engine engine(model.string(), options(ActivationForms::product()));
    // Rounded weights choose as the full ones do, but where the first two are close.
    const auto answer = expected.at("greedy_ids").get<std::vector<int32_t>>();
    const std::vector<int32_t> start(answer.begin(), answer.begin() + 150);
    const auto steps = answer_logits(engine, expected.at("prompt_ids"), start);
    EXPECT_EQ(first_difference(steps, start, 0.2f), start.size());
    const auto expected_first = expected.at("logits_after_prompt").get<std::vector<float>>();
    EXPECT_LT(worst_distance(steps.front(), expected_first), 1e-2 * range_of(expected_first));
}

TEST(Golden, WeirDemo8mFollowsLlamaCpp) {
    const auto model = shared_file("models/weir-demo-8m-f16.gguf");
    const auto figures = shared_file("models/expected/weir-demo-8m-f16.json");
    if (!require_material(model) || !require_material(figures)) return;
    Engine engine(model.string(), options(ActivationForms::product()));
    for (const json& c : read_json(figures)) {
        SCOPED_TRACE(c.at("prompt").get<std::string>());
        const auto ids = c.at("greedy_ids").get<std::vector<int32_t>>();
        const auto rows = answer_logits(engine, c.at("prompt_ids"), ids);
        EXPECT_EQ(first_difference(rows, ids, 0.05f), ids.size());
        const auto expected_first = c.at("logits_after_prompt").get<std::vector<float>>();
        const auto expected_last = c.at("logits_at_last_step").get<std::vector<float>>();
        EXPECT_LT(worst_distance(rows.front(), expected_first), 5e-3 * range_of(expected_first));
        EXPECT_LT(worst_distance(rows.back(), expected_last), 5e-3 * range_of(expected_last));
    }
}

struct Fidelity {
    double mean_distance = 0;        // of the eight highest logits of the truth
    size_t steps = 0;
    size_t wrong_first_choices = 0;  // where the truth's first two differ by more than a near tie
    double mean_kl = 0;              // from `exact`, over the whole vocabulary, nats a step
};

// exact: the same weights with float activations; nullptr where the divergence is not wanted.
Fidelity measure(Engine& engine, const json& expected, double near_tie, Engine* exact = nullptr) {
    Fidelity f;
    size_t n = 0;
    for (const json& c : expected.at("cases")) {
        const json& truth = c.at("top8_f32");
        const auto rows = answer_logits(engine, c.at("prompt_ids"), c.at("ids"));
        std::vector<std::span<const float>> exact_rows;
        if (exact != nullptr) exact_rows = answer_logits(*exact, c.at("prompt_ids"), c.at("ids"));
        for (size_t step = 0; step < truth.size(); ++step) {
            if (exact != nullptr) f.mean_kl += divergence(exact_rows[step], rows[step], 0).kl;
            for (const json& pair : truth[step]) {
                f.mean_distance += std::abs(static_cast<double>(rows[step][pair[0].get<size_t>()]) - pair[1].get<double>());
                ++n;
            }
            const bool clear = truth[step][0][1].get<double>() - truth[step][1][1].get<double>() > near_tie;
            if (clear && largest(rows[step]) != truth[step][0][0].get<size_t>()) ++f.wrong_first_choices;
            ++f.steps;
        }
    }
    f.mean_distance /= static_cast<double>(n);
    f.mean_kl /= static_cast<double>(f.steps);
    return f;
}

// What its activations cost it on these weights: the lesser of its figures on the two held-out texts, which
// scripts/check_fidelity.py compares ours with.
constexpr double kLlamaCppKl = 0.002761;

TEST(Golden, SmolLm2IsNoFartherFromTheTruthThanLlamaCpp) {
    const auto figures = shared_file("models/expected/smollm2-q4_1.json");
    if (!require_material(smollm2_file()) || !require_material(figures)) return;
    const json expected = read_json(figures);
    const double theirs = expected.at("mean_abs_logit_distance_to_f32").get<double>();
    Engine engine(smollm2_file().string(), options(ActivationForms::product()));
    Engine exact(smollm2_file().string(), options(ActivationForms::all(Activation::kF32)));
    const Fidelity f = measure(engine, expected, 0.5, &exact);
    std::printf("mean distance of the eight highest logits to the truth: %.4f, llama.cpp's %.4f; KL %.6f nats, llama.cpp's on texts %.6f\n",
                f.mean_distance, theirs, f.mean_kl, kLlamaCppKl);
    EXPECT_EQ(f.wrong_first_choices, 0u) << "of " << f.steps;
    EXPECT_LE(f.mean_distance, theirs / 2);
    EXPECT_GT(f.mean_kl, 0);
    EXPECT_LE(f.mean_kl, kLlamaCppKl / 2);
}

// What rounded keys and values cost on the traces, everything else alike: less than llama.cpp's activations cost it.
TEST(Golden, SmolLm2WithAQuantisedCacheStaysClose) {
    const auto figures = shared_file("models/expected/smollm2-q4_1.json");
    if (!require_material(smollm2_file()) || !require_material(figures)) return;
    const json expected = read_json(figures);
    EngineOptions o = options(ActivationForms::product());
    o.kv_type = KvType::kF16;
    Engine half(smollm2_file().string(), o);
    o.kv_type = KvType::kQ8_0;
    Engine engine(smollm2_file().string(), o);
    const Fidelity f = measure(engine, expected, 0.5, &half);
    std::printf("KV cache of q8_0: KL to f16 %.6f nats, mean distance of the eight highest logits to the truth %.4f\n", f.mean_kl,
                f.mean_distance);
    EXPECT_GT(f.mean_kl, 0);
    EXPECT_LE(f.mean_kl, kLlamaCppKl);
    EXPECT_LE(f.mean_distance, expected.at("mean_abs_logit_distance_to_f32").get<double>());
}

// Follows the F32 twin's answers, each up to a step whose first two logits are all but equal.
void expect_f32_answers(Engine& engine, const json& expected) {
    for (const json& c : expected.at("cases")) {
        SCOPED_TRACE(c.at("prompt").get<std::string>());
        const auto ids = c.at("ids_f32").get<std::vector<int32_t>>();
        const auto rows = answer_logits(engine, c.at("prompt_ids"), ids);
        for (size_t step = 0; step < ids.size(); ++step) {
            if (static_cast<int32_t>(largest(rows[step])) == ids[step]) continue;
            EXPECT_LE(c.at("margins_f32")[step].get<double>(), 0.05) << "at step " << step;
            break;
        }
    }
}

TEST(Golden, SmolLm2WithFloatActivationsAnswersLikeItsF32Twin) {
    const auto figures = shared_file("models/expected/smollm2-q4_1.json");
    if (!require_material(smollm2_file()) || !require_material(figures)) return;
    const json expected = read_json(figures);
    Engine engine(smollm2_file().string(), options(ActivationForms::all(Activation::kF32)));
    expect_f32_answers(engine, expected);
    EXPECT_LT(measure(engine, expected, 0.5).mean_distance, 0.005);
}

// Gemma 3 270M: llama.cpp's own choice changes with the activations' form where the first two differ by up to 0.63.
TEST(Golden, Gemma3IsNoFartherFromTheTruthThanLlamaCpp) {
    const auto figures = shared_file("models/expected/gemma3-270m-q4_k_m.json");
    if (!require_material(gemma3_file()) || !require_material(figures)) return;
    const json expected = read_json(figures);
    const double theirs = expected.at("mean_abs_logit_distance_to_f32").get<double>();
    Engine engine(gemma3_file().string(), options(ActivationForms::product()));
    const Fidelity f = measure(engine, expected, 1.0);
    std::printf("mean distance of the eight highest logits to the truth: %.4f, llama.cpp's %.4f\n", f.mean_distance, theirs);
    EXPECT_EQ(f.wrong_first_choices, 0u) << "of " << f.steps;
    EXPECT_LE(f.mean_distance, theirs / 2);
}

// 15 of its 18 layers see 512 tokens: past them and a pass of 160, what is left of the cache says the same as all of it.
TEST(Golden, Gemma3KeepsItsWindowsOnly) {
    if (!require_material(gemma3_file())) return;
    EngineOptions o = options(ActivationForms::product());
    o.kv_type = KvType::kF16;
    o.n_ctx = 900;
    o.logit_rows = 1;
    std::vector<std::vector<float>> logits;
    std::vector<size_t> bytes;
    for (const bool rings : {false, true}) {
        o.rings = rings;
        Engine engine(gemma3_file().string(), o);
        std::span<const float> last;
        for (size_t at = 0; at < 900; at += 150) {
            std::vector<int32_t> ids(150);
            for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(1000 + (at + i) * 7919 % 100000);
            last = engine.forward->pass(ids, 1, true);
        }
        logits.emplace_back(last.begin(), last.end());
        bytes.push_back(engine.cache->bytes());
    }
    EXPECT_EQ(logits[0], logits[1]);
    EXPECT_EQ(bytes[1] * 18 * 904, bytes[0] * (3 * 904 + 15 * 704));
}

TEST(Golden, Gemma3WithFloatActivationsAnswersLikeItsF32Twin) {
    const auto figures = shared_file("models/expected/gemma3-270m-q4_k_m.json");
    if (!require_material(gemma3_file()) || !require_material(figures)) return;
    const json expected = read_json(figures);
    Engine engine(gemma3_file().string(), options(ActivationForms::all(Activation::kF32)));
    expect_f32_answers(engine, expected);
    const Fidelity f = measure(engine, expected, 0.05);
    std::printf("mean distance of the eight highest logits to the truth, float activations: %.4f\n", f.mean_distance);
    EXPECT_EQ(f.wrong_first_choices, 0u) << "of " << f.steps;
    EXPECT_LT(f.mean_distance, 0.005);
}

}  // namespace
}  // namespace weir::test
