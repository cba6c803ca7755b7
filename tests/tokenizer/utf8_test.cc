#include "runtime/model/utf8.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(Utf8, EveryCodePointComesBack) {
    for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
        std::string text;
        utf8_append(text, code_point);
        const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
        const size_t want = surrogate ? 0 : text.size();
        bool right = utf8_length(text) == want && utf8_length(text + "x") == want &&
                     utf8_decode(text.data(), text.size()) == code_point;
        for (size_t cut = 1; cut < text.size(); ++cut) right = right && utf8_length({text.data(), cut}) == 0;
        ASSERT_TRUE(right) << code_point;
    }
}

TEST(Utf8, RefusesWhatIsNone) {
    for (const std::string_view text :
         {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3(", "\xE2\x82(", "\xF0\x9F\x98("}) {
        EXPECT_EQ(utf8_length(text), 0u) << testing::PrintToString(text);
    }
    EXPECT_EQ(utf8_length({}), 0u);
}

}  // namespace
}  // namespace weir
