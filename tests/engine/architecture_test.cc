// Every architecture against the decoder of tests/reference, which is written from the papers in another language and
// shares nothing with the engine; and against itself, however the tokens are batched and the weights paged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <utility>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

struct Case {
    const char* name;
    TinyShape shape;
    bool unusual = false;  // keys that the peer does not know or refuses for this architecture
};

std::vector<Case> cases() {
    TinyShape llama;
    llama.rope_linear_factor = 4;
    TinyShape qwen2;
    qwen2.architecture = "qwen2";
    qwen2.tied = true;
    TinyShape qwen3;
    qwen3.architecture = "qwen3";
    qwen3.head_dim = 24;
    TinyShape partly_rotated = qwen3;
    partly_rotated.rope_dims = 16;
    TinyShape gemma2;
    gemma2.architecture = "gemma2";
    gemma2.n_layers = 5;
    gemma2.head_dim = 24;
    gemma2.tied = true;
    gemma2.window = 7;
    gemma2.attention_soft_cap = 3;  // far below Gemma's 50: nothing in a tiny model comes near that
    gemma2.logit_soft_cap = 40;
    TinyShape gemma3;  // six layers and one, so that there is one that sees everything
    gemma3.architecture = "gemma3";
    gemma3.n_layers = 7;
    gemma3.head_dim = 24;
    gemma3.n_kv_heads = 1;
    gemma3.tied = true;
    gemma3.window = 9;
    gemma3.rope_linear_factor = 8;
    TinyShape mixtral;
    mixtral.n_experts = 5;
    TinyShape qwen2moe;
    qwen2moe.architecture = "qwen2moe";
    qwen2moe.n_experts = 7;
    qwen2moe.n_experts_used = 3;
    qwen2moe.expert_ffn_dim = 40;
    qwen2moe.shared_ffn_dim = 72;
    TinyShape qwen3moe;
    qwen3moe.architecture = "qwen3moe";
    qwen3moe.head_dim = 24;
    qwen3moe.n_experts = 16;
    qwen3moe.n_experts_used = 4;
    qwen3moe.expert_ffn_dim = 36;
    TinyShape olmoe;
    olmoe.architecture = "olmoe";
    olmoe.n_kv_heads = olmoe.n_heads;
    olmoe.n_experts = 8;
    olmoe.ffn_dim = 48;
    TinyShape all_experts = mixtral;
    all_experts.n_experts_used = 5;
    TinyShape chosen = qwen3moe;  // the router's other ways
    chosen.expert_gating = 3;
    chosen.expert_weights_scale = 1.5f;
    TinyShape not_normalised = qwen3moe;
    not_normalised.expert_weights_norm = false;
    not_normalised.expert_weights_scale = 2.5f;
    TinyShape normalised = qwen2moe;
    normalised.expert_weights_norm = true;
    return {{"llama", llama}, {"qwen2", qwen2}, {"qwen3", qwen3}, {"gemma2", gemma2}, {"gemma3", gemma3},
            {"mixtral", mixtral}, {"qwen2moe", qwen2moe}, {"qwen3moe", qwen3moe}, {"olmoe", olmoe},
            {"all_experts", all_experts}, {"partly_rotated", partly_rotated, true},
            {"softmax_of_chosen", chosen, true}, {"not_normalised", not_normalised, true},
            {"normalised", normalised, true}};
}

std::vector<int32_t> random_ids(size_t n, size_t n_vocab) {
    std::mt19937 random(31);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % n_vocab);
    return ids;
}

std::vector<double> reference_logits(const std::string& model, const std::vector<int32_t>& ids, size_t n_vocab) {
    std::ostringstream words;
    words << WEIR_REFERENCE_DECODER << ' ' << model;
    for (const int32_t id : ids) words << ' ' << id;
    const std::string command = words.str();
    std::vector<double> logits(ids.size() * n_vocab + 1);
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    const size_t n = std::fread(logits.data(), sizeof(double), logits.size(), pipe);
    EXPECT_EQ(::pclose(pipe), 0) << command;
    EXPECT_EQ(n, ids.size() * n_vocab) << command;
    logits.resize(n);
    return logits;
}

class Architectures : public testing::TestWithParam<Case> {};

TEST_P(Architectures, AgreeWithTheReference) {
    const TinyShape& shape = GetParam().shape;
    const TinyModelFile file(shape);
    const auto ids = random_ids(40, shape.n_vocab);
    const auto expected = reference_logits(file.path(), ids, shape.n_vocab);
    const auto logits = Engine(file.path(), {}).logits(ids, 16);
    ASSERT_EQ(logits.size(), expected.size());
    double worst = 0, least = HUGE_VAL, most = -HUGE_VAL;
    for (size_t i = 0; i < logits.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - expected[i]));
        least = std::min(least, expected[i]);
        most = std::max(most, expected[i]);
    }
    std::printf("largest difference %.1e, logits from %.1f to %.1f\n", worst, least, most);
    EXPECT_LT(worst, 1e-4);
    EXPECT_GT(most - least, 4);
}

TEST_P(Architectures, LogitsDoNotDependOnBatchesThreadsOrTheCache) {
    const TinyShape& shape = GetParam().shape;
    const TinyModelFile file(shape);
    const auto ids = random_ids(37, shape.n_vocab);
    EngineOptions options;
    options.forms = ActivationForms::product();
    const auto expected = Engine(file.path(), options).logits(ids, 1);
    for (const size_t threads : {1, 3}) {
        options.threads = threads;
        Engine engine(file.path(), options);
        for (const size_t chunk : {1, 5, 37}) {
            engine.cache->set_length(0);
            const auto logits = engine.logits(ids, chunk);
            ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)))
                << threads << " threads, passes of " << chunk;
        }
    }
}

