// Models in several files: all parts from any one, and a clear word where they are not what they should be.
#include "runtime/model/gguf_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "runtime/model/gguf.h"
#include "runtime/model/native_convert.h"
#include "tests/model/small_model.h"

namespace weir::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(PartNames, AreThoseOfGgufSplit) {
    EXPECT_EQ((PartName{"a/b-c", 2, 3}.path()), "a/b-c-00002-of-00003.gguf");
    const auto name = parse_part_name("x/-of-00012-of-00345.gguf");
    ASSERT_TRUE(name);
    EXPECT_EQ(name->stem, "x/-of");
    EXPECT_EQ(name->number, 12u);
    EXPECT_EQ(name->count, 345u);
    for (const char* other : {"", "a.gguf", "-00001-of-0003.gguf", "a-00001-of-00003.gguf.part", "a-00001-of-00003GGUF", "a-0000x-of-00003.gguf",
                              "a-   1-of-00003.gguf", "a-+0001-of-00003.gguf", "a-00001_of-00003.gguf"}) {
        EXPECT_FALSE(parse_part_name(other)) << other;
    }
}

class SplitModel : public testing::Test {
  protected:
    SplitModel() {
        std::string name = (fs::temp_directory_path() / "weir-split-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
        folder_ = name;
        write_parts(SmallModel().writer(), 3);
    }
    ~SplitModel() override { fs::remove_all(folder_); }

    std::string path(size_t number, size_t count = 3) const { return PartName{(folder_ / "m").string(), number, count}.path(); }

    void write(const std::string& to, const GgufWriter& writer) {
        std::vector<std::byte> bytes = writer.header();
        bytes.resize(static_cast<size_t>(writer.file_size()));
        std::ofstream(to, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    void write_parts(const GgufWriter& whole, uint16_t count) {
        const size_t n = whole.tensor_count();
        for (uint16_t i = 0; i < count; ++i) {
            const size_t first = i * n / count, end = (i + 1u) * n / count;
            write(path(i + 1u, count), whole.part(static_cast<uint16_t>(i + 1), count, first, end - first));
        }
    }
    // Of opening any of the parts.
    void expect_refusal(size_t number, const testing::Matcher<std::string>& what) {
        try {
            (void)GgufFile::open(path(number));
            FAIL() << "no error";
        } catch (const Error& e) {
            EXPECT_THAT(e.what(), what);
            EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
        }
    }

    fs::path folder_;
};

TEST_F(SplitModel, AnyPartOpensAll) {
    const GgufWriter whole = SmallModel().writer();
    const std::string one = folder_ / "whole.gguf";
    write(one, whole);
    const GgufFile expected = GgufFile::open(one);
    ASSERT_EQ(expected.parts().size(), 1u);
    for (const size_t number : {1, 2, 3}) {
        const GgufFile file = GgufFile::open(path(number));
        EXPECT_EQ(file.path(), path(1));
        ASSERT_EQ(file.parts().size(), 3u);
        ASSERT_EQ(file.tensors().size(), expected.tensors().size());
        uint64_t bytes = 0, end = 0;
        for (size_t i = 0; i < 3; ++i) {
            EXPECT_EQ(file.parts()[i].path, path(i + 1));
            EXPECT_EQ(file.parts()[i].bytes, fs::file_size(path(i + 1)));
            EXPECT_GE(file.parts()[i].begin, end);
            bytes += file.parts()[i].bytes;
            end = file.parts()[i].begin + file.parts()[i].bytes + (64 << 10);  // never one page with the next
        }
        EXPECT_EQ(file.file_size(), bytes);
        for (const GgufTensor& t : expected.tensors()) {
            const GgufTensor& got = file.tensor(t.name);
            EXPECT_EQ(got.bytes, t.bytes);
            const GgufPart& part = file.part_of(got);
            EXPECT_GE(got.offset, part.begin + part.data_offset);
            EXPECT_LE(got.offset + got.bytes, part.begin + part.bytes);
        }
        EXPECT_EQ(file.require_string("general.architecture"), "llama");
        EXPECT_EQ(read_config(file).n_layers, 2u);
    }
}

TEST_F(SplitModel, IsNotConverted) {
    const GgufFile file = GgufFile::open(path(2));
    const fs::path out = folder_ / "out.weir";
    try {
        convert_to_native(file, read_config(file), out, {}, [](uint64_t, uint64_t) { return true; });
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr("split into 3 files"));
    }
    EXPECT_FALSE(fs::exists(out));
}

// Keys of a split model that a native file's index carries say nothing of that file.
TEST_F(SplitModel, ANativeFileIsWhole) {
    const std::string plain = folder_ / "plain.gguf", marked = folder_ / "marked.gguf", out = folder_ / "out.weir";
    GgufWriter writer = SmallModel().writer();
    write(plain, writer);
    writer.add("split.count", uint32_t{3});
    write(marked, writer);
    std::vector<std::byte> bytes = writer.header();
    bytes.resize(static_cast<size_t>(writer.file_size()));
    const GgufFile alone = GgufFile::parse(bytes, bytes.size(), marked);
    convert_to_native(alone, read_config(GgufFile::open(plain)), out, {}, [](uint64_t, uint64_t) { return true; });
    const GgufFile native = GgufFile::open(out);
    EXPECT_NE(native.native(), nullptr);
    EXPECT_EQ(native.parts().size(), 1u);
    EXPECT_EQ(read_config(native).n_layers, 2u);
}

TEST_F(SplitModel, MissingPartsAreNamed) {
    fs::remove(path(2));
    expect_refusal(1, AllOf(HasSubstr(path(2)), HasSubstr("No such file"), HasSubstr("part 2 of 3 of the model that")));
    expect_refusal(3, HasSubstr(path(2)));
    fs::remove(path(1));
    expect_refusal(3, HasSubstr(path(1)));
}

TEST_F(SplitModel, PartsInTheWrongOrder) {
    fs::rename(path(2), folder_ / "x");
    fs::rename(path(3), path(2));
    fs::rename(folder_ / "x", path(3));
    expect_refusal(1, AllOf(HasSubstr(path(2)), HasSubstr("is part 3 of 3 by its keys, not part 2 of 3")));
    expect_refusal(2, HasSubstr("is part 3 of 3 of a split model by its keys"));
}

TEST_F(SplitModel, APartOfAnotherName) {
    fs::rename(path(1), folder_ / "model.gguf");
    try {
        (void)GgufFile::open(folder_ / "model.gguf");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_THAT(e.what(), AllOf(HasSubstr("model.gguf: is part 1 of 3"), HasSubstr("NAME-00001-of-00003.gguf")));
    }
}

TEST_F(SplitModel, ADamagedPartIsNamed) {
    fs::resize_file(path(3), 40);
    expect_refusal(1, AllOf(HasSubstr(path(3)), HasSubstr("part 3 of 3")));
    std::ofstream(path(3), std::ios::trunc) << "no model";
    expect_refusal(1, AllOf(HasSubstr(path(3)), HasSubstr("not a GGUF file")));
    fs::remove(path(3));
    fs::create_directory(path(3));
    expect_refusal(1, AllOf(HasSubstr(path(3)), HasSubstr("directory")));
}

TEST_F(SplitModel, ATensorInTwoParts) {
    GgufWriter twice = SmallModel().writer().part(3, 3, 0, 1);
    write(path(3), twice);
    expect_refusal(1, AllOf(HasSubstr(path(3)), HasSubstr("'token_embd.weight' is in " + path(1))));
}

TEST_F(SplitModel, CountsThatDoNotFit) {
    const GgufWriter whole = SmallModel().writer();
    const size_t n = whole.tensor_count();
    write(path(3), whole.part(3, 3, n - 1, 1));
    expect_refusal(1, AllOf(HasSubstr(path(1) + ": split.tensors.count is " + std::to_string(n)), HasSubstr("the parts have")));

    SmallModel larger;
    larger.layers = 3;
    const GgufWriter other = larger.writer();
    write(path(3), other.part(3, 3, other.tensor_count() - 1, 1));
    expect_refusal(1, AllOf(HasSubstr(path(3)), HasSubstr("a part of another model")));
    write(path(3), other.part(3, 4, other.tensor_count() - 1, 1));
    expect_refusal(1, AllOf(HasSubstr(path(3)), HasSubstr("is part 3 of 4 by its keys")));
}

TEST_F(SplitModel, NumbersThatCannotBe) {
    const auto with = [&](uint32_t no, uint32_t count) {
        GgufWriter writer;
        writer.add("split.no", no);
        writer.add("split.count", count);
        write(path(1), writer);
    };
    with(3, 3);
    expect_refusal(1, HasSubstr("split.no is 3 and split.count 3"));
    with(0, UINT32_MAX);
    expect_refusal(1, HasSubstr("no such part"));
    GgufWriter without;
    without.add("split.count", uint32_t{3});
    write(path(1), without);
    expect_refusal(1, AllOf(HasSubstr("split.no"), HasSubstr("missing")));
    GgufWriter text;
    text.add("split.count", "three");
    write(path(1), text);
    expect_refusal(1, HasSubstr("split.count"));
}

}  // namespace
}  // namespace weir::test
