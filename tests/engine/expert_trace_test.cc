// Traces of experts: what is recorded can be played back and read by the simulator's rules; and how far predictions are trusted.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/engine/expert_trace.h"
#include "runtime/engine/foresight.h"
#include "runtime/error.h"

namespace weir::test {
namespace {

ModelConfig two_layers_of_four() {
    ModelConfig config;
    config.n_layers = 2;
    config.n_experts = 4;
    config.n_experts_used = 2;
    return config;
}

class TraceFile : public ::testing::Test {
  protected:
    ~TraceFile() override { std::filesystem::remove(path_); }
    std::string text() const {
        std::ifstream in(path_);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    void write(const std::string& text) const { std::ofstream(path_) << text; }

    const std::string path_ = ::testing::TempDir() + "/weir-experts-" + std::to_string(::getpid()) + ".trace";
    const ModelConfig config_ = two_layers_of_four();
};

TEST_F(TraceFile, WhatIsWrittenIsReadAgain) {
    ExpertTraceWriter writer(path_, config_, 1000, 2);
    const uint32_t first[] = {0, 3, 1, 2}, second[] = {1, 3, 0, 1};
    writer.add(0, first);  // of a batch of two tokens
    writer.add(1, second);
    writer.end_pass(2);
    writer.add(0, std::span(first).last(2));
    writer.add(1, std::span(second).first(2));
    writer.end_pass(1);
    writer.finish();
    EXPECT_EQ(text(), "weir-trace 1\nunit 1000\nplace groups 4 1\nplace groups 4 1\n"
                      "token\nuse 0 0 3\nuse 1 1 3\ntoken\nuse 0 1 2\nuse 1 0 1\ntoken\nuse 0 1 2\nuse 1 1 3\n");

    const ExpertTraceReader reader(path_, config_);
    EXPECT_TRUE(std::ranges::equal(reader.chosen(0, 0), std::vector<uint32_t>{0, 3}));
    EXPECT_TRUE(std::ranges::equal(reader.chosen(1, 1), std::vector<uint32_t>{0, 1}));
    EXPECT_TRUE(std::ranges::equal(reader.chosen(1, 2), std::vector<uint32_t>{1, 3}));
    EXPECT_TRUE(std::ranges::equal(reader.chosen(0, 3), std::vector<uint32_t>{0, 3}));  // from the beginning again
}

TEST_F(TraceFile, WhatIsNoTraceOfThisModelIsRefusedWithItsLine) {
    const std::string head = "weir-trace 1\nunit 8\nplace groups 4 1\nplace groups 4 1\n";
    for (const auto& [text, where] : std::initializer_list<std::pair<std::string, const char*>>{
             {"", "no token"},
             {"GGUF", ":1:"},
             {"weir-trace 2\n", ":1:"},
             {"weir-trace 1\nplace dense 4\n", ":2:"},
             {"weir-trace 1\nplace groups 8 1\n", ":2:"},
             {"weir-trace 1\nplace groups 4 1\ntoken\n", ":3:"},
             {head, "no token"},
             {head + "use 0 1 2\n", ":5:"},
             {head + "token\nuse 2 1 2\n", ":6:"},
             {head + "token\nuse 0 1\n", ":6:"},
             {head + "token\nuse 0 1 4\n", ":6:"},
             {head + "token\nuse 0 1 1\n", ":6:"},
             {head + "token\nuse 0 1 2 3\n", ":6:"},
             {head + "token\nuse 0 -1 2\n", ":6:"},
             {head + "token\nuse 0 1 2\nuse 0 1 2\n", ":7:"},
             {head + "token\nuse 0 1 2\ntoken\n", ":7:"},
             {head + "token\nuse 0 1 2\n", "ends within"},
             {head + "token\nwalk 0 1\n", ":6:"}}) {
        write(text);
        try {
            const ExpertTraceReader reader(path_, config_);
            ADD_FAILURE() << "taken: " << text;
        } catch (const Error& e) {
            EXPECT_NE(std::string(e.what()).find(where), std::string::npos) << e.what();
        }
    }
    EXPECT_THROW(ExpertTraceReader("/nonexistent/trace", config_), Error);
    EXPECT_THROW(ExpertTraceWriter("/nonexistent/trace", config_, 8, 1), Error);
}

TEST_F(TraceFile, AFullDiskIsToldAtTheEnd) {
    if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
    ExpertTraceWriter writer("/dev/full", config_, 8, 1);
    const uint32_t chosen[] = {0, 1};
    for (int i = 0; i < 1000; ++i) {
        writer.add(0, chosen);
        writer.add(1, chosen);
        writer.end_pass(1);
    }
    EXPECT_THROW(writer.finish(), Error);
}

TEST(Foresight, TrustsRanksThatAreRightOftenEnough) {
    Foresight foresight(2, 8, 4);
    EXPECT_EQ(foresight.trusted(), 0u);  // nobody has a record yet
    const uint32_t predicted[] = {5, 2, 7, 1};
    for (int i = 0; i < 2000; ++i) {
        foresight.predict(1, predicted);
        const uint32_t often[] = {2, 5, 7}, now_and_then[] = {5, 0, 3};
        foresight.chose(1, i % 4 == 0 ? now_and_then : often);
    }
    EXPECT_EQ(foresight.trusted(), 1u);  // 5 always, 2 and 7 three times in four, 1 never
    EXPECT_EQ(foresight.made(), 8000u);
    EXPECT_EQ(foresight.right(), 2000u + 2 * 1500u);
    foresight.chose(1, predicted);  // of a layer that was not predicted: nothing to learn
    EXPECT_EQ(foresight.made(), 8000u);
    for (int i = 0; i < 2000; ++i) {  // of a batch: counted, but nothing to learn
        foresight.predict(0, predicted, false);
        foresight.chose(0, std::span(predicted).last(2));
    }
    EXPECT_EQ(foresight.trusted(), 1u);
    EXPECT_EQ(foresight.made(), 16000u);
    for (int i = 0; i < 2000; ++i) {
        foresight.predict(0, predicted);
        foresight.chose(0, std::span(predicted).last(2));
    }
    EXPECT_EQ(foresight.trusted(), 0u);  // its best rank is wrong now
}

}  // namespace
}  // namespace weir::test
