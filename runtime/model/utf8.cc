#include "runtime/model/utf8.h"

namespace weir {

size_t utf8_length(std::string_view text) noexcept {
    if (text.empty()) return 0;
    const auto at = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned first = at(0);
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (text.size() < length) return 0;
    // The second byte's range is narrower after these: overlong forms, surrogates, beyond U+10FFFF.
    const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (at(1) < low || at(1) > high) return 0;
    for (size_t i = 2; i < length; ++i) {
        if ((at(i) & 0xC0) != 0x80) return 0;
    }
    return length;
}

uint32_t utf8_decode(const char* bytes, size_t length) noexcept {
    const auto first = static_cast<unsigned char>(bytes[0]);
    if (length == 1) return first;
    uint32_t code_point = first & (0x7Fu >> length);
    for (size_t i = 1; i < length; ++i) {
        code_point = code_point << 6 | (static_cast<unsigned char>(bytes[i]) & 0x3Fu);
    }
    return code_point;
}

void utf8_append(std::string& out, uint32_t code_point) {
    const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code_point < 0x80) {
        put(code_point);
        return;
    }
    if (code_point < 0x800) {
        put(0xC0 | code_point >> 6);
    } else if (code_point < 0x10000) {
        put(0xE0 | code_point >> 12);
        put(0x80 | (code_point >> 6 & 0x3F));
    } else {
        put(0xF0 | code_point >> 18);
        put(0x80 | (code_point >> 12 & 0x3F));
        put(0x80 | (code_point >> 6 & 0x3F));
    }
    put(0x80 | (code_point & 0x3F));
}

}  // namespace weir
