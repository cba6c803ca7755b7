// `weir convert`, `verify`, `inspect` and `--precision` as a user meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/spawn.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

Ended weir(std::vector<std::string> args) {
    args.insert(args.begin(), WEIR_PROGRAM);
    SpawnOptions patience;
    patience.timeout_s = 120;
    return spawn(args, patience);
}

TinyShape shape() {
    TinyShape s;
    s.dim = 256;
    s.ffn_dim = 512;
    s.body = kernels::Type::kF16;
    return s;
}

class Convert : public ::testing::Test {
  protected:
    ~Convert() override { fs::remove(native_); }
    static void expect_one_line(const Ended& e, int status, const std::string& why) {
        EXPECT_EQ(e.status, status) << e.err;
        EXPECT_EQ(e.error_lines(), 1u) << e.err;
        EXPECT_THAT(e.err, HasSubstr(why));
    }
    void convert() { ASSERT_EQ(weir({"convert", model_.path(), native_}).status, 0); }

    TinyModelFile model_{shape()};
    std::string native_ = model_.path() + ".weir";
};

TEST_F(Convert, WarnsAndDoesNotOverwrite) {
    const Ended first = weir({"convert", model_.path(), native_});
    EXPECT_EQ(first.status, 0) << first.err;
    EXPECT_THAT(first.err, HasSubstr("warning: rounded without calibration text"));
    EXPECT_FALSE(fs::exists(native_ + ".partial"));
    expect_one_line(weir({"convert", model_.path(), native_}), 2, "--force");
    EXPECT_EQ(weir({"convert", model_.path(), native_, "--force"}).status, 0);
    expect_one_line(weir({"convert", native_, native_ + "2"}), 1, "native format already");
    expect_one_line(weir({"convert", model_.path(), model_.path(), "--force"}), 2, "is the file to be converted");
    expect_one_line(weir({"convert", model_.path(), native_ + "2", "--band", "1"}), 2, "--band");
    EXPECT_FALSE(fs::exists(native_ + "2"));
}

TEST_F(Convert, VerifyKnowsWholeFromDamaged) {
    convert();
    EXPECT_THAT(weir({"verify", native_}).out, HasSubstr("whole"));
    expect_one_line(weir({"verify", model_.path()}), 1, "plain GGUF");
    {
        std::fstream file(native_, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(fs::file_size(native_) / 2));
        file.put('\x5a');
        file.put('\x5a');
    }
    expect_one_line(weir({"verify", native_}), 1, "does not have its checksum");
    fs::resize_file(native_, fs::file_size(native_) - 1);
    expect_one_line(weir({"verify", native_}), 1, "truncated");
}

TEST_F(Convert, InspectShowsLevelsAndPlanes) {
    convert();
    const Ended text = weir({"inspect", native_});
    EXPECT_EQ(text.status, 0) << text.err;
    for (const char* const word : {"native version 1", "bits a weight", "P4b", "blk.0.attn_q.weight", "output_norm.weight"})
        EXPECT_THAT(text.out, HasSubstr(word));
    const json all = json::parse(weir({"inspect", native_, "--json"}).out, nullptr, false);
    ASSERT_EQ(all["levels"].size(), 5u);
    EXPECT_NEAR(all["levels"][0]["bits_per_weight"].get<double>(), 2.5, 0.01);
    EXPECT_NEAR(all["levels"][4]["bits_per_weight"].get<double>(), 8.5, 0.01);
    EXPECT_EQ(all["planes"].size(), 8u);
}

TEST_F(Convert, RunsAtEachPrecisionAndSaysWhich) {
    convert();
    std::string hash;
    for (const char* const level : {"8", "6", "4", "3", "2"}) {
        const Ended e = weir({"run", native_, "-p", "ab", "-n", "4", "--paging", "resident", "--precision", level, "--json", "--temp", "0"});
        ASSERT_EQ(e.status, 0) << e.err;
        const json out = json::parse(e.out, nullptr, false);
        EXPECT_EQ(out["precision"], std::stoi(level));
        EXPECT_NE(out["logits_hash"], hash);
        hash = out["logits_hash"];
    }
    const std::vector<std::string> plain = {"run", model_.path(), "-p", "ab", "-n", "4", "--paging", "resident"};
    std::vector<std::string> with_level = plain;
    with_level.insert(with_level.end(), {"--precision", "4"});
    expect_one_line(weir(with_level), 2, "has one precision");
    with_level.back() = "5";
    EXPECT_EQ(weir(with_level).status, 2);
}

}  // namespace
}  // namespace weir::test
