// The head of a model as drafts see it: rows of the tokens that are likely to come, and no others, so that a large vocabulary
// costs a draft little (frequency-ranked drafts: Zhao et al. 2025). They are copied out of a native file at one level into
// memory of their own. A token that it has not cannot be drafted; what is verified does not depend on it.
//
// Used between passes by the thread that owns the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/weight_store.h"
#include "runtime/model/tokenizer.h"

namespace weir {

class DraftHead {
  public:
    // Memory that it takes.
    static uint64_t bytes(kernels::Level level, size_t rows, size_t cols);

    // head: the model's, in planes. first: the tokens that it begins with, none of them twice; fewer than `rows`, which is how many
    // it may have. Throws what the store throws.
    DraftHead(WeightStore& store, const Matrix& head, kernels::Level level, std::span<const TokenId> first, size_t rows);
    DraftHead(const DraftHead&) = delete;
    DraftHead& operator=(const DraftHead&) = delete;

    // From now on the token is one of them; where there is no room left, in the place of the one that was added first. One that it
    // has costs nothing.
    void add(TokenId id);

    const Matrix& matrix() const { return matrix_; }          // [tokens(), dim]
    std::span<const TokenId> tokens() const { return tokens_; }  // of its rows
    uint64_t bytes_read() const { return bytes_read_; }

  private:
    void copy(std::span<const TokenId> ids, size_t to_row);

    WeightStore& store_;
    Matrix matrix_;
    size_t first_;     // rows that stay
    size_t next_;      // where the next one is added
    std::vector<std::byte> memory_;
    std::vector<TokenId> tokens_;
    std::vector<bool> has_;  // by token
    uint64_t bytes_read_ = 0;
};

// n tokens, or all, that are likely in any text by what a vocabulary says of itself: merges are learned in the order of their
// frequency, so the first ids, and characters, which some vocabularies have at their end, in the order of theirs.
std::vector<TokenId> likely_tokens(const Tokenizer& tokenizer, size_t n);

}  // namespace weir
