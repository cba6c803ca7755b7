// Golden tests: the texts that come with public vocabularies give exactly the ids of the models' own tokenizers.
#include <cstdio>

#include "tests/tokenizer/vocab_material.h"

namespace weir {
namespace {

// Every vocabulary's file has the same texts.
constexpr size_t kTexts = 46;

struct Suite {
    const char* name;
    const char* gguf;  // in the shared folder; without one, a model's own file in the cache folder
    const char* stem;  // of .inp and .out in shared/vocabs
};

constexpr Suite kSuites[] = {
    {"llama_spm", "vocabs/ggml-vocab-llama-spm.gguf", "vocabs/ggml-vocab-llama-spm.gguf"},
    {"phi_3", "vocabs/ggml-vocab-phi-3.gguf", "vocabs/ggml-vocab-phi-3.gguf"},
    {"llama_bpe", "vocabs/ggml-vocab-llama-bpe.gguf", "vocabs/ggml-vocab-llama-bpe.gguf"},
    {"gpt_2", "vocabs/ggml-vocab-gpt-2.gguf", "vocabs/ggml-vocab-gpt-2.gguf"},
    {"qwen2", "vocabs/ggml-vocab-qwen2.gguf", "vocabs/ggml-vocab-qwen2.gguf"},
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "vocabs/smollm2"},
    {"gemma3", "gemma-3-270m.Q4_K_M.gguf", "vocabs/gemma3"},
};

std::filesystem::path gguf_of(const Suite& suite) {
    const std::string name = suite.gguf;
    return name.find('/') != name.npos ? test::shared_file(name) : test::cached_file(suite.gguf);
}

std::vector<test::VocabCase> cases_of(const Suite& suite) {
    const std::string stem = suite.stem;
    return test::read_vocab_cases(test::shared_file(stem + ".inp"), test::shared_file(stem + ".out"));
}

class VocabSuite : public testing::TestWithParam<Suite> {
  protected:
    bool material() const {
        return test::require_material(test::shared_file(std::string(GetParam().stem) + ".inp")) &&
               test::require_material(gguf_of(GetParam()));
    }
};

class VocabSuiteText : public testing::TestWithParam<std::tuple<Suite, size_t>> {};

TEST_P(VocabSuite, HasAllTexts) {
    if (!material()) return;
    EXPECT_EQ(cases_of(GetParam()).size(), kTexts);
}

TEST_P(VocabSuiteText, GivesTheExpectedIds) {
    const auto& [suite, number] = GetParam();
    if (!test::require_material(test::shared_file(std::string(suite.stem) + ".inp"))) return;
    if (!test::require_material(gguf_of(suite))) return;
    const std::vector<test::VocabCase> cases = cases_of(suite);
    ASSERT_LT(number, cases.size());
    const Tokenizer& tokenizer = test::load_tokenizer(gguf_of(suite));
    const std::string& text = cases[number].text;
    const std::vector<TokenId> ids = tokenizer.encode(text, false, false);
    EXPECT_EQ(ids, cases[number].ids) << "text " << number << ": " << testing::PrintToString(text);
    EXPECT_EQ(tokenizer.decode(ids), text) << "text " << number;
}

std::string numbered(const testing::TestParamInfo<std::tuple<Suite, size_t>>& info) {
    char number[8];
    std::snprintf(number, sizeof(number), "%02u", static_cast<unsigned>(std::get<1>(info.param)));
    return std::string(std::get<0>(info.param).name) + "_" + number;
}

INSTANTIATE_TEST_SUITE_P(Vocabs, VocabSuite, testing::ValuesIn(kSuites),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Vocabs, VocabSuiteText,
                         testing::Combine(testing::ValuesIn(kSuites), testing::Range<size_t>(0, kTexts)), numbered);

}  // namespace
}  // namespace weir