// Quantised experts take other forms of their inputs than the float ones above, and downs another than gates.
TEST(Experts, QuantisedOnesComeClose) {
    TinyShape shape;
    shape.architecture = "qwen2moe";
    shape.n_experts = 6;
    shape.expert_ffn_dim = 256;
    shape.body = kernels::Type::kQ4_0;
    shape.down = kernels::Type::kQ6_K;
    shape.shared_ffn_dim = 256;
    const TinyModelFile file(shape);
    const auto ids = random_ids(24, shape.n_vocab);
    const auto truth = Engine(file.path(), {}).logits(ids, 8);
    EngineOptions rough;
    rough.forms = ActivationForms::all(kernels::Activation::kFine);
    const auto all = Engine(file.path(), rough).logits(ids, 24);
    rough.threads = 2;
    EXPECT_EQ(all, Engine(file.path(), rough).logits(ids, 1));
    double squares = 0, error = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
        squares += static_cast<double>(truth[i]) * static_cast<double>(truth[i]);
        error += std::pow(static_cast<double>(truth[i]) - static_cast<double>(all[i]), 2);
    }
    // Cells without outliers take 8 bits in this form, too; a wrong expert or a wrong row would be an error near 1.
    EXPECT_LT(std::sqrt(error / squares), 0.03);
}

TEST_P(Architectures, SameBitsWhenPaged) {
    const TinyShape& shape = GetParam().shape;
    const TinyModelFile file(shape);
    const auto ids = random_ids(12, shape.n_vocab);
    EngineOptions options;
    const auto expected = Engine(file.path(), options).logits(ids, 5);
    options.paging = PagingMode::kAdvised;
    options.threads = 2;
    for (const uint64_t budget : {96 << 10, 300 << 10}) {
        options.frame_bytes = budget;
        Engine engine(file.path(), options);
        for (const size_t chunk : {1, 5}) {
            engine.cache->set_length(0);
            const auto logits = engine.logits(ids, chunk);
            ASSERT_EQ(0, std::memcmp(expected.data(), logits.data(), expected.size() * sizeof(float)));
        }
    }
}

// What a prebuilt llama.cpp answers to PROMPT_TOKENS ids, by a driver that prints them as JSON: usage: DRIVER MODEL mmap 0
// THREADS PROMPT_TOKENS NEW_TOKENS CONTEXT. Its prompt is known.
struct PeersAnswer {
    std::vector<int32_t> prompt, ids;
};
PeersAnswer ask_peer(const char* driver, const std::string& model, size_t n_vocab) {
    constexpr size_t kPrompt = 24, kAnswer = 32;
    PeersAnswer answer;
    answer.prompt.push_back(1);
    for (size_t i = 1; i < kPrompt; ++i) answer.prompt.push_back(static_cast<int32_t>((300 + i * 7919) % n_vocab));
    std::ostringstream words;
    words << driver << ' ' << model << " mmap 0 1 " << kPrompt << ' ' << kAnswer << " 64";
    std::FILE* const pipe = ::popen(words.str().c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    EXPECT_EQ(::pclose(pipe), 0) << words.str();
    std::istringstream numbers(text.substr(std::min(text.size(), text.find("\"ids\":[") + 6)));
    for (char before; answer.ids.size() < kAnswer && numbers >> before;) {
        int32_t id = 0;
        if (!(numbers >> id)) break;
        answer.ids.push_back(id);
    }
    EXPECT_EQ(answer.ids.size(), kAnswer) << text;
    return answer;
}

// Greedy, and the same at every step whose first two logits differ by more than 0.5.
TEST_P(Architectures, ChooseAsLlamaCppDoes) {
    const char* const driver = std::getenv("WEIR_PEER");
    if (driver == nullptr) GTEST_SKIP() << "WEIR_PEER names no driver of a prebuilt llama.cpp";
    if (GetParam().unusual) GTEST_SKIP() << "keys that llama.cpp does not honour";
    const TinyShape& shape = GetParam().shape;
    const TinyModelFile file(shape);
    const PeersAnswer peer = ask_peer(driver, file.path(), shape.n_vocab);
    if (HasFailure()) return;
    std::vector<int32_t> ids = peer.prompt;
    ids.insert(ids.end(), peer.ids.begin(), peer.ids.end() - 1);
    const auto logits = Engine(file.path(), {}).logits(ids, ids.size());
    size_t clear = 0;
    for (size_t step = 0; step < peer.ids.size(); ++step) {
        std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>((peer.prompt.size() - 1 + step) * shape.n_vocab),
                               logits.begin() + static_cast<std::ptrdiff_t>((peer.prompt.size() + step) * shape.n_vocab));
        const auto best = std::max_element(row.begin(), row.end());
        const auto choice = static_cast<int32_t>(best - row.begin());
        const float first = std::exchange(*best, -HUGE_VALF);
        if (first - *std::max_element(row.begin(), row.end()) <= 0.5f) continue;
        ++clear;
        EXPECT_EQ(choice, peer.ids[step]) << "at step " << step;
    }
    std::printf("%zu of %zu steps are clear\n", clear, peer.ids.size());
    EXPECT_GT(clear, 0u);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Architectures, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir::test
