// Both families on small vocabularies: what the public suites do not reach, and files that are not as they should be.
#include "runtime/model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "runtime/error.h"
#include "tests/tokenizer/small_vocab.h"

namespace weir {
namespace {

using test::byte_character;
using test::small_bpe;
using test::small_spm;
using test::SmallVocab;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Ids = std::vector<TokenId>;

Ids encode_texts(const Tokenizer& tokenizer, std::initializer_list<std::string_view> texts) {
    Ids ids;
    for (const std::string_view text : texts) ids.push_back(tokenizer.find(text).value());
    return ids;
}

std::string error_of(const SmallVocab& vocab, const std::string& pre_tokenizer = {}) {
    try {
        vocab.tokenizer(pre_tokenizer);
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

// Sets a key to a value, beside or instead of what the vocabulary adds.
template <class T>
SmallVocab with(SmallVocab vocab, const std::string& key, T value) {
    vocab.also = [also = vocab.also, key, value](GgufWriter& w) {
        if (also) also(w);
        w.add(key, value);
    };
    return vocab;
}

TEST(SpmTokenizer, MergesTheBestScoreFirstAndOfEqualsTheLeftmost) {
    const auto t = small_spm().tokenizer();
    // "ab" before "bc", "aa", "▁a"; then "abc".
    EXPECT_EQ(t->encode("abc", false, false), encode_texts(*t, {"\u2581", "abc"}));
    EXPECT_EQ(t->encode("aab", false, false), encode_texts(*t, {"\u2581a", "ab"}));
    EXPECT_EQ(t->encode("caaa", false, false), encode_texts(*t, {"\u2581", "c", "aa", "a"}));
}

TEST(SpmTokenizer, PutsABlankBeforeTextOnly) {
    const auto t = small_spm().tokenizer();
    EXPECT_EQ(t->encode("", false, false), Ids{});
    EXPECT_EQ(t->encode("", true, false), encode_texts(*t, {"<s>"}));
    EXPECT_EQ(t->encode(" a", false, false), encode_texts(*t, {"\u2581", "\u2581a"}));
    EXPECT_EQ(t->encode("a", true, false), encode_texts(*t, {"<s>", "\u2581a"}));
    EXPECT_EQ(t->encode("a</s>a", false, true), encode_texts(*t, {"\u2581a", "</s>", "\u2581a"}));

    const auto bare = with(small_spm(), "tokenizer.ggml.add_space_prefix", false).tokenizer();
    EXPECT_EQ(bare->encode("a", true, false), encode_texts(*bare, {"<s>", "a"}));
    EXPECT_EQ(bare->decode(bare->encode(" a", false, false)), " a");
}

TEST(SpmTokenizer, CharactersThatAreNoTokenBecomeBytes) {
    const auto t = small_spm().tokenizer();
    EXPECT_EQ(t->encode("\u00E9", false, false), encode_texts(*t, {"\u2581", "<0xC3>", "<0xA9>"}));
    EXPECT_EQ(t->encode("\xFF", false, false), encode_texts(*t, {"\u2581", "<0xFF>"}));
    EXPECT_EQ(t->piece(*t->find("<0xC3>")), "\xC3");
    EXPECT_EQ(t->decode(t->encode("\u00E9 a\xFF", true, false)), "\u00E9 a\xFF");
}

TEST(SpmTokenizer, WithoutByteTokensARunIsOneUnknown) {
    SmallVocab v = small_spm();
    for (int32_t& type : v.types) {
        if (type == static_cast<int32_t>(TokenType::kByte)) type = static_cast<int32_t>(TokenType::kUnused);
    }
    const auto t = v.tokenizer();
    EXPECT_EQ(t->encode("a\u00E9\u00E8 c", false, false), encode_texts(*t, {"\u2581a", "<unk>", "\u2581", "c"}));
    EXPECT_EQ(t->decode(t->encode("a\u00E9", false, false)), "a");
}

TEST(SpmTokenizer, UnusedTokensAreStepsOnly) {
    SmallVocab v = small_spm();
    v.types[static_cast<size_t>(std::find(v.tokens.begin(), v.tokens.end(), "ab") - v.tokens.begin())] =
        static_cast<int32_t>(TokenType::kUnused);
    const auto t = v.tokenizer();
    EXPECT_EQ(t->encode("abc", false, false), encode_texts(*t, {"\u2581", "abc"}));
    EXPECT_EQ(t->encode("abd", false, false), encode_texts(*t, {"\u2581", "a", "b", "d"}));
}

TEST(SpmTokenizer, ControlAndByteTokensAreNotMergedInto) {
    SmallVocab v = small_spm();
    v.add("bd", TokenType::kControl, 0);
    const auto t = v.tokenizer();
    EXPECT_EQ(t->encode("bd", false, false), encode_texts(*t, {"\u2581", "b", "d"}));
    EXPECT_EQ(t->encode("bd", false, true), encode_texts(*t, {"bd"}));
}

TEST(SpmTokenizer, UserDefinedTokensAreFoundByBlankOrSymbol) {
    SmallVocab v = small_spm();
    v.add("\u2581\u2581\u2581", TokenType::kUserDefined, 0);
    v.add("[X]", TokenType::kUserDefined, 0);
    const auto t = v.tokenizer();
    EXPECT_EQ(t->encode("c   c[X]", false, false),
              encode_texts(*t, {"\u2581", "c", "\u2581\u2581\u2581", "\u2581", "c", "[X]"}));
    EXPECT_EQ(t->piece(*t->find("\u2581\u2581\u2581")), "   ");
    EXPECT_EQ(t->piece(*t->find("[X]")), "[X]");
}

TEST(SpmTokenizer, DecodeTakesTheFirstBlankAwayAndNoOther) {
    const auto t = small_spm().tokenizer();
    EXPECT_EQ(t->decode(encode_texts(*t, {"<s>", "\u2581a", "\u2581a"})), "a a");
    EXPECT_EQ(t->decode(encode_texts(*t, {"<s>", "\u2581a"}), true), "<s>a");
    EXPECT_EQ(t->decode(encode_texts(*t, {"<0x20>", "a"})), " a");
    EXPECT_EQ(t->decode({}), "");
    EXPECT_EQ(t->piece(*t->find("\u2581a")), " a");
}

TEST(BpeTokenizer, MergesTheLowestRankFirst) {
    const auto t = small_bpe().tokenizer();
    EXPECT_EQ(t->encode("hello", false, false), encode_texts(*t, {"hello"}));
    EXPECT_EQ(t->encode("hellllo", false, false), encode_texts(*t, {"hell", "ll", "o"}));
    EXPECT_EQ(t->encode("aaaaaaa", false, false), encode_texts(*t, {"aaaa", "aa", "a"}));
}

TEST(BpeTokenizer, EveryByteHasItsToken) {
    const auto t = small_bpe().tokenizer();
    for (unsigned byte = 0; byte < 256; ++byte) {
        const std::string text(1, static_cast<char>(byte));
        EXPECT_THAT(t->encode(text, false, false), ElementsAre(static_cast<TokenId>(1 + byte)));
        EXPECT_EQ(t->piece(static_cast<TokenId>(1 + byte)), text);
    }
}

TEST(BpeTokenizer, BytesWithoutATokenAreLeftOut) {
    SmallVocab v = small_bpe();
    v.tokens[1 + 0xF1] = "gone";
    const auto t = v.tokenizer();
    EXPECT_EQ(t->encode("a\xF1y", false, false), encode_texts(*t, {"a", "y"}));
}

TEST(BpeTokenizer, TakesWholeWordsWhereTheModelDoes) {
    for (const char* pre : {"llama-bpe", "llama3", "llama-v3", "gpt-2"}) {
        SmallVocab v = small_bpe(pre);
        v.add("holla");  // no merges lead there
        const auto t = v.tokenizer();
        const Ids merged = encode_texts(*t, {"h", "o", "ll", "a"});
        const Ids whole = encode_texts(*t, {"holla"});
        EXPECT_EQ(t->encode("holla", false, false), std::string(pre) == "gpt-2" ? merged : whole) << pre;
    }
}

TEST(BpeTokenizer, BosByTheFamilysDefaultAndTheFilesKeys) {
    const auto begins = [](const SmallVocab& v) {
        const auto t = v.tokenizer();
        const bool has = t->encode("h", true, false).front() == *t->bos();
        EXPECT_EQ(has, t->adds_bos());
        return has;
    };
    EXPECT_FALSE(begins(small_bpe("gpt-2")));
    EXPECT_TRUE(begins(small_bpe("llama-bpe")));
    EXPECT_FALSE(begins(with(small_bpe("llama-bpe"), "tokenizer.ggml.add_bos_token", false)));
    EXPECT_TRUE(begins(with(small_bpe("gpt-2"), "tokenizer.ggml.add_bos_token", true)));
    EXPECT_TRUE(begins(small_spm()));

    const auto t = with(small_spm(), "tokenizer.ggml.add_eos_token", true).tokenizer();
    EXPECT_EQ(t->encode("a", true, false), encode_texts(*t, {"<s>", "\u2581a", "</s>"}));
    SmallVocab bare = small_spm();
    bare.also = nullptr;
    EXPECT_FALSE(bare.tokenizer()->adds_bos());
    EXPECT_EQ(bare.tokenizer()->bos(), std::nullopt);
}

TEST(SpecialTokens, AreParsedTheLongestFirst) {
    const auto t = small_bpe().tokenizer();
    EXPECT_EQ(t->encode("h<|im_start|>o", false, true), encode_texts(*t, {"h", "<|im_start|>", "o"}));
    // A user-defined token counts always; a control token not where it would be the caller's text.
    EXPECT_EQ(t->encode("h<|im_start|>", false, false).at(1), *t->find("<|im"));
    EXPECT_EQ(t->encode("<|im<|im_end|><|im_end|", false, true), [&] {
        Ids ids = encode_texts(*t, {"<|im", "<|im_end|>", "<|im"});
        for (const char c : std::string_view("_end|")) ids.push_back(1 + c);
        return ids;
    }());
    EXPECT_EQ(t->decode(encode_texts(*t, {"<|im_start|>", "hello", "<|im_end|>"})), "hello");
    EXPECT_EQ(t->decode(encode_texts(*t, {"<|im_start|>", "hello", "<|im_end|>"}), true),
              "<|im_start|>hello<|im_end|>");
    EXPECT_EQ(t->piece(*t->find("\u00E9t\u00E9")), "\u00E9t\u00E9");
}

TEST(SpecialTokens, EndGeneration) {
    const auto t = small_bpe().tokenizer();
    EXPECT_TRUE(t->ends_generation(*t->find("<|endoftext|>")));
    EXPECT_TRUE(t->ends_generation(*t->find("<|im_end|>")));
    EXPECT_FALSE(t->ends_generation(*t->find("<|im_start|>")));
    EXPECT_FALSE(t->ends_generation(*t->find("hello")));
    EXPECT_FALSE(t->ends_generation(-1));

    SmallVocab v = small_bpe();
    const auto hello = static_cast<uint32_t>(*t->find("hello"));
    v.add("</s>");  // a text like any other where it is not a control token
    const auto eot = with(v, "tokenizer.ggml.eot_token_id", hello).tokenizer();
    EXPECT_TRUE(eot->ends_generation(static_cast<TokenId>(hello)));
    EXPECT_FALSE(eot->ends_generation(*eot->find("</s>")));
    EXPECT_TRUE(
        with(v, "tokenizer.ggml.eom_token_id", hello).tokenizer()->ends_generation(static_cast<TokenId>(hello)));
}

TEST(Tokenizer, IdsOutsideOfTheVocabularyAreErrors) {
    for (const SmallVocab& v : {small_bpe(), small_spm()}) {
        const auto t = v.tokenizer();
        const auto n = static_cast<TokenId>(t->size());
        EXPECT_EQ(t->size(), v.tokens.size());
        EXPECT_NO_THROW(t->piece(n - 1));
        for (const TokenId id : {n, -1, INT32_MAX, INT32_MIN}) {
            EXPECT_THROW(t->piece(id), Error);
            EXPECT_THROW(t->decode({0, id}), Error);
        }
    }
}

TEST(TokenizerErrors, UnknownFamilyAndPreTokenizer) {
    SmallVocab v = small_bpe();
    v.model = "bert\n";
    EXPECT_THAT(error_of(v),
                AllOf(HasSubstr("small.gguf"), HasSubstr("bert\\"), HasSubstr("llama"), HasSubstr("gpt2")));
    EXPECT_THAT(error_of(small_bpe("tekken")),
                AllOf(HasSubstr("small.gguf"), HasSubstr("'tekken'"),
                      HasSubstr("default, gpt-2, llama-bpe, qwen2, smollm"), HasSubstr("--pre-tokenizer NAME")));
    v = small_bpe();
    v.without = {"tokenizer.ggml.pre"};
    EXPECT_THAT(error_of(v), AllOf(HasSubstr("'tokenizer.ggml.pre' is missing"), HasSubstr("--pre-tokenizer NAME")));
    EXPECT_EQ(error_of(v, "qwen2"), "no error");
    EXPECT_EQ(error_of(small_bpe("tekken"), "qwen2"), "no error");
    EXPECT_THROW(small_bpe().tokenizer("tekken"), UsageError);
    EXPECT_THROW(small_spm().tokenizer("qwen2"), UsageError);
    v.without = {"tokenizer.ggml.model"};
    EXPECT_THAT(error_of(v), HasSubstr("tokenizer.ggml.model"));
}

TEST(TokenizerErrors, ArraysThatDoNotFit) {
    const auto broken = [](SmallVocab v, const auto& change) {
        change(v);
        return error_of(v);
    };
    const auto named = [](const char* key, const char* reason) {
        return AllOf(HasSubstr("small.gguf: key '" + std::string(key) + "'"), HasSubstr(reason));
    };
    EXPECT_THAT(broken(small_spm(), [](SmallVocab& v) { v.tokens.clear(); }),
                named("tokenizer.ggml.tokens", "missing"));
    EXPECT_THAT(broken(small_spm(), [](SmallVocab& v) { v.without = {"tokenizer.ggml.tokens"}; }),
                named("tokenizer.ggml.tokens", "missing"));
    EXPECT_THAT(broken(small_spm(), [](SmallVocab& v) { v.types.pop_back(); }),
                named("tokenizer.ggml.token_type", "entries for"));
    EXPECT_THAT(broken(small_spm(), [](SmallVocab& v) { v.scores.push_back(0); }),
                named("tokenizer.ggml.scores", "entries for"));
    EXPECT_THAT(broken(small_spm(), [](SmallVocab& v) { v.scores[7] = NAN; }),
                named("tokenizer.ggml.scores", "token 7"));
    EXPECT_THAT(broken(small_spm(), [](SmallVocab& v) { v.types[7] = 99; }),
                named("tokenizer.ggml.token_type", "the type 99"));
    EXPECT_THAT(broken(small_spm(), [](SmallVocab& v) { v.types[259] = 6; }),
                named("tokenizer.ggml.token_type", "<0xNN>"));
    for (const char* key : {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
        EXPECT_THAT(broken(small_spm(), [key](SmallVocab& v) { v.without = {key}; }), named(key, "is missing"));
    }
    EXPECT_THAT(broken(small_bpe(), [](SmallVocab& v) { v.without = {"tokenizer.ggml.merges"}; }),
                named("tokenizer.ggml.merges", "is missing"));
    for (const char* merge : {"", " ", "hello", "hello ", "h zz", "h h"}) {
        EXPECT_THAT(broken(small_bpe(), [merge](SmallVocab& v) { v.merges.push_back(merge); }),
                    named("tokenizer.ggml.merges", "has entry 8"))
            << merge;
    }
}

TEST(TokenizerErrors, SpecialIdsOutsideOfTheVocabulary) {
    SmallVocab v = small_bpe();
    v.also = nullptr;
    for (const char* name : {"bos", "eos", "eot", "eom", "unknown", "padding"}) {
        const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
        EXPECT_THAT(error_of(with(v, key, static_cast<uint32_t>(v.tokens.size()))),
                    AllOf(HasSubstr(key), HasSubstr("outside of the vocabulary")));
        EXPECT_EQ(error_of(with(v, key, static_cast<uint32_t>(v.tokens.size() - 1))), "no error");
    }
    EXPECT_THAT(error_of(with(v, "tokenizer.ggml.add_bos_token", true)), HasSubstr("no tokenizer.ggml.bos_token_id"));
    EXPECT_THAT(error_of(with(v, "tokenizer.ggml.add_eos_token", true)), HasSubstr("no tokenizer.ggml.eos_token_id"));
}

}  // namespace
}  // namespace weir
