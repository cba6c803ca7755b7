// Every architecture against the decoder of tests/reference, which is written from the papers in another language and
// shares nothing with the engine; and against itself, however the tokens are batched and the weights paged.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

struct Case {
    const char* name;
    TinyShape shape;
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
    qwen3.rope_dims = 16;
    TinyShape gemma2;
    gemma2.architecture = "gemma2";
    gemma2.n_layers = 5;
    gemma2.head_dim = 24;
    gemma2.tied = true;
    gemma2.window = 7;
    gemma2.attention_soft_cap = 3;  // far below Gemma's 50 and 30: nothing in a tiny model comes near those
    gemma2.logit_soft_cap = 8;
    TinyShape gemma3;  // six layers and one, so that there is one that sees everything
    gemma3.architecture = "gemma3";
    gemma3.n_layers = 7;
    gemma3.head_dim = 24;
    gemma3.n_kv_heads = 1;
    gemma3.tied = true;
    gemma3.window = 9;
    gemma3.rope_linear_factor = 8;
    return {{"llama", llama}, {"qwen2", qwen2}, {"qwen3", qwen3}, {"gemma2", gemma2}, {"gemma3", gemma3}};
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

INSTANTIATE_TEST_SUITE_P(Tiny, Architectures, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir::test
