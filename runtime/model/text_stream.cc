#include "runtime/model/text_stream.h"

#include "runtime/model/utf8.h"

namespace weir {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

// True where more bytes could make a character of these.
bool begins_character(std::string_view bytes) {
    const auto first = static_cast<unsigned char>(bytes[0]);
    const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (bytes.size() >= length) return false;
    // Valid with some continuation: the second byte decides (see utf8_length), the others may be any.
    for (const char second : {'\x80', '\x90', '\xA0'}) {
        std::string whole(bytes);
        if (whole.size() == 1) whole += second;
        whole.resize(length, '\x80');
        if (utf8_length(whole) == length) return true;
    }
    return false;
}

// Appends the characters of `text` to `out` and returns what may be the beginning of another.
std::string_view take_characters(std::string_view text, std::string& out) {
    while (!text.empty()) {
        const size_t length = utf8_length(text);
        if (length > 0) {
            out.append(text.substr(0, length));
            text.remove_prefix(length);
            continue;
        }
        if (begins_character(text)) break;
        out.append(kReplacement);
        text.remove_prefix(1);
    }
    return text;
}

}  // namespace

std::string TextStream::add_bytes(std::string_view bytes) {
    held_.append(bytes);
    std::string out;
    held_ = std::string(take_characters(held_, out));
    return out;
}

std::string TextStream::finish() {
    if (held_.empty()) return {};
    held_.clear();
    return std::string(kReplacement);
}

std::string valid_utf8(std::string_view text) {
    std::string out;
    if (!take_characters(text, out).empty()) out.append(kReplacement);
    return out;
}

}  // namespace weir
