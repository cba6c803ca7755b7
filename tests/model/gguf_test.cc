// What a well-formed file gives, and what each kind of malformed header is refused for.
#include "runtime/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "runtime/model/byte_reader.h"
#include "runtime/model/gguf_writer.h"
#include "tests/model/raw_gguf.h"

namespace weir {
namespace {

using test::RawGguf;
using testing::HasSubstr;

GgufFile parse(const std::vector<std::byte>& bytes) {
    return GgufFile::parse(bytes, bytes.size(), "test.gguf");
}
GgufFile parse(const RawGguf& raw) {
    return parse(raw.bytes());
}

// The message of the Error that reading throws; empty where it throws none.
std::string refusal(const std::vector<std::byte>& bytes, uint64_t file_size) {
    try {
        GgufFile::parse(bytes, file_size, "test.gguf");
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}
std::string refusal(const RawGguf& raw) {
    return refusal(raw.bytes(), raw.bytes().size());
}

TEST(Gguf, EveryMetadataType) {
    RawGguf raw;
    raw.start(0, 14);
    raw.key("u8", 0).put(uint8_t{200}).key("i8", 1).put(int8_t{-100});
    raw.key("u16", 2).put(uint16_t{60000}).key("i16", 3).put(int16_t{-30000});
    raw.key("u32", 4).put(uint32_t{4000000000}).key("i32", 5).put(int32_t{-2000000000});
    raw.key("f32", 6).put(1.5f).key("bool", 7).put(uint8_t{1});
    raw.key("string", 8).text(std::string_view("a\0b", 3)).key("empty", 8).text("");
    raw.key("u64", 10).put(std::numeric_limits<uint64_t>::max());
    raw.key("i64", 11).put(std::numeric_limits<int64_t>::min());
    raw.key("f64", 12).put(-2.25).key("positive", 5).put(int32_t{7});
    const GgufFile file = parse(raw);
    EXPECT_EQ(file.get_uint("u8"), 200u);
    EXPECT_EQ(std::get<int64_t>(*file.find("i8")), -100);
    EXPECT_EQ(file.get_uint("u16"), 60000u);
    EXPECT_EQ(std::get<int64_t>(*file.find("i16")), -30000);
    EXPECT_EQ(file.get_uint("u32"), 4000000000u);
    EXPECT_EQ(std::get<int64_t>(*file.find("i32")), -2000000000);
    EXPECT_EQ(file.get_float("f32"), 1.5);
    EXPECT_EQ(file.get_bool("bool"), true);
    EXPECT_EQ(*file.get_string("string"), std::string("a\0b", 3));
    EXPECT_EQ(file.require_string("empty"), "");
    EXPECT_EQ(file.require_uint("u64"), std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(std::get<int64_t>(*file.find("i64")), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(file.get_float("f64"), -2.25);
    EXPECT_EQ(file.get_uint("positive"), 7u);
    EXPECT_EQ(file.metadata().size(), 14u);
    EXPECT_EQ(file.metadata().front().first, "u8");
}

TEST(Gguf, EveryArrayType) {
    RawGguf raw;
    raw.start(0, 13);
    raw.array("u8", 0, 2).put(uint8_t{1}).put(uint8_t{255});
    raw.array("i8", 1, 1).put(int8_t{-1});
    raw.array("u16", 2, 1).put(uint16_t{65535});
    raw.array("i16", 3, 1).put(int16_t{-2});
    raw.array("u32", 4, 1).put(uint32_t{4294967295});
    raw.array("i32", 5, 1).put(int32_t{-3});
    raw.array("f32", 6, 2).put(0.5f).put(-0.5f);
    raw.array("bool", 7, 2).put(uint8_t{0}).put(uint8_t{1});
    raw.array("string", 8, 2).text("one").text("two");
    raw.array("u64", 10, 1).put(uint64_t{1} << 62);
    raw.array("i64", 11, 1).put(int64_t{-4});
    raw.array("f64", 12, 1).put(1e300);
    raw.array("none", 8, 0);
    const GgufFile file = parse(raw);
    EXPECT_EQ(file.get_array("u8")->integers, (std::vector<int64_t>{1, 255}));
    EXPECT_EQ(file.get_array("i8")->integers, (std::vector<int64_t>{-1}));
    EXPECT_EQ(file.get_array("u16")->integers, (std::vector<int64_t>{65535}));
    EXPECT_EQ(file.get_array("i16")->integers, (std::vector<int64_t>{-2}));
    EXPECT_EQ(file.get_array("u32")->integers, (std::vector<int64_t>{4294967295}));
    EXPECT_EQ(file.get_array("i32")->integers, (std::vector<int64_t>{-3}));
    EXPECT_EQ(file.get_array("f32")->floats, (std::vector<double>{0.5, -0.5}));
    EXPECT_EQ(file.get_array("bool")->integers, (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(file.get_array("string")->strings, (std::vector<std::string>{"one", "two"}));
    EXPECT_EQ(file.get_array("u64")->integers, (std::vector<int64_t>{int64_t{1} << 62}));
    EXPECT_EQ(file.get_array("i64")->integers, (std::vector<int64_t>{-4}));
    EXPECT_EQ(file.get_array("f64")->floats, (std::vector<double>{1e300}));
    EXPECT_EQ(file.get_array("none")->size(), 0u);
    EXPECT_EQ(file.get_array("string")->element_type, 8u);
}

TEST(Gguf, LookUpsNameWhatIsWrong) {
    RawGguf raw;
    raw.start(0, 2).key("text", 8).text("x").key("negative", 5).put(int32_t{-1});
    const GgufFile file = parse(raw);
    EXPECT_EQ(file.get_uint("absent"), std::nullopt);
    EXPECT_EQ(file.get_string("absent"), nullptr);
    EXPECT_EQ(file.get_array("absent"), nullptr);
    EXPECT_EQ(file.find_tensor("absent"), nullptr);
    const auto message = [&](auto look_up) {
        try {
            look_up();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_EQ(message([&] { file.get_uint("text"); }),
              "test.gguf: key 'text' is not a whole number of 0 or more");
    EXPECT_EQ(message([&] { file.get_uint("negative"); }),
              "test.gguf: key 'negative' is not a whole number of 0 or more");
    EXPECT_EQ(message([&] { file.get_float("text"); }),
              "test.gguf: key 'text' is not a floating-point number");
    EXPECT_EQ(message([&] { file.get_bool("text"); }), "test.gguf: key 'text' is not a bool");
    EXPECT_EQ(message([&] { file.get_string("negative"); }), "test.gguf: key 'negative' is not a string");
    EXPECT_EQ(message([&] { file.get_array("text"); }), "test.gguf: key 'text' is not an array");
    EXPECT_EQ(message([&] { file.require_uint("absent"); }), "test.gguf: key 'absent' is missing");
    EXPECT_EQ(message([&] { file.require_string("absent"); }), "test.gguf: key 'absent' is missing");
    EXPECT_EQ(message([&] { file.tensor("absent"); }), "test.gguf: tensor 'absent' is missing");
}

TEST(Gguf, TensorsAndTheirPlaces) {
    for (const uint32_t version : {2u, 3u}) {
        RawGguf raw;
        raw.start(3, 0, version);
        raw.tensor("a", {32, 3}, 2, 0);           // Q4_0: 54 bytes
        raw.tensor("b", {5}, 0, 64);              // F32: 20 bytes
        raw.tensor("c", {256, 2, 2, 2}, 14, 96);  // Q6_K: 8 rows of 210 bytes
        raw.data(96 + 8 * 210);
        const GgufFile file = parse(raw);
        EXPECT_EQ(file.version(), version);
        EXPECT_EQ(file.alignment(), 32u);
        EXPECT_EQ(file.data_offset() % 32, 0u);
        ASSERT_EQ(file.tensors().size(), 3u);
        const GgufTensor& a = file.tensor("a");
        EXPECT_EQ(a.type, kernels::Type::kQ4_0);
        EXPECT_EQ(a.bytes, 54u);
        EXPECT_EQ(a.rows(), 3u);
        EXPECT_EQ(a.offset, file.data_offset());
        EXPECT_EQ(file.tensor("b").offset, file.data_offset() + 64);
        EXPECT_EQ(file.tensor("b").n_dims, 1u);
        EXPECT_EQ(file.tensor("c").rows(), 8u);
        EXPECT_EQ(file.tensor("c").bytes, 1680u);
    }
}

TEST(Gguf, AlignmentKeyAppliesWhereverItStands) {
    RawGguf raw;
    raw.start(2, 2).key("a", 0).put(uint8_t{1}).key("general.alignment", 4).put(uint32_t{128});
    raw.tensor("x", {4}, 0, 0).tensor("y", {4}, 0, 128);
    raw.data(144, 128);
    const GgufFile file = parse(raw);
    EXPECT_EQ(file.alignment(), 128u);
    EXPECT_EQ(file.tensor("y").offset, file.data_offset() + 128);
    for (const uint32_t bad : {0u, 1u, 4u, 24u, 33u, 0x80000000u}) {
        RawGguf wrong;
        wrong.start(0, 1).key("general.alignment", 4).put(bad);
        EXPECT_THAT(refusal(wrong), HasSubstr("general.alignment is " + std::to_string(bad)));
    }
}

TEST(Gguf, WriterRoundTrip) {
    for (const uint64_t alignment : {32u, 64u, 4096u}) {
        GgufWriter writer(alignment);
        writer.add("number", uint32_t{42});
        writer.add("real", 0.1f);
        writer.add("flag", false);
        writer.add("text", "words");
        writer.add("texts", std::vector<std::string>{"a", "", "ccc"});
        writer.add("reals", std::vector<float>{1.0f, -1.0f});
        writer.add("numbers", std::vector<int32_t>{-1, 0, 1});
        for (const kernels::TypeTraits& t : kernels::all_traits()) {
            writer.add_tensor(std::string("tensor.") + t.name, t.type, {256, 3});
        }
        std::vector<std::byte> bytes = writer.header();
        EXPECT_EQ(bytes.size(), writer.data_offset());
        bytes.resize(writer.file_size());
        const GgufFile file = parse(bytes);
        EXPECT_EQ(file.alignment(), alignment);
        EXPECT_EQ(file.get_uint("number"), 42u);
        EXPECT_EQ(file.get_float("real"), double{0.1f});
        EXPECT_EQ(file.get_bool("flag"), false);
        EXPECT_EQ(file.require_string("text"), "words");
        EXPECT_EQ(file.get_array("texts")->strings, (std::vector<std::string>{"a", "", "ccc"}));
        EXPECT_EQ(file.get_array("reals")->floats, (std::vector<double>{1.0, -1.0}));
        EXPECT_EQ(file.get_array("numbers")->integers, (std::vector<int64_t>{-1, 0, 1}));
        ASSERT_EQ(file.tensors().size(), kernels::all_traits().size());
        for (size_t i = 0; i < file.tensors().size(); ++i) {
            EXPECT_EQ(file.tensors()[i].type, kernels::all_traits()[i].type);
            EXPECT_EQ(file.tensors()[i].offset, writer.tensor_offset(i));
            EXPECT_EQ(file.tensors()[i].bytes, writer.tensor_bytes(i));
            EXPECT_EQ(file.tensors()[i].bytes, 3 * kernels::row_bytes(file.tensors()[i].type, 256));
        }
    }
    GgufWriter writer;
    EXPECT_THROW(writer.add_tensor("odd", kernels::Type::kQ4_0, {33}), Error);
    EXPECT_THROW(writer.add_tensor("flat", kernels::Type::kF32, {}), Error);
}

TEST(Gguf, MagicAndVersion) {
    EXPECT_THAT(refusal(RawGguf().raw("GGML").put(uint32_t{3})), HasSubstr("at byte 0: not a GGUF file"));
    EXPECT_THAT(refusal(RawGguf().raw("FUGG").put(uint32_t{3})), HasSubstr("big-endian"));
    EXPECT_THAT(refusal(RawGguf().raw("GGUF").put(uint32_t{0x03000000})),
                HasSubstr("at byte 4: a big-endian"));
    for (const uint32_t version : {0u, 1u, 4u, 77u}) {
        EXPECT_THAT(refusal(RawGguf().start(0, 0, version)),
                    HasSubstr("at byte 4: GGUF version " + std::to_string(version) + " is not supported"));
    }
    EXPECT_THAT(refusal(RawGguf().raw("GG")), HasSubstr("the file ends inside a number"));
    EXPECT_THAT(refusal(RawGguf().raw(std::string_view("\x7f"
                                                       "E\nF\0\0\0\0",
                                                       8))),
                HasSubstr("'\\x7fE\\x0aF'"));
}

TEST(Gguf, AbsurdCounts) {
    EXPECT_THAT(refusal(RawGguf().start(uint64_t{1} << 60, 0)),
                HasSubstr("test.gguf: at byte 8: 1152921504606846976 tensors cannot be in the"));
    EXPECT_THAT(refusal(RawGguf().start(0, uint64_t{1} << 60)),
                HasSubstr("at byte 16: 1152921504606846976 keys"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).put(uint64_t{1} << 63).data(64)),
                HasSubstr("a key of 9223372036854775808"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).key("k", 8).put(uint64_t{1} << 63).data(64)),
                HasSubstr("a string of 9223372036854775808 bytes"));
    for (const uint32_t type : {0u, 5u, 7u, 8u, 12u}) {
        EXPECT_THAT(refusal(RawGguf().start(0, 1).array("k", type, uint64_t{1} << 61).data(64)),
                    HasSubstr("2305843009213693952"));
    }
    EXPECT_THAT(refusal(RawGguf().start(1, 0).put(uint64_t{70000}).data(80000)),
                HasSubstr("more than 65535"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).text("").data(64)), HasSubstr("a key is empty"));
}

// A sparse file costs its author nothing, so counts that its size allows are bounded by the memory they would
// take.
TEST(Gguf, HugeFileCannotAskForHugeMemory) {
    const uint64_t file_size = uint64_t{1} << 42;
    for (const uint32_t type : {0u, 7u, 8u, 12u}) {
        const RawGguf raw = RawGguf().start(0, 1).array("k", type, uint64_t{1} << 36);
        EXPECT_THAT(refusal(raw.bytes(), file_size), HasSubstr("would take more than 256 MiB")) << type;
    }
    const RawGguf text = RawGguf().start(0, 1).key("k", 8).put(uint64_t{1} << 36);
    EXPECT_THAT(refusal(text.bytes(), file_size), HasSubstr("would take more than 256 MiB"));
    // Counts of entries are not reserved for: here the bytes simply end.
    const RawGguf tensors = RawGguf().start(uint64_t{1} << 36, uint64_t{1} << 36);
    EXPECT_THAT(refusal(tensors.bytes(), file_size), HasSubstr("the file has become shorter"));
}

TEST(Gguf, MalformedValues) {
    EXPECT_THAT(refusal(RawGguf().start(0, 1).key("k", 13).data(64)), HasSubstr("unknown value type 13"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).array("k", 99, 1).data(64)),
                HasSubstr("unknown value type 99"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).array("k", 9, 1).data(64)), HasSubstr("array of arrays"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).key("k", 7).put(uint8_t{2})), HasSubstr("a bool of value 2"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).array("k", 10, 1).put(uint64_t{1} << 63)),
                HasSubstr("too large"));
    RawGguf twice;
    twice.start(0, 2).key("same", 0).put(uint8_t{1}).key("same", 0).put(uint8_t{1}).data(32);
    EXPECT_THAT(refusal(twice), HasSubstr("key 'same' is there twice"));
    EXPECT_THAT(refusal(RawGguf().start(0, 1).key("a\nb\x1b[0m", 13).data(64)),
                HasSubstr("'a\\x0ab\\x1b[0m'"));
}

TEST(Gguf, MalformedTensors) {
    const auto one = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset, uint64_t data) {
        return refusal(RawGguf().start(1, 0).tensor("t", dims, type, offset).data(data));
    };
    EXPECT_EQ(one({8}, 0, 0, 32), "");
    EXPECT_THAT(one({8}, 4, 0, 32),
                HasSubstr("tensor 't' has type 4, which is not supported; these are: F32"));
    EXPECT_THAT(one({8}, 40, 0, 32), HasSubstr("type 40 (NVFP4)"));
    EXPECT_THAT(one({8}, 0xffffffff, 0, 32), HasSubstr("type 4294967295"));
    EXPECT_THAT(one({128}, 23, 0, 136), HasSubstr("rows of 128, which blocks of 256 (IQ4_XS) do not divide"));
    EXPECT_EQ(one({256}, 23, 0, 136), "");
    EXPECT_THAT(one({33}, 2, 0, 64), HasSubstr("rows of 33, which blocks of 32 (Q4_0) do not divide"));
    EXPECT_THAT(one({8}, 0, 4, 64), HasSubstr("no multiple of the alignment of 32"));
    EXPECT_THAT(one({8}, 0, 32, 32), HasSubstr("the file is truncated"));
    EXPECT_THAT(one({9}, 0, 0, 32), HasSubstr("the file is truncated"));
    EXPECT_THAT(one({8}, 0, ~uint64_t{0} - 31, 32), HasSubstr("larger than any file"));
    EXPECT_THAT(one({}, 0, 0, 32), HasSubstr("has 0 dimensions"));
    EXPECT_THAT(one({1, 1, 1, 1, 1}, 0, 0, 32), HasSubstr("has 5 dimensions"));
    EXPECT_THAT(one({0}, 0, 0, 32), HasSubstr("a dimension of 0"));
    EXPECT_THAT(one({8, 0}, 0, 0, 32), HasSubstr("a dimension of 0"));
    const uint64_t huge = uint64_t{1} << 32;
    EXPECT_THAT(one({huge, huge, huge}, 0, 0, 32), HasSubstr("larger than any file"));
    EXPECT_THAT(one({~uint64_t{0}}, 0, 0, 32), HasSubstr("larger than any file"));

