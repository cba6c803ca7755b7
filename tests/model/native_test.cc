// The native format: what the converter writes is what the reader finds, and the reader believes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kernels.h"
#include "tests/model/native_fixture.h"

namespace weir {
namespace {

using kernels::Level;
using test::NativeFixture;
using testing::HasSubstr;

template <class Action>
std::string refusal(Action&& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

// All that the rest of the program takes for granted.
void check_consistent(const GgufFile& file) {
    const NativeTable* const table = file.native();
    ASSERT_NE(table, nullptr);
    uint64_t end = 0;
    for (const NativeKept& kept : table->kept) {
        ASSERT_GE(kept.offset, end);
        end = kept.offset + kept.bytes;
        ASSERT_EQ(file.tensors()[kept.tensor].offset, kept.offset);
    }
    for (const NativePart& part : table->parts) {
        ASSERT_EQ(part.offset % table->page, 0u);
        ASSERT_GE(part.offset, end);
        ASSERT_LE((part.first_checksum + part.bands() * kRuns), table->checksums.size());
        uint64_t rows = 0;
        for (uint64_t b = 0; b < part.bands(); ++b) rows += part.rows_of(b);
        ASSERT_EQ(rows, part.rows);
        end = part.offset + part_bytes(part, table->page);
    }
    ASSERT_LE(end, file.file_size());
    for (size_t t = 0; t < file.tensors().size(); ++t) {
        uint32_t expert = 0;
        for (const uint32_t p : table->parts_of(t)) {
            ASSERT_EQ(table->parts[p].tensor, t);
            ASSERT_EQ(table->parts[p].expert, expert++);
        }
    }
}

// Every weight in planes, as the level has it, against the source.
double worst_error(const GgufFile& file, std::span<const std::byte> native, const GgufFile& source, std::span<const std::byte> gguf, Level level) {
    const NativeTable& table = *file.native();
    double worst = 0;
    for (const NativePart& part : table.parts) {
        const GgufTensor& tensor = source.tensors()[part.tensor];
        std::vector<float> row(part.cols), want(part.cols);
        for (uint64_t b = 0; b < part.bands(); ++b) {
            const auto runs = band_runs(part, b, table.page);
            kernels::NestedRows rows;
            rows.fine_steps = part.fine_steps;
            for (size_t r = 0; r < kRuns; ++r) {
                const std::byte* const at = native.data() + runs[r].offset;
                rows.plane[static_cast<size_t>(kRunPlanes[r].first)] = at;
                if (kRunPlanes[r].two)
                    rows.plane[static_cast<size_t>(kRunPlanes[r].second)] = at + part.rows_of(b) * kernels::plane_row_bytes(kRunPlanes[r].first, part.cols);
            }
            for (uint64_t r = 0; r < part.rows_of(b); ++r) {
                const uint64_t in_source = part.expert * part.rows + b * part.band_rows + r;
                kernels::select_kernels("scalar")->dequantize_nested(level, rows.from(r, part.cols), row.data(), part.cols);
                std::memcpy(want.data(), gguf.data() + tensor.offset + in_source * part.cols * sizeof(float), part.cols * sizeof(float));
                for (size_t i = 0; i < row.size(); ++i) worst = std::max(worst, static_cast<double>(std::fabs(row[i] - want[i])));
            }
        }
    }
    return worst;
}

class NativeShapes : public testing::TestWithParam<int> {
  protected:
    static test::SmallModel model() {
        test::SmallModel m = test::planed_model();
        if (GetParam() == 1) m.tied = true;
        if (GetParam() == 2) m.experts = 3;
        if (GetParam() == 3) m.layers = 3, m.dim = 96, m.heads = 3, m.ffn = 288;
        return m;
    }
};

TEST_P(NativeShapes, HoldsTheModel) {
    ConvertOptions options;
    options.threads = 2;
    options.band_bytes = GetParam() == 3 ? 4000 : 0;
    const NativeFixture made(model(), options);
    const GgufFile file = GgufFile::open(made.path);
    check_consistent(file);
    const std::vector<std::byte> native = test::bytes_of(made.path), gguf = test::bytes_of(made.folder / "in.gguf");
    EXPECT_EQ(native.size(), made.result.file_bytes);
    EXPECT_EQ(file.metadata().size(), made.source.metadata().size());
    EXPECT_EQ(std::memcmp(native.data() + kNativeHeaderBytes, gguf.data(), made.source.data_offset()), 0);
    const ModelConfig config = read_config(file);
    EXPECT_EQ(config.dim, model().dim);
    // 0.02 is the deviation of the weights; ranges are within ten of it.
    EXPECT_LT(worst_error(file, native, made.source, gguf, Level::k8), 0.2 / 256);
    EXPECT_LT(worst_error(file, native, made.source, gguf, Level::k4), 0.2 / 15);
    size_t kept_same = 0;
    for (const NativeKept& kept : file.native()->kept) {
        const GgufTensor& tensor = made.source.tensors()[kept.tensor];
        if (kept.type != tensor.type) continue;
        EXPECT_EQ(std::memcmp(native.data() + kept.offset, gguf.data() + tensor.offset, kept.bytes), 0) << tensor.name;
        ++kept_same;
    }
    EXPECT_GE(kept_same, 3u);
    EXPECT_EQ(file.native()->parts_of(0).empty(), !model().tied);  // the embedding is in planes where it is the head
    verify_native(file, test::always);
}

INSTANTIATE_TEST_SUITE_P(All, NativeShapes, testing::Range(0, 4));

TEST(Native, TheSameFileWithAnyThreads) {
    ConvertOptions one, three;
    three.threads = 3;
    one.band_bytes = three.band_bytes = 2000;
    EXPECT_EQ(test::bytes_of(NativeFixture(test::planed_model(), one).path), test::bytes_of(NativeFixture(test::planed_model(), three).path));
}

TEST(Native, RowsThat32DoesNotDivideKeepTheirType) {
    test::SmallModel model = test::planed_model();
    model.ffn = 40;  // of ffn_down
    const NativeFixture made(model);
    EXPECT_EQ(made.result.kept_matrices, 1u);
    const GgufFile file = GgufFile::open(made.path);
    const GgufTensor& down = file.tensor("blk.0.ffn_down.weight");
    EXPECT_TRUE(file.native()->parts_of(static_cast<size_t>(&down - file.tensors().data())).empty());
}

TEST(Native, ConversionRefusesAndLeavesNothing) {
    test::Folder folder;
    std::vector<std::byte> bytes = test::with_weights(test::planed_model());
    test::write_bytes(folder / "in.gguf", bytes);
    const GgufFile source = GgufFile::open(folder / "in.gguf");
    const ModelConfig config = read_config(source);
    EXPECT_THAT(refusal([&] { convert_to_native(source, config, folder / "out.weir", {}, [](uint64_t, uint64_t) { return false; }); }), HasSubstr("stopped"));
    for (const auto& [value, why] : {std::pair{std::numeric_limits<float>::quiet_NaN(), "no finite number"}, std::pair{3e9f, "too large"}}) {
        const uint64_t at = source.tensor("blk.0.attn_k.weight").offset;
        std::memcpy(bytes.data() + at, &value, sizeof value);
        test::write_bytes(folder / "in.gguf", bytes);
        EXPECT_THAT(refusal([&] { convert_to_native(source, config, folder / "out.weir", {}, test::always); }),
                    testing::AllOf(HasSubstr("blk.0.attn_k.weight"), HasSubstr(why)));
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "out.weir"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.weir.partial"));
    const NativeFixture made(test::planed_model());
    const GgufFile native = GgufFile::open(made.path);
    EXPECT_THAT(refusal([&] { convert_to_native(native, config, folder / "out.weir", {}, test::always); }), HasSubstr("native format already"));
    EXPECT_THAT(refusal([&] { verify_native(source, test::always); }), HasSubstr("plain GGUF"));
}

// One bit in every run and every kept tensor.
TEST(Native, VerifyFindsAFlippedBitAnywhere) {
    const NativeFixture made(test::planed_model());
    const std::vector<std::byte> whole = test::bytes_of(made.path);
    const GgufFile file = GgufFile::open(made.path);
    const NativeTable& table = *file.native();
    std::vector<uint64_t> places;
    for (const NativeKept& kept : table.kept) places.push_back(kept.offset + kept.bytes - 1);
    for (const NativePart& part : table.parts) {
        for (const NativeRun& run : band_runs(part, part.bands() - 1, table.page)) places.push_back(run.offset + run.bytes - 1);
    }
    for (const uint64_t at : places) {
        std::vector<std::byte> bytes = whole;
        bytes[at] ^= std::byte{1};
        test::write_bytes(made.path, bytes);
        EXPECT_THAT(refusal([&] { verify_native(GgufFile::open(made.path), test::always); }), HasSubstr("does not have its checksum")) << at;
    }
}

std::string damage(std::span<const std::byte> bytes, uint64_t size) {
    const std::string why = refusal([&] { check_consistent(GgufFile::parse(bytes, size, "damaged.weir")); });
    if (!why.empty()) {
        EXPECT_THAT(why, HasSubstr("damaged.weir: "));
        EXPECT_EQ(why.find('\n'), std::string::npos);
    }
    return why;
}

TEST(NativeDamage, TruncatedAtEveryByteOfTheHead) {
    const NativeFixture made(test::planed_model());
    const std::vector<std::byte> bytes = test::bytes_of(made.path);
    const uint64_t head = test::stated_head(bytes);
    for (size_t n = 0; n < head + 100; ++n) {
        ASSERT_NE(damage(std::span(bytes).first(n), n), "") << n;                // a shorter file
        if (n >= head) continue;
        ASSERT_NE(damage(std::span(bytes).first(n), bytes.size()), "") << n;  // one that shrank meanwhile
    }
    EXPECT_THAT(damage(std::span(bytes).first(bytes.size() - 1), bytes.size() - 1), HasSubstr("truncated"));
    EXPECT_EQ(damage(bytes, bytes.size()), "");
}

TEST(NativeDamage, AnyBitOfTheHeadFlipped) {
    const NativeFixture made(test::planed_model());
    std::vector<std::byte> bytes = test::bytes_of(made.path);
    const uint64_t head = test::stated_head(bytes);
    size_t accepted = 0;
    const uint64_t index_end = kNativeHeaderBytes + GgufFile::open(made.path).native()->index_bytes;
    for (size_t bit = 0; bit < head * 8; ++bit) {
        // The index has tests of its own, in gguf_damage_test.cc: a bit of each byte will do.
        const bool in_index = bit / 8 >= kNativeHeaderBytes && bit / 8 < index_end;
        if (in_index && bit % 8 != bit / 8 % 8) continue;
        const auto mask = static_cast<std::byte>(1u << (bit % 8));
        std::vector<std::byte> start(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(head));
        start[bit / 8] ^= mask;
        ASSERT_NE(damage(start, bytes.size()), "") << "the checksum holds with bit " << bit << " flipped";
        // With a checksum that somebody made right again, what is read is refused or consistent.
        test::repair_checksum(start);
        if (damage(start, bytes.size()).empty()) ++accepted;
    }
    EXPECT_GT(accepted, 0u);
}

TEST(NativeDamage, VersionsAndNumbersAreNamed) {
    const NativeFixture made(test::planed_model());
    const std::vector<std::byte> whole = test::bytes_of(made.path);
    const auto with = [&](size_t at, auto value) {
        std::vector<std::byte> bytes = whole;
        std::memcpy(bytes.data() + at, &value, sizeof value);
        test::repair_checksum(bytes);
        return damage(bytes, bytes.size());
    };
    EXPECT_THAT(with(4, uint32_t{1}), HasSubstr("version 1"));  // an older one
    EXPECT_THAT(with(8, uint64_t{whole.size() + 1}), HasSubstr("truncated"));
    EXPECT_THAT(with(16, UINT64_MAX), HasSubstr("an index of"));
    EXPECT_THAT(with(36, UINT32_MAX), HasSubstr("of more than"));
    EXPECT_THAT(with(40, UINT64_MAX), HasSubstr("of more than"));
    EXPECT_THAT(with(48, uint32_t{5000}), HasSubstr("a page of 5000"));
    EXPECT_THAT(with(52, uint32_t{1}), HasSubstr("a zero is 1"));
    uint64_t index;
    uint32_t kept;
    std::memcpy(&index, whole.data() + 16, sizeof index);
    std::memcpy(&kept, whole.data() + 32, sizeof kept);
    const size_t first_part = 64 + (index + 7) / 8 * 8 + size_t{kept} * 32;
    EXPECT_THAT(with(first_part + 12, uint32_t{0}), HasSubstr("has 0 steps of level 6 in one of level 4"));
    EXPECT_THAT(with(first_part + 12, uint32_t{5}), HasSubstr("has 5 steps of level 6 in one of level 4"));
    EXPECT_THAT(with(first_part + 12, uint32_t{1}), "");
    EXPECT_THAT(with(56, uint64_t{0}), "");  // repaired
    EXPECT_THAT(with(whole.size() - 1, uint8_t{0}), "");
}

}  // namespace
}  // namespace weir
