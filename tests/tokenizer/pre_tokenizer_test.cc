#include "runtime/model/tokenizer_pre.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace weir {
namespace {

using testing::ElementsAre;

using Words = std::vector<std::string_view>;

class PreTokenizers : public testing::TestWithParam<std::tuple<const char*, bool>> {
  protected:
    const std::unique_ptr<PreTokenizer> pre_ = PreTokenizer::create(std::get<0>(GetParam()), std::get<1>(GetParam()));

    Words split(std::string_view text) const {
        Words words;
        pre_->split(text, words);
        return words;
    }

    static std::string joined(const Words& words) {
        std::string text;
        for (const std::string_view word : words) text += word;
        return text;
    }
};

Words split(const char* name, std::string_view text) {
    Words words;
    PreTokenizer::create(name)->split(text, words);
    return words;
}

TEST(PreTokenizer, Gpt2) {
    EXPECT_THAT(split("gpt-2", "it's 12345  ok!?\n\n x"),
                ElementsAre("it", "'s", " 12345", " ", " ok", "!?", "\n\n", " x"));
}

TEST(PreTokenizer, Llama3) {
    EXPECT_THAT(split("llama-bpe", "it'S 12345  ok!?\n\n x"),
                ElementsAre("it", "'S", " ", "123", "45", " ", " ok", "!?\n\n", " x"));
}

TEST(PreTokenizer, Qwen2) {
    EXPECT_THAT(split("qwen2", "it'S 12  ok!?\n\n x"),
                ElementsAre("it", "'S", " ", "1", "2", " ", " ok", "!?\n\n", " x"));
}

// What stands before a digit does not see it: both blanks are one word.
TEST(PreTokenizer, Smollm) {
    EXPECT_THAT(split("smollm", "it's  12 ok"), ElementsAre("it", "'s", "  ", "1", "2", " ok"));
}

TEST(PreTokenizer, Default) {
    EXPECT_THAT(split("default", "a+(b) 12345  ok"), ElementsAre("a", "+(", "b", ")", " ", "123", "45", " ", " ok"));
}

// Unicode's White_Space, U+0085 included and U+180E not.
TEST(PreTokenizer, BlanksAreUnicodes) {
    EXPECT_THAT(split("gpt-2", "a\u0085\u3000\u2028"), ElementsAre("a", "\u0085\u3000\u2028"));
    EXPECT_THAT(split("gpt-2", "a \u180E!"), ElementsAre("a", " \u180E!"));
}

TEST(PreTokenizer, Names) {
    EXPECT_EQ(PreTokenizer::known_names(), "default, gpt-2, llama-bpe, qwen2, smollm");
    EXPECT_EQ(PreTokenizer::create(""), nullptr);
    EXPECT_EQ(PreTokenizer::create("gpt"), nullptr);
    EXPECT_NE(PreTokenizer::create("llama3"), nullptr);
    EXPECT_NE(PreTokenizer::create("llama-v3"), nullptr);
}

TEST_P(PreTokenizers, InvalidBytesAreWordsByThemselves) {
    EXPECT_THAT(split("ab\xFF\xC3"), ElementsAre("ab", "\xFF", "\xC3"));
    EXPECT_THAT(split("\xE2\x96 b"), ElementsAre("\xE2", "\x96", " b"));
    EXPECT_THAT(split(""), ElementsAre());
}

// Texts that invite quadratic time. Over a quarter of a megabyte it would be minutes: the test's time limit tells.
TEST_P(PreTokenizers, LongRunsTakeLinearTime) {
    constexpr size_t kBytes = 1 << 18;
    const std::string blanks(kBytes, ' ');
    const auto repeat = [](std::string_view unit) {
        std::string text;
        text.reserve(kBytes);
        while (text.size() < kBytes) text += unit;
        return text;
    };
    for (const std::string& text :
         {blanks, blanks + "x", blanks + "1", blanks + "\nx", blanks + "\xFF", repeat("a"), repeat("1"), repeat("!"),
          repeat("\n"), repeat("\r\n"), repeat(" \n"), repeat("'"), repeat("\xFF"), repeat("\xE2\x96"),
          repeat("\u00A0"), repeat("\u00E9"), repeat("x "), repeat("    x")}) {
        const Words words = split(text);
        ASSERT_TRUE(joined(words) == text) << testing::PrintToString(text.substr(0, 8));
        for (const std::string_view word : words) ASSERT_FALSE(word.empty());
    }
}

// Above pcre2's default limit of ten million steps.
TEST(PreTokenizer, MoreBlanksThanPcre2sMatchLimit) {
    const std::string text = std::string(10'500'000, ' ') + "x";
    for (const bool jit : {false, true}) {
        Words words;
        PreTokenizer::create("llama-bpe", jit)->split(text, words);
        ASSERT_EQ(words.size(), 2u);
        EXPECT_EQ(words[0].size(), 10'499'999u);
        EXPECT_EQ(words[1], " x");
    }
}

INSTANTIATE_TEST_SUITE_P(All, PreTokenizers,
                         testing::Combine(testing::Values("default", "gpt-2", "llama-bpe", "qwen2", "smollm"),
                                          testing::Bool()),
                         [](const auto& info) {
                             std::string name = std::get<0>(info.param);
                             for (char& c : name) c = c == '-' ? '_' : c;
                             return name + (std::get<1>(info.param) ? "_jit" : "_interpreted");
                         });

}  // namespace
}  // namespace weir