    RawGguf twice;
    twice.start(2, 0).tensor("same", {8}, 0, 0).tensor("same", {8}, 0, 32).data(64);
    EXPECT_THAT(refusal(twice), HasSubstr("tensor 'same' is there twice"));
    RawGguf overlap;
    overlap.start(2, 0).tensor("second", {8}, 0, 32).tensor("first", {9}, 0, 0).data(64);
    EXPECT_THAT(refusal(overlap), HasSubstr("tensors 'first' and 'second' overlap"));
    RawGguf same_place;
    same_place.start(2, 0).tensor("a", {8}, 0, 0).tensor("b", {8}, 0, 0).data(64);
    EXPECT_THAT(refusal(same_place), HasSubstr("overlap"));
}

TEST(ByteReader, ReadsAcrossWindows) {
    std::vector<std::byte> bytes((size_t{3} << 20) + 5);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    ByteReader reader("r", bytes.size(), [&](uint64_t offset, std::span<std::byte> out) {
        // Less than asked for, as a file system may.
        const size_t n = std::min<size_t>(out.size(), 1000003);
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), n, out.begin());
        return n;
    });
    uint64_t at = 0;
    while (reader.remaining() >= 7) {
        const std::string text = reader.text(7);
        for (size_t i = 0; i < 7; ++i) ASSERT_EQ(static_cast<std::byte>(text[i]), bytes[at + i]) << at + i;
        at += 7;
        ASSERT_EQ(reader.position(), at);
    }
    EXPECT_THROW(reader.text(7), Error);
}

TEST(ByteReader, CheckedArithmetic) {
    const ByteReader reader("r", 10, [](uint64_t, std::span<std::byte>) { return size_t{0}; });
    const uint64_t top = std::numeric_limits<uint64_t>::max();
    EXPECT_EQ(reader.add(top - 1, 1, "x"), top);
    EXPECT_THROW(reader.add(top, 1, "x"), Error);
    EXPECT_EQ(reader.mul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, "x"), top - ((uint64_t{1} << 32) - 1));
    EXPECT_THROW(reader.mul(uint64_t{1} << 32, uint64_t{1} << 32, "x"), Error);
    EXPECT_EQ(reader.align_up(0, 32, "x"), 0u);
    EXPECT_EQ(reader.align_up(1, 32, "x"), 32u);
    EXPECT_EQ(reader.align_up(32, 32, "x"), 32u);
    EXPECT_THROW(reader.align_up(top, 32, "x"), Error);
    EXPECT_NO_THROW(reader.need(10, "x"));
    EXPECT_THROW(reader.need(11, "x"), Error);
}

}  // namespace
}  // namespace weir
