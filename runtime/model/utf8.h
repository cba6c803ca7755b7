// UTF-8 as the tokenizers need it: cut text into characters, and tell bytes that are none. Strict as RFC 3629 has
// it (no overlong forms, no surrogates, nothing above U+10FFFF): pcre2 is handed text on the strength of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weir {

// Bytes of the character that text begins with; 0 where text is empty or begins with a byte that is not valid there.
size_t utf8_length(std::string_view text) noexcept;

// The code point of a character of `length` valid bytes.
uint32_t utf8_decode(const char* bytes, size_t length) noexcept;

void utf8_append(std::string& out, uint32_t code_point);

}  // namespace weir
