#include "runtime/model/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace weir {
namespace {

TEST(Printable, KeepsText) {
    EXPECT_EQ(printable(""), "");
    EXPECT_EQ(printable("plain text"), "plain text");
    EXPECT_EQ(printable("\xe2\x96\x81the \xc3\xa4 \xf0\x9f\x98\x80"),
              "\xe2\x96\x81the \xc3\xa4 \xf0\x9f\x98\x80");
    EXPECT_EQ(quoted("a"), "'a'");
}

TEST(Printable, EscapesWhatIsNoText) {
    EXPECT_EQ(printable("a\nb\x1b[0m\x7f"), "a\\x0ab\\x1b[0m\\x7f");
    EXPECT_EQ(printable(std::string("\0", 1)), "\\x00");
    EXPECT_EQ(printable("\xc2\x85"), "\\xc2\\x85");           // C1: next line
    EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
    EXPECT_EQ(printable("\xff\x80"), "\\xff\\x80");
    EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");                    // overlong
    EXPECT_EQ(printable("\xe0\x80\x80"), "\\xe0\\x80\\x80");           // overlong
    EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // surrogate
    EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
    EXPECT_EQ(printable("\xe2\x96"), "\\xe2\\x96");                    // cut short
}

TEST(Printable, CutsLongText) {
    EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
    EXPECT_EQ(printable(std::string(81, 'x')), std::string(80, 'x') + "...");
    EXPECT_EQ(printable("ab\xc3\xa4", 3), "ab...");
    EXPECT_EQ(printable("ab\xc3\xa4", 4), "ab\xc3\xa4");
}

}  // namespace
}  // namespace weir
