// Damaged files: cut short anywhere, any bit flipped. Each gives an Error or a file that is consistent; never
// a crash, which the sanitizer builds watch for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"
#include "tests/model/raw_gguf.h"
#include "tests/model/small_model.h"

namespace weir {
namespace {

using test::RawGguf;
using test::SmallModel;
using testing::HasSubstr;

// What must hold for every file that was accepted.
void check_consistent(const GgufFile& file) {
    for (const GgufTensor& tensor : file.tensors()) {
        ASSERT_GE(tensor.offset, file.data_offset());
        ASSERT_LE(tensor.offset, file.file_size());
        ASSERT_LE(tensor.bytes, file.file_size() - tensor.offset);
        ASSERT_EQ(tensor.bytes, tensor.rows() * kernels::row_bytes(tensor.type, tensor.dims[0]));
        ASSERT_EQ(file.find_tensor(tensor.name), &tensor);
    }
    for (const auto& [key, value] : file.metadata()) ASSERT_EQ(file.find(key), &value);
}

enum class Outcome { kRefused, kParsed, kModel };

Outcome read_all(std::span<const std::byte> bytes) {
    try {
        const GgufFile file = GgufFile::parse(bytes, bytes.size(), "damaged.gguf");
        check_consistent(file);
        try {
            const ModelConfig config = read_config(file);
            EXPECT_GT(config.n_layers, 0u);
            return Outcome::kModel;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("damaged.gguf: "));
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        }
        return Outcome::kParsed;
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("damaged.gguf: "));
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
    return Outcome::kRefused;
}

RawGguf with_all_types() {
    RawGguf raw;
    raw.start(2, 7);
    raw.key("general.architecture", 8).text("llama").key("n", 4).put(uint32_t{5}).key("f", 6).put(1.0f);
    raw.key("b", 7).put(uint8_t{1});
    raw.array("s", 8, 2).text("ab").text("").array("i", 5, 2).put(int32_t{1}).put(int32_t{2});
    raw.array("d", 12, 1).put(3.0);
    raw.tensor("x", {32, 2}, 8, 0).tensor("y", {4}, 0, 96);
    raw.data(96 + 16);
    return raw;
}

TEST(GgufDamage, TruncatedAtEveryByte) {
    for (const std::vector<std::byte>& bytes : {with_all_types().bytes(), SmallModel{}.bytes()}) {
        const GgufFile whole = GgufFile::parse(bytes, bytes.size(), "whole.gguf");
        uint64_t needed = 0;
        for (const GgufTensor& tensor : whole.tensors())
            needed = std::max(needed, tensor.offset + tensor.bytes);
        for (size_t n = 0; n < needed; ++n) {
            ASSERT_EQ(read_all(std::span(bytes).first(n)), Outcome::kRefused) << n;
        }
        for (size_t n = needed; n <= bytes.size(); ++n) {
            ASSERT_NE(read_all(std::span(bytes).first(n)), Outcome::kRefused) << n;
        }
    }
}

TEST(GgufDamage, TruncatedAtEveryBoundaryNamesTheOffset) {
    const RawGguf raw = with_all_types();
    for (const size_t n : raw.boundaries()) {
        try {
            GgufFile::parse(std::span(raw.bytes()).first(n), n, "cut.gguf");
            ADD_FAILURE() << "accepted at " << n;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("cut.gguf: at byte "));
        }
    }
}

// The reader is told a size that the bytes do not reach: a file that shrank in between.
TEST(GgufDamage, ShrinksWhileItIsRead) {
    const std::vector<std::byte> bytes = SmallModel{}.bytes();
    const GgufFile whole = GgufFile::parse(bytes, bytes.size(), "whole.gguf");
    for (size_t n = 0; n + 64 < whole.data_offset(); ++n) {
        EXPECT_THROW(GgufFile::parse(std::span(bytes).first(n), bytes.size(), "shrunk.gguf"), Error) << n;
    }
}

TEST(GgufDamage, AnyBitFlipped) {
    for (const std::vector<std::byte>& whole : {with_all_types().bytes(), SmallModel{}.bytes()}) {
        const uint64_t header = GgufFile::parse(whole, whole.size(), "whole.gguf").data_offset();
        std::vector<std::byte> bytes = whole;
        size_t outcomes[3] = {};
        for (size_t bit = 0; bit < header * 8; ++bit) {
            const auto mask = static_cast<std::byte>(1u << (bit % 8));
            bytes[bit / 8] ^= mask;
            ++outcomes[static_cast<size_t>(read_all(bytes))];
            bytes[bit / 8] ^= mask;
        }
        EXPECT_GT(outcomes[static_cast<size_t>(Outcome::kRefused)], header);
        EXPECT_GT(outcomes[static_cast<size_t>(Outcome::kParsed)], 0u);
    }
}

TEST(GgufDamage, RandomBytesOverwritten) {
    const std::vector<std::byte> whole = SmallModel{}.bytes();
    const uint64_t header = GgufFile::parse(whole, whole.size(), "whole.gguf").data_offset();
    const uint64_t seed = 1;
    SCOPED_TRACE("seed " + std::to_string(seed));
    uint64_t state = seed;
    const auto next = [&] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    };
    for (int round = 0; round < 5000; ++round) {
        std::vector<std::byte> bytes = whole;
        for (int changes = 0; changes < 1 + round % 4; ++changes) {
            static constexpr uint8_t kTelling[] = {0, 1, 2, 0x7f, 0x80, 0xff};
            bytes[next() % header] = static_cast<std::byte>(kTelling[next() % std::size(kTelling)]);
        }
        read_all(bytes);
    }
}

class GgufOpen : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "weir-gguf-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string write(const std::string& name, std::span<const std::byte> bytes) const {
        std::ofstream out(folder_ / name, std::ios::binary);
        out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        return folder_ / name;
    }
    static std::string refusal(const std::string& path) {
        try {
            GgufFile::open(path);
        } catch (const Error& error) {
            return error.what();
        }
        return {};
    }

    std::filesystem::path folder_;
};

TEST_F(GgufOpen, ReadsAFile) {
    const std::vector<std::byte> bytes = SmallModel{}.bytes();
    const GgufFile file = GgufFile::open(write("small.gguf", bytes));
    EXPECT_EQ(file.file_size(), bytes.size());
    EXPECT_EQ(read_config(file).n_layers, 2u);
}

TEST_F(GgufOpen, RefusesWhatIsNoFile) {
    EXPECT_THAT(refusal(folder_ / "absent"), HasSubstr("cannot open: No such file"));
    EXPECT_THAT(refusal(folder_), HasSubstr("is a directory"));
    EXPECT_THAT(refusal(write("empty", {})), HasSubstr("the file is empty"));
    EXPECT_THAT(refusal("/dev/null"), HasSubstr("is no regular file"));
    const std::string fifo = folder_ / "fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(refusal(fifo), HasSubstr("is no regular file"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    ASSERT_EQ(::symlink("loop", (folder_ / "loop").c_str()), 0);
    EXPECT_THAT(refusal(folder_ / "loop"), HasSubstr("cannot open"));
}

// A sparse terabyte with a header that asks for all of it.
TEST_F(GgufOpen, SparseFileIsRefusedQuickly) {
    const std::string path = write("sparse", RawGguf().start(uint64_t{1} << 33, uint64_t{1} << 33).bytes());
    if (::truncate(path.c_str(), off_t{1} << 40) != 0) GTEST_SKIP() << "no sparse files of a terabyte here";
    EXPECT_THAT(refusal(path), HasSubstr("a key is empty"));
}

}  // namespace
}  // namespace weir
