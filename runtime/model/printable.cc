#include "runtime/model/printable.h"

#include <cstdint>

namespace weir {
namespace {

// Length of the well-formed UTF-8 character at the start of text, and what it is; 0 where there is none.
size_t decode(std::string_view text, uint32_t& character) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const uint32_t first = byte(0);
    if (first < 0x80) {
        character = first;
        return 1;
    }
    const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
    character = first & (0x7fu >> length);
    for (size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
        character = character << 6 | (byte(i) & 0x3fu);
    }
    static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = character >= 0xd800 && character < 0xe000;
    return character < kLeast[length] || character > 0x10ffff || surrogate ? 0 : length;
}

// Controls (C0, DEL, C1), line and paragraph separators, directional marks.
bool steers_layout(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    while (!text.empty()) {
        uint32_t character = 0;
        const size_t length = decode(text, character);
        std::string piece;
        if (length > 0 && !steers_layout(character)) {
            piece = text.substr(0, length);
        } else {
            for (const char c : text.substr(0, length > 0 ? length : 1)) {
                const auto byte = static_cast<unsigned char>(c);
                piece += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
            }
        }
        if (out.size() + piece.size() > max_bytes) return out + "...";
        out += piece;
        text.remove_prefix(length > 0 ? length : 1);
    }
    return out;
}

std::string quoted(std::string_view text) {
    std::string out(1, '\'');
    out += printable(text);
    out += '\'';
    return out;
}

}  // namespace weir
