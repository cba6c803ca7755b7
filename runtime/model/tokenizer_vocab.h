// The vocabulary of a GGUF file: texts, types and scores of the tokens, the special ids, and the search for special
// tokens that are spelled out in a text. What both tokenizer families share.
//
// Owns copies of all it needs: the file may go. Immutable once built; any thread may use it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/hash_index.h"
#include "runtime/model/tokenizer.h"

namespace weir {

// Values of tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
    kUndefined = 0,
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
};

// A stretch of text, or a special token that was spelled out there (then text is empty and id is not negative).
struct TextFragment {
    std::string_view text;
    TokenId id = -1;
};

class Vocabulary {
  public:
    struct Family {
        bool sentencepiece;  // scores and types must be in the file; U+2581 stands for a blank in tokens' texts
        bool adds_bos;       // where the file does not say
    };

    // Throws Error naming file and key: arrays missing, of another type or of unequal length, a token type that is
    // none, a score that is no number, a special id outside of the vocabulary.
    Vocabulary(const GgufFile& file, Family family);
    Vocabulary(const Vocabulary&) = delete;  // views into texts_ are kept
    Vocabulary& operator=(const Vocabulary&) = delete;

    size_t size() const { return types_.size(); }
    std::string_view text(TokenId id) const {
        return {texts_.data() + offsets_[static_cast<size_t>(id)],
                offsets_[static_cast<size_t>(id) + 1] - offsets_[static_cast<size_t>(id)]};
    }
    TokenType type(TokenId id) const { return types_[static_cast<size_t>(id)]; }
    float score(TokenId id) const { return scores_[static_cast<size_t>(id)]; }  // only where the family has scores
    bool has_type(TokenType type) const { return type_counts_[static_cast<size_t>(type)] != 0; }
    size_t longest_text() const { return longest_text_; }

    std::optional<TokenId> bos() const { return bos_; }
    std::optional<TokenId> eos() const { return eos_; }
    std::optional<TokenId> unknown() const { return unknown_; }
    bool adds_bos() const { return adds_bos_; }
    bool adds_eos() const { return adds_eos_; }
    bool ends_generation(TokenId id) const;

    // The token of exactly this text; the first, where a file has several.
    std::optional<TokenId> find(std::string_view text) const;

    // Cuts text at the special tokens spelled out in it, the longest from the left: user-defined ones always, control
    // and unknown ones where parse_special. Appends to out.
    void split_specials(std::string_view text, bool parse_special, std::vector<TextFragment>& out) const;

  private:
    struct Special {
        std::string text;
        TokenId id;
        bool always;  // user-defined
    };

    void read_texts(const GgufFile& file);
    void read_types(const GgufFile& file, Family family);
    void read_special_ids(const GgufFile& file, Family family);
    void index_specials(Family family);
    const Special* longest_special(std::string_view text, bool parse_special) const;

    std::string texts_;              // all texts, one after the other
    std::vector<uint32_t> offsets_;  // [size + 1] into texts_
    std::vector<TokenType> types_;   // [size]
    std::vector<float> scores_;      // [size], or empty
    std::array<size_t, 7> type_counts_{};
    size_t longest_text_ = 0;
    HashIndex by_text_{0};
    std::vector<Special> specials_;                               // sorted by text
    std::array<std::pair<size_t, size_t>, 256> by_first_byte_{};  // its range in specials_
    std::optional<TokenId> bos_, eos_, unknown_;
    std::vector<TokenId> end_ids_;
    bool adds_bos_ = false;
    bool adds_eos_ = false;
};

// U+2581, which SentencePiece writes for a blank.
inline constexpr std::string_view kBlankSymbol = "\xE2\x96\x81";

// Appends text with blanks in the place of their symbols.
void append_unescaped(std::string_view text, std::string& out);

// What Tokenizer asks of both families, done on a Vocabulary; a family adds how a stretch of plain text is encoded,
// and what its pieces are.
class VocabularyTokenizer : public Tokenizer {
  public:
    std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special) const override;
    std::string piece(TokenId id, bool special) const override;
    std::string decode(const std::vector<TokenId>& ids, bool special) const override;

    size_t size() const override { return vocab_.size(); }
    std::optional<TokenId> bos() const override { return vocab_.bos(); }
    std::optional<TokenId> eos() const override { return vocab_.eos(); }
    bool adds_bos() const override { return vocab_.adds_bos(); }
    bool ends_generation(TokenId id) const override { return vocab_.ends_generation(id); }
    std::optional<TokenId> find(std::string_view text) const override { return vocab_.find(text); }

  protected:
    VocabularyTokenizer(const GgufFile& file, Vocabulary::Family family) : vocab_(file, family) {}

    // Plain text without special tokens, never empty, at most kMaxTextBytes.
    virtual void encode_text(std::string_view text, std::vector<TokenId>& out) const = 0;
    // The bytes of a token that is neither control nor unknown.
    virtual void append_piece(TokenId id, std::string& out) const = 0;

    const Vocabulary vocab_;

  private:
    void append_token(TokenId id, bool special, std::string& out) const;
};

// The tokenizers count symbols in 32 bits. No context takes a text a hundredth as long.
inline constexpr size_t kMaxTextBytes = size_t{256} << 20;

}  // namespace weir
