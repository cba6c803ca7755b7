// Vocabularies of a few kilobytes, whole and valid, of both families, with any key changed or left out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/model/tokenizer.h"
#include "runtime/model/tokenizer_vocab.h"
#include "runtime/model/utf8.h"

namespace weir::test {

struct SmallVocab {
    std::string model;
    std::string pre;
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    std::vector<float> scores;         // SentencePiece
    std::vector<std::string> merges;   // byte-level BPE
    std::vector<std::string> without;  // keys to leave out
    std::function<void(GgufWriter&)> also;

    TokenId add(const std::string& text, TokenType type = TokenType::kNormal, float score = 0) {
        tokens.push_back(text);
        types.push_back(static_cast<int32_t>(type));
        scores.push_back(score);
        return static_cast<TokenId>(tokens.size() - 1);
    }

    // "a b" becomes the merge and the token "ab".
    TokenId add_merge(const std::string& left, const std::string& right) {
        merges.push_back(left + " " + right);
        return add(left + right);
    }

    std::vector<std::byte> bytes() const {
        GgufWriter w;
        const auto put = [&](const std::string& name, const auto& value) {
            const std::string key = "tokenizer.ggml." + name;
            if (std::find(without.begin(), without.end(), key) == without.end()) w.add(key, value);
        };
        put("model", model);
        put("pre", pre);
        put("tokens", tokens);
        put("token_type", types);
        if (model == "llama") put("scores", scores);
        if (model == "gpt2") put("merges", merges);
        if (also) also(w);
        return w.header();
    }

    GgufFile file() const {
        const std::vector<std::byte> header = bytes();
        return GgufFile::parse(header, header.size(), "small.gguf");
    }

    std::unique_ptr<Tokenizer> tokenizer(const std::string& pre_tokenizer = {}) const {
        return Tokenizer::from_gguf(file(), pre_tokenizer);
    }
};

// The character that byte-level vocabularies write for a byte.
inline std::string byte_character(unsigned byte) {
    unsigned stand_ins = 0;
    for (unsigned b = 0; b <= byte; ++b) {
        const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        if (b < byte) {
            stand_ins += prints ? 0 : 1;
            continue;
        }
        std::string text;
        utf8_append(text, prints ? byte : 256 + stand_ins);
        return text;
    }
    return {};
}

// Token 0 is BOS, 1 to 256 are the bytes 0 to 255, then what these merges give, then control and user-defined tokens.
inline SmallVocab small_bpe(const std::string& pre = "gpt-2") {
    SmallVocab v;
    v.model = "gpt2";
    v.pre = pre;
    v.add("<|endoftext|>", TokenType::kControl);
    for (unsigned byte = 0; byte < 256; ++byte) v.add(byte_character(byte));
    const std::string blank = byte_character(' ');
    const std::pair<std::string, std::string> merges[] = {
        {"l", "l"}, {"h", "e"},   {"he", "ll"}, {"hell", "o"}, {blank, blank}, {blank + blank, blank + blank},
        {"a", "a"}, {"aa", "aa"},
    };
    for (const auto& [left, right] : merges) v.add_merge(left, right);
    v.add("<|im_start|>", TokenType::kControl);
    v.add("<|im_end|>", TokenType::kControl);
    v.add("<|im", TokenType::kUserDefined);
    v.add("\u00E9t\u00E9", TokenType::kUserDefined);
    v.also = [](GgufWriter& w) {
        w.add("tokenizer.ggml.bos_token_id", uint32_t{0});
        w.add("tokenizer.ggml.eos_token_id", uint32_t{0});
    };
    return v;
}

// <unk> <s> </s>, the 256 byte tokens, then a few pieces; "\u2581" is a blank.
inline SmallVocab small_spm() {
    SmallVocab v;
    v.model = "llama";
    v.pre = "default";
    v.add("<unk>", TokenType::kUnknown);
    v.add("<s>", TokenType::kControl);
    v.add("</s>", TokenType::kControl);
    for (unsigned byte = 0; byte < 256; ++byte) {
        char text[8];
        std::snprintf(text, sizeof(text), "<0x%02X>", byte);
        v.add(text, TokenType::kByte);
    }
    for (const char* text : {"\u2581", "a", "b", "c", "d"}) v.add(text, TokenType::kNormal, -100);
    v.add("ab", TokenType::kNormal, -1);
    v.add("bc", TokenType::kNormal, -2);
    v.add("aa", TokenType::kNormal, -3);
    v.add("abc", TokenType::kNormal, -4);
    v.add("\u2581a", TokenType::kNormal, -5);
    v.add("\u2581\u2581", TokenType::kNormal, -6);
    v.also = [](GgufWriter& w) {
        w.add("tokenizer.ggml.bos_token_id", uint32_t{1});
        w.add("tokenizer.ggml.eos_token_id", uint32_t{2});
        w.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
    };
    return v;
}

}  // namespace weir::test
