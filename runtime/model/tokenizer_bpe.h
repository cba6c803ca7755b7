// The tokenizer of the byte-level BPE family (tokenizer.ggml.model = "gpt2"): GPT-2, Llama 3, Qwen2, SmolLM. A
// pre-tokenizer cuts the text into words; within a word the bytes are merged pair by pair, the pair of the lowest rank
// first. The vocabulary writes each byte as a printable character of its own (a blank as U+0120).
// Source: Radford et al., Language Models are Unsupervised Multitask Learners (2019), and the published encoder.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/hash_index.h"
#include "runtime/model/tokenizer_pre.h"
#include "runtime/model/tokenizer_vocab.h"

namespace weir {

class BpeTokenizer final : public VocabularyTokenizer {
  public:
    // Throws Error as Vocabulary does, and for merges that are missing, malformed, or name what is no token.
    BpeTokenizer(const GgufFile& file, std::unique_ptr<PreTokenizer> pre_tokenizer);

  private:
    struct Merge {  // its index is its rank
        TokenId left;
        TokenId right;
        TokenId result;
    };
    class Merger;

    void read_merges(const GgufFile& file);
    void encode_text(std::string_view text, std::vector<TokenId>& out) const override;
    void append_piece(TokenId id, std::string& out) const override;
    // The rank of merging two tokens; -1 where nothing merges them.
    int32_t rank(TokenId left, TokenId right) const;
    // The token that a word is as a whole; -1 where it is none.
    TokenId find_word(std::string_view word, std::string& scratch) const;

    std::unique_ptr<PreTokenizer> pre_tokenizer_;
    std::array<std::string, 256> byte_texts_;  // the character that the vocabulary writes for a byte
    std::array<TokenId, 256> byte_tokens_;     // -1 where the vocabulary has none
    std::vector<Merge> merges_;
    HashIndex by_pair_{0};
};

}  // namespace weir
