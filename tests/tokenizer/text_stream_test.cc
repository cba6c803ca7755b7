#include "runtime/model/text_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "runtime/model/utf8.h"

namespace weir {
namespace {

// Token i is byte i.
class Bytes : public Tokenizer {
  public:
    std::vector<TokenId> encode(std::string_view, bool, bool) const override { return {}; }
    std::string piece(TokenId id, bool) const override { return std::string(1, static_cast<char>(id)); }
    std::string decode(const std::vector<TokenId>&, bool) const override { return {}; }
    size_t size() const override { return 256; }
    std::optional<TokenId> bos() const override { return {}; }
    std::optional<TokenId> eos() const override { return {}; }
    bool adds_bos() const override { return false; }
    bool ends_generation(TokenId) const override { return false; }
    std::optional<TokenId> find(std::string_view) const override { return {}; }
};

bool is_valid(std::string_view text) {
    while (!text.empty()) {
        const size_t length = utf8_length(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

TEST(TextStream, GivesCharactersWhenTheyAreWhole) {
    const Bytes bytes;
    TextStream stream(bytes);
    EXPECT_EQ(stream.add('a'), "a");
    EXPECT_EQ(stream.add(0xC3), "");
    EXPECT_EQ(stream.add(0xBC), "ü");
    for (const int byte : {0xF0, 0x9F, 0x8C}) EXPECT_EQ(stream.add(byte), "");
    EXPECT_EQ(stream.add(0x8D), "🌍");
    EXPECT_EQ(stream.add_bytes("x\xE4\xB8"), "x");
    EXPECT_EQ(stream.add_bytes("\x96y"), "世y");
    EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, ReplacesWhatCanBecomeNoCharacter) {
    const Bytes bytes;
    TextStream stream(bytes);
    EXPECT_EQ(stream.add(0x80), "\uFFFD");
    EXPECT_EQ(stream.add(0xFF), "\uFFFD");
    EXPECT_EQ(stream.add(0xC3), "");
    EXPECT_EQ(stream.add('('), "\uFFFD(");
    EXPECT_EQ(stream.add_bytes("\xED\xA0"), "\uFFFD\uFFFD");  // a surrogate's beginning
    EXPECT_EQ(stream.add(0xE4), "");
    EXPECT_EQ(stream.finish(), "\uFFFD");
    EXPECT_EQ(stream.finish(), "");
    EXPECT_EQ(valid_utf8("a\xC3"), "a\uFFFD");
    EXPECT_EQ(valid_utf8("aü"), "aü");
}

TEST(TextStream, EveryCutOfAnyBytesIsValid) {
    std::mt19937 random(20261130);
    for (int round = 0; round < 2000; ++round) {
        std::string text;
        for (size_t n = random() % 12; n > 0; --n) {
            if (random() % 2 == 0) {
                utf8_append(text, random() % 0xD800);
            } else {
                text += static_cast<char>(random() % 256);
            }
        }
        const Bytes bytes;
        TextStream stream(bytes);
        std::string whole;
        for (const char byte : text) {
            const std::string given = stream.add(static_cast<unsigned char>(byte));
            ASSERT_TRUE(is_valid(given)) << testing::PrintToString(text);
            whole += given;
        }
        whole += stream.finish();
        ASSERT_EQ(whole, valid_utf8(text)) << testing::PrintToString(text);
        if (is_valid(text)) {
            ASSERT_EQ(whole, text);
        }
    }
}

}  // namespace
}  // namespace weir
