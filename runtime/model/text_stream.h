// Tokens to text as they come. A piece may end in the middle of a UTF-8 character: what is given out never does. Bytes that
// can become no character any more are given out as U+FFFD, so that all of it is valid UTF-8.
//
// One per sequence, one thread at a time. The tokenizer must outlive it.
#pragma once

#include <string>
#include <string_view>

#include "runtime/model/tokenizer.h"

namespace weir {

class TextStream {
  public:
    explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    // The whole characters that are there with this token and were not before. Control tokens give nothing.
    std::string add(TokenId id) { return add_bytes(tokenizer_.piece(id)); }
    std::string add_bytes(std::string_view bytes);
    // What is left when no token follows.
    std::string finish();

  private:
    const Tokenizer& tokenizer_;
    std::string held_;  // the beginning of a character
};

// The text with bytes that are no UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace weir
