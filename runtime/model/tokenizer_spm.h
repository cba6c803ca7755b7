// The tokenizer of the SentencePiece BPE family (tokenizer.ggml.model = "llama"): Llama 1 and 2, TinyLlama, Mistral,
// Gemma. Blanks become U+2581, one goes before the text, and neighbouring symbols are merged, the best score first,
// as long as that gives a token. Characters that are no token become byte tokens, as do bytes that are not UTF-8.
// Source: Kudo and Richardson, SentencePiece (2018), and its model format.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/tokenizer_vocab.h"

namespace weir {

class SpmTokenizer final : public VocabularyTokenizer {
  public:
    // Throws Error as Vocabulary does, and for a byte token whose text is not <0xNN>.
    explicit SpmTokenizer(const GgufFile& file);

    std::string decode(const std::vector<TokenId>& ids, bool special) const override;

  private:
    class Merger;

    void encode_text(std::string_view text, std::vector<TokenId>& out) const override;
    void append_piece(TokenId id, std::string& out) const override;
    // The token of this text if merging may give it; -1 if not.
    TokenId find_mergeable(std::string_view text) const;
    void append_bytes(std::string_view text, std::vector<TokenId>& out) const;

    bool add_space_prefix_;
    std::array<TokenId, 256> byte_tokens_;  // -1 where the vocabulary has none
};

}  // namespace weir
