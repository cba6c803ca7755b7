// The texts of a vocabulary's tokens as a tree of bytes, laid out in the order of a walk: so that all tokens that a
// grammar allows are found by one walk of both together, which leaves out what lies behind a byte that is not allowed.
// And the mask of allowed tokens that a sampler takes.
//
// Tokens without a text of their own (control tokens, the unknown one) and those that end an answer are not in the
// tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/model/tokenizer.h"
#include "runtime/service/grammar_matcher.h"

namespace weir {

class TokenTrie {
  public:
    explicit TokenTrie(const Tokenizer& tokenizer);

    // Sets the bits of the tokens that may come next, and of those that end an answer where it may end. mask: a bit
    // for each token of the vocabulary. Throws GrammarError where there are too many ways, or no token is allowed.
    void allow(GrammarMatcher& matcher, std::vector<uint64_t>& mask) const;

    size_t mask_words() const { return (size_ + 63) / 64; }
    std::string_view text(TokenId id) const {
        const size_t i = static_cast<size_t>(id);
        return {texts_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
    }
    bool ends(TokenId id) const;

  private:
    struct Node {
        uint32_t skip;          // the node behind all that begin with this one
        uint32_t first, tokens; // in by_text_: those that end here
        uint16_t depth;         // bytes before this one
        uint8_t byte;
    };

    size_t size_;                     // of the vocabulary
    std::string texts_;
    std::vector<uint32_t> offsets_;   // [size + 1] into texts_
    std::vector<TokenId> by_text_;    // sorted
    std::vector<TokenId> ends_;
    std::vector<Node> nodes_;
};

// One answer within a grammar: what may come next, token by token. Masks of places it has been to lately are kept.
class Constraint {
  public:
    Constraint(std::shared_ptr<const Grammar> grammar, const TokenTrie& trie)
        : matcher_(std::move(grammar)), trie_(trie) {}

    // Bits of the tokens that may come next; valid until the next call. Throws GrammarError.
    const std::vector<uint64_t>& mask();
    // The token has come. Throws GrammarError where it may not.
    void took(TokenId id);
    // Nothing may come but the end.
    bool complete() const { return matcher_.must_end(); }

    // What it takes, about, at most; without its grammar.
    static size_t most_bytes(size_t n_vocab);

  private:
    struct Kept {
        uint32_t place = 0, generation = 0;  // 0: none, matchers begin with 1
        std::vector<uint64_t> mask;
    };
    static constexpr size_t kKept = 8;

    GrammarMatcher matcher_;
    const TokenTrie& trie_;
    Kept kept_[kKept];
    size_t next_ = 0;
};

}  // namespace weir
