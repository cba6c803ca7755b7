// `weir perplexity` as a user meets it: llama.cpp's figures on its windows, the same by every way of paging, a distance of
// nothing from itself, and one clear line for what it cannot score.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/spawn.h"
#include "tests/engine/tiny_model.h"
#include "tests/material.h"
#include "tests/pager/live.h"

namespace weir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

class Perplexity : public ::testing::Test {
  protected:
    void SetUp() override {
        WEIR_NEEDS_UFFD();
        std::ofstream out(text_);
        for (int i = 0; i < 200; ++i) out << "ab abc b" << i % 7 << "ca ";
    }
    void TearDown() override { fs::remove(text_); }

    static Ended perplexity(const std::string& model, const std::string& text, std::vector<std::string> more = {}) {
        std::vector<std::string> args = {WEIR_PROGRAM, "perplexity", model, "-f", text};
        args.insert(args.end(), more.begin(), more.end());
        SpawnOptions patience;
        patience.timeout_s = 120;
        return spawn(args, patience);
    }
    static json parsed(const Ended& e) {
        EXPECT_EQ(e.status, 0) << e.err;
        return json::parse(e.out, nullptr, false);
    }
    static void expect_one_line(const Ended& e, int status) {
        EXPECT_EQ(e.status, status) << e.err;
        EXPECT_EQ(e.error_lines(), 1u) << e.err;
        EXPECT_EQ(e.out, "");
    }

    TinyModelFile model_{paged_shape()};
    std::string text_ = model_.path() + ".text";
};

TEST_F(Perplexity, EveryWayOfPagingAndCuttingGivesTheSame) {
    const json all = parsed(perplexity(model_.path(), text_, {"-c", "64", "--json"}));
    EXPECT_EQ(all["windows"], all["tokens"].get<size_t>() / 64);
    EXPECT_EQ(all["scored"], all["windows"].get<size_t>() * 31);
    EXPECT_EQ(all["per_window"].size(), all["windows"]);
    EXPECT_GT(all["perplexity_standard_error"].get<double>(), 0);
    const json few = parsed(perplexity(model_.path(), text_, {"-c", "64", "--windows", "3", "--json"}));
    ASSERT_EQ(few["per_window"].size(), 3u);
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {"--weights-ram", "40%"}, {"--paging", "advised", "--weights-ram", "40%"}, {"--paging", "mmap"}, {"--paging", "resident"},
             {"-t", "1", "-b", "5"}}) {
        SCOPED_TRACE(testing::PrintToString(more));
        std::vector<std::string> args = {"-c", "64", "--windows", "3", "--json"};
        args.insert(args.end(), more.begin(), more.end());
        const json j = parsed(perplexity(model_.path(), text_, args));
        EXPECT_EQ(j["per_window"], few["per_window"]);
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(all["per_window"][i], few["per_window"][i]);
}

TEST_F(Perplexity, TheDistanceFromItselfIsNothing) {
    const std::vector<std::string> args = {"-c", "64", "--windows", "4", "--kl", model_.path(), "--weights-ram", "60%", "--json"};
    const json j = parsed(perplexity(model_.path(), text_, args));  // F32 weights take float activations in any case
    EXPECT_EQ(j["kl"]["mean"], 0.0);
    EXPECT_EQ(j["kl"]["same_first"], 1.0);
    EXPECT_NEAR(j["kl"]["reference_perplexity"].get<double>(), j["perplexity"].get<double>(), 1e-9);

    TinyShape shape = paged_shape();
    shape.seed = 2;
    const TinyModelFile other(shape);
    const json far = parsed(perplexity(other.path(), text_, args));
    EXPECT_GT(far["kl"]["mean"].get<double>(), 0.001);
    EXPECT_LT(far["kl"]["interval_95"][0].get<double>(), far["kl"]["mean"].get<double>());
    EXPECT_GT(far["kl"]["interval_95"][1].get<double>(), far["kl"]["mean"].get<double>());
    EXPECT_GE(far["kl"]["p99"].get<double>(), far["kl"]["median"].get<double>());
    for (const json& window : far["per_window"]) EXPECT_GT(window["kl"].get<double>(), 0);
    const Ended text = perplexity(other.path(), text_, {"-c", "64", "--windows", "2", "--kl", model_.path()});
    EXPECT_THAT(text.out, HasSubstr("perplexity "));
    EXPECT_THAT(text.out, HasSubstr("KL "));
    EXPECT_EQ(text.err, "");
}

TEST_F(Perplexity, WhatCannotBeScoredIsOneLine) {
    const std::string empty = text_ + ".empty";
    std::ofstream(empty).flush();
    expect_one_line(perplexity(model_.path(), empty), 1);
    expect_one_line(perplexity(model_.path(), text_ + ".absent"), 1);
    expect_one_line(perplexity(model_.path(), "/dev/zero"), 1);
    expect_one_line(perplexity(model_.path(), fs::temp_directory_path()), 1);
    expect_one_line(perplexity(model_.path() + ".absent", text_), 1);
    expect_one_line(perplexity(model_.path(), text_, {"-c", "100000"}), 1);
    expect_one_line(perplexity(model_.path(), text_, {"-c", "64", "--kl", text_}), 1);
    TinyShape shape;
    shape.n_vocab = 320;
    const TinyModelFile other(shape);
    const Ended e = perplexity(model_.path(), text_, {"-c", "64", "--kl", other.path()});
    expect_one_line(e, 1);
    EXPECT_THAT(e.err, HasSubstr("300 and 320"));
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {"-c", "3"}, {"-c", "-1"}, {"--windows", "0"}, {"-b", "0"}, {"-t", "x"}, {"--ram", "1M", "-c", "64"}, {"--paging", "magic"}, {"--frob"}})
        expect_one_line(perplexity(model_.path(), text_, more), 2);
    EXPECT_EQ(spawn({WEIR_PROGRAM, "perplexity", model_.path()}).status, 2);
    fs::remove(empty);
}

TEST_F(Perplexity, ASignalEndsIt) {
    SpawnOptions options;
    options.started = [](pid_t pid) {
        ::usleep(700000);
        ::kill(pid, SIGINT);
    };
    std::ofstream more(text_, std::ios::app);
    for (int i = 0; i < 200000; ++i) more << "ab abc b" << i % 7 << "ca ";
    more.close();
    const Ended e = spawn({WEIR_PROGRAM, "perplexity", model_.path(), "-f", text_, "-c", "64", "--activations", "f32"}, options);
    EXPECT_EQ(e.status, 128 + SIGINT) << e.err;
    EXPECT_EQ(e.out, "");
}

TEST_F(Perplexity, TheFirstWindowsOfTheTrainedModel) {
    const auto model = shared_file("models/weir-demo-8m-f16.gguf");
    const auto text = shared_file("models/text/val_technical.txt");
    if (!require_material(model) || !require_material(text)) return;
    const json j = parsed(perplexity(model.string(), text.string(), {"--windows", "2", "--json"}));
    EXPECT_EQ(j["tokens"], 63017);  // as llama.cpp counts them; see scripts/check_fidelity.py for the figures of all windows
    EXPECT_EQ(j["scored"], 510);
    EXPECT_GT(j["perplexity"].get<double>(), 20);
    EXPECT_LT(j["perplexity"].get<double>(), 100);
}

}  // namespace
}  // namespace weir::test
