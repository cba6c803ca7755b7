#include "runtime/cli/size_arg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "runtime/error.h"

namespace weir {
namespace {

using testing::HasSubstr;

uint64_t bytes(const std::string& text) {
    const SizeArg size = parse_size(text, "--ram");
    EXPECT_FALSE(size.percent) << text;
    return size.bytes;
}

std::string refusal(const std::string& text) {
    try {
        parse_size(text, "--ram");
    } catch (const UsageError& error) {
        return error.what();
    }
    return {};
}

TEST(SizeArg, Sizes) {
    EXPECT_EQ(bytes("123"), 123u);
    EXPECT_EQ(bytes("123B"), 123u);
    EXPECT_EQ(bytes("1K"), 1024u);
    EXPECT_EQ(bytes("512M"), uint64_t{512} << 20);
    EXPECT_EQ(bytes("512m"), uint64_t{512} << 20);
    EXPECT_EQ(bytes("4G"), uint64_t{4} << 30);
    EXPECT_EQ(bytes("4GiB"), uint64_t{4} << 30);
    EXPECT_EQ(bytes("1.5G"), uint64_t{3} << 29);
    EXPECT_EQ(bytes("2T"), uint64_t{2} << 40);
    EXPECT_EQ(bytes("0.5K"), 512u);
    EXPECT_EQ(bytes("8388607T"), uint64_t{8388607} << 40);
}

TEST(SizeArg, Shares) {
    const SizeArg share = parse_size("40%", "--ram");
    EXPECT_TRUE(share.percent);
    EXPECT_EQ(share.share, 0.4);
    EXPECT_EQ(share.of(1000), 400u);
    EXPECT_EQ(parse_size("12.5%", "--ram").of(800), 100u);
    EXPECT_EQ(parse_size("100%", "--ram").of(UINT64_MAX), UINT64_MAX);
    EXPECT_EQ(parse_size("1K", "--ram").of(5), 1024u);
}

TEST(SizeArg, Refusals) {
    for (const char* text : {"", "-1", "-1G", "+1G", "G", ".5G", "x", "inf", "nan", " 1G", "%"}) {
        EXPECT_THAT(refusal(text), HasSubstr("not a size")) << text;
    }
    for (const char* text : {"4X", "0x10", "4GB", "4 G", "1e3", "1,5G", "4Gi", "4K%", "40%%", "1G ", "4BiB"}) {
        EXPECT_THAT(refusal(text), HasSubstr("unknown unit")) << text;
    }
    for (const char* text : {"0", "0G", "0%", "0.0%", "0.1"}) {
        EXPECT_THAT(refusal(text), HasSubstr("not more than nothing")) << text;
    }
    EXPECT_THAT(refusal("101%"), HasSubstr("more than all"));
    for (const char* text : {"8388608T", "9223372036854775808", "99999999999999999999999999G"}) {
        EXPECT_THAT(refusal(text), HasSubstr("too large")) << text;
    }
    EXPECT_EQ(refusal(std::string(400, '9')).find('\n'), std::string::npos);
    EXPECT_THAT(refusal("4X"), HasSubstr("--ram '4X'"));
}

TEST(TimedSizes, AreMomentsAndSizesInOrder) {
    const auto steps = parse_timed_sizes("0s:1G,10s:50%,10500ms:600M", "--budget-script");
    ASSERT_EQ(steps.size(), 3u);
    EXPECT_EQ(steps[0].at_ms, 0u);
    EXPECT_EQ(steps[1].at_ms, 10'000u);
    EXPECT_EQ(steps[2].at_ms, 10'500u);
    EXPECT_EQ(steps[1].size.of(1000), 500u);
    EXPECT_EQ(steps[2].size.of(0), uint64_t{600} << 20);
}

TEST(TimedSizes, AnythingElseIsRefused) {
    for (const char* text : {"", ",", "1G", "10:1G", "10s", "10s:", "s:1G", "10s:1G,", "10s:1G,9s:1G", "-1s:1G", "10s:1X", "99999999999999999999s:1G"})
        EXPECT_THROW(parse_timed_sizes(text, "--budget-script"), UsageError) << text;
}

}  // namespace
}  // namespace weir
