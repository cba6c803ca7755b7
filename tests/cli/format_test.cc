#include "runtime/cli/format.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace weir {
namespace {

TEST(Format, Bytes) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.00 KiB");
    EXPECT_EQ(format_bytes(1536), "1.50 KiB");
    EXPECT_EQ(format_bytes(uint64_t{323} << 20), "323.0 MiB");
    EXPECT_EQ(format_bytes((uint64_t{1} << 20) - 1), "1.00 MiB");
    EXPECT_EQ(format_bytes(uint64_t{19} << 29), "9.50 GiB");
    EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(Format, Fixed) {
    EXPECT_EQ(format_fixed(1.25, 1), "1.2");
    EXPECT_EQ(format_fixed(1e300, 0).size(), 301u);
}

TEST(Format, Table) {
    EXPECT_EQ(format_table({{"a", "1", "x"}, {"bcd", "10", "yy"}}, "lrl"), "  a     1  x\n  bcd  10  yy\n");
    EXPECT_EQ(format_table({{"\xc3\xa4", "1"}, {"bb", "2"}}, "ll"), "  \xc3\xa4   1\n  bb  2\n");
    EXPECT_EQ(format_table({}, "l"), "");
}

}  // namespace
}  // namespace weir
