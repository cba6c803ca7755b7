#include "runtime/model/synth_vocab.h"

#include <string_view>
#include <utility>

namespace weir {
namespace {

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

constexpr std::string_view kBlank = "\xe2\x96\x81";  // U+2581, SentencePiece's blank

std::vector<std::string> letters(std::string_view all) {
    std::vector<std::string> out;
    for (const char c : all) out.emplace_back(1, c);
    return out;
}

std::vector<std::string> joined(const std::vector<std::string>& heads,
                                const std::vector<std::string>& tails) {
    std::vector<std::string> out;
    out.reserve(heads.size() * tails.size());
    for (const std::string& head : heads) {
        for (const std::string& tail : tails) out.push_back(head + tail);
    }
    return out;
}

class Builder {
  public:
    void special(std::string token, TokenType type) { push(std::move(token), 0.0f, type); }

    // Scores fall from piece to piece: pairs merge in the order in which they were added.
    void piece(std::string token) { push(std::move(token), -static_cast<float>(n_pieces_++), kNormal); }

    size_t size() const { return vocab_.tokens.size(); }
    SynthVocab take() { return std::move(vocab_); }

  private:
    void push(std::string token, float score, TokenType type) {
        vocab_.tokens.push_back(std::move(token));
        vocab_.scores.push_back(score);
        vocab_.types.push_back(type);
    }

    SynthVocab vocab_;
    size_t n_pieces_ = 0;
};

// Adds the syllables, with a blank before each and without, until there are `end` tokens.
void add_until(Builder& builder, size_t end, const std::vector<std::string>& syllables) {
    for (const std::string& syllable : syllables) {
        if (builder.size() == end) return;
        builder.piece(std::string(kBlank) + syllable);
    }
    for (const std::string& syllable : syllables) {
        if (builder.size() == end) return;
        builder.piece(syllable);
    }
}

}  // namespace

SynthVocab make_synth_vocab(size_t n) {
    Builder builder;
    builder.special("<unk>", kUnknown);
    builder.special("<s>", kControl);
    builder.special("</s>", kControl);
    static constexpr char kHex[] = "0123456789ABCDEF";
    for (size_t byte = 0; byte < 256; ++byte) {
        builder.special({'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'}, kByte);
    }

    // Characters take the last places, as in trained vocabularies: the blank and printable ASCII.
    std::vector<std::string> characters{std::string(kBlank)};
    for (char c = '!'; c <= '~'; ++c) characters.emplace_back(1, c);
    const size_t end = n - characters.size();

    // Longer pieces are syllables. Each is one that came before and a letter or syllable more, so that
    // merging finds it.
    const std::vector<std::string> consonants = letters("tnshrdlcmwfgypbvkjxqz");
    const std::vector<std::string> open = joined(consonants, letters("eaoiu"));
    const std::vector<std::string> two = joined(open, open);
    for (const std::string& consonant : consonants) builder.piece(std::string(kBlank) + consonant);
    add_until(builder, end, open);
    add_until(builder, end, joined(open, consonants));
    add_until(builder, end, two);
    if (builder.size() < end) add_until(builder, end, joined(two, consonants));

    for (std::string& character : characters) builder.piece(std::move(character));
    return builder.take();
}

}  // namespace weir
