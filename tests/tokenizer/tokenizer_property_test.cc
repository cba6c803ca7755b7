// What holds for any text: nothing is lost, nothing fails. WEIR_TEST_SEED=N repeats a run.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "runtime/model/utf8.h"
#include "tests/tokenizer/small_vocab.h"
#include "tests/tokenizer/vocab_material.h"

namespace weir {
namespace {

uint64_t test_seed() {
    const char* given = std::getenv("WEIR_TEST_SEED");
    const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return seed;
}

class RandomText {
  public:
    explicit RandomText(uint64_t seed) : random_(seed) {}

    size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

    // Characters of all lengths, blanks, digits and what the expressions single out.
    std::string utf8() {
        static const char* const kPieces[] = {" ",  "  ", "\n", "\r\n",  "\t",     "'s",     "'LL",    "1",
                                              "23", "a",  "aa", "hello", "\u00E9", "\u4E2D", "\u2581", "!?"};
        std::string text;
        for (size_t n = below(40); n > 0; --n) {
            static constexpr uint32_t kLimits[] = {0x80, 0x800, 0xD800, 0x10000, 0x110000};
            if (below(3) > 0) {
                text += kPieces[below(std::size(kPieces))];
                continue;
            }
            const auto code_point = static_cast<uint32_t>(below(kLimits[below(std::size(kLimits))]));
            if (code_point < 0xD800 || code_point > 0xDFFF) utf8_append(text, code_point);
        }
        return text;
    }

    std::string bytes() {
        std::string text(below(60), '\0');
        for (char& c : text) c = static_cast<char>(below(256));
        return text;
    }

    // Mostly text, with bytes in it that are none.
    std::string mixed() { return below(2) ? utf8() + bytes() + utf8() : below(2) ? utf8() : bytes(); }

  private:
    std::mt19937_64 random_;
};

// byte_level: what was encoded comes back in any case, piece by piece too.
void check_texts(const Tokenizer& tokenizer, bool byte_level, uint64_t seed, int n) {
    RandomText random(seed);
    for (int i = 0; i < n; ++i) {
        const std::string text = random.mixed();
        const std::vector<TokenId> ids = tokenizer.encode(text, random.below(2) == 0, random.below(2) == 0);
        std::string pieces;
        for (const TokenId id : ids) {
            ASSERT_GE(id, 0);
            ASSERT_LT(static_cast<size_t>(id), tokenizer.size());
            pieces += tokenizer.piece(id);
        }
        const std::string decoded = tokenizer.decode(ids);
        if (byte_level) {
            ASSERT_EQ(decoded, text) << "seed " << seed << ", text " << i;
            ASSERT_EQ(pieces, decoded) << "seed " << seed << ", text " << i;
            continue;
        }
        // The symbol of a blank comes back as one.
        std::string expected;
        append_unescaped(text, expected);
        ASSERT_EQ(decoded, expected) << "seed " << seed << ", text " << i;
        ASSERT_EQ(pieces, (text.empty() ? "" : " ") + decoded) << "seed " << seed << ", text " << i;
    }
}

TEST(TokenizerProperties, AnyTextComesBack) {
    const uint64_t seed = test_seed();
    for (const char* pre : {"default", "gpt-2", "llama-bpe", "qwen2", "smollm"}) {
        check_texts(*test::small_bpe(pre).tokenizer(), true, seed, 400);
    }
    check_texts(*test::small_spm().tokenizer(), false, seed, 400);
}

TEST(TokenizerProperties, AnyTextComesBackFromRealVocabularies) {
    const uint64_t seed = test_seed();
    for (const char* name : {"gpt-2", "llama-bpe", "qwen2", "llama-spm"}) {
        const auto path = test::shared_file(std::string("vocabs/ggml-vocab-") + name + ".gguf");
        if (!test::require_material(path)) return;
        check_texts(test::load_tokenizer(path), name != std::string("llama-spm"), seed, 500);
    }
}

// Words of a quarter of a megabyte: merging them is n log n.
TEST(TokenizerProperties, LongRunsComeBack) {
    const auto bpe = test::small_bpe("llama-bpe").tokenizer();
    const auto spm = test::small_spm().tokenizer();
    for (const char* unit : {" ", "a", "h", "\xFF", "ab", "\n", "<", "<|im", " a"}) {
        std::string text;
        while (text.size() < 1 << 18) text += unit;
        for (const Tokenizer* tokenizer : {bpe.get(), spm.get()}) {
            EXPECT_TRUE(tokenizer->decode(tokenizer->encode(text, false, true)) == text)
                << testing::PrintToString(unit);
        }
    }
}

TEST(TokenizerProperties, ThreadsShareATokenizer) {
    const auto bpe = test::small_bpe("llama-bpe").tokenizer();
    const auto spm = test::small_spm().tokenizer();
    std::vector<std::jthread> threads;
    for (uint64_t i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
            check_texts(*bpe, true, i, 50);
            check_texts(*spm, false, i, 50);
        });
    }
}

}  // namespace
}  // namespace weir
