// `weir bench speed`: what it makes of its runs, and the whole command with another program in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/spawn.h"
#include "tests/engine/tiny_model.h"
#include "tests/pager/live.h"

namespace weir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class BenchSpeed : public ::testing::Test {
  protected:
    void SetUp() override { WEIR_NEEDS_UFFD(); }

    std::vector<std::string> command(std::vector<std::string> more) const {
        std::vector<std::string> args = {WEIR_PROGRAM, "bench", "speed", model_.path(), "-p", "5,20", "-n", "3", "-r", "2"};
        args.insert(args.end(), more.begin(), more.end());
        return args;
    }
    std::string script(const std::string& name, const std::string& text) const {
        const std::string path = model_.path() + name;
        std::ofstream(path) << "#!/bin/sh\n" << text;
        ::chmod(path.c_str(), 0755);
        return path;
    }
    static SpawnOptions patience() {
        SpawnOptions options;
        options.timeout_s = 120;
        return options;
    }

    TinyModelFile model_{paged_shape()};
};

TEST_F(BenchSpeed, EveryTestHasItsFigures) {
    const Ended e = spawn(command({"-t", "1,2", "--json"}), patience());
    ASSERT_EQ(e.status, 0) << e.err;
    const json j = json::parse(e.out);
    ASSERT_EQ(j["tests"].size(), 4u);
    // dim 256, 64 a KV head, feed-forward 768, 8 layers; 300 tokens.
    EXPECT_EQ(j["body_elements"], 8 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768));
    EXPECT_EQ(j["head_elements"], 300 * 256);
    const double token_bytes = j["token_bytes"];  // F32
    EXPECT_EQ(token_bytes, 4 * (j["body_elements"].get<double>() + j["head_elements"].get<double>()));
    EXPECT_EQ(j["weights_bytes"], token_bytes);
    for (const json& test : j["tests"]) {
        EXPECT_EQ(test["read_bytes_per_s"].size(), 2u);
        ASSERT_EQ(test["arms"].size(), 1u);
        const json& decode = test["arms"][0]["decode"];
        const double speed = decode["tokens_per_s"]["median"];
        EXPECT_GT(speed, 0);
        EXPECT_LE(decode["tokens_per_s"]["min"].get<double>(), speed);
        EXPECT_GE(decode["tokens_per_s"]["max"].get<double>(), speed);
        EXPECT_NEAR(decode["bytes_per_s"].get<double>(), token_bytes * speed, 1e-6 * token_bytes * speed);
        EXPECT_GT(decode["read_share"].get<double>(), 0);
        const json& prefill = test["arms"][0]["prefill"];
        EXPECT_EQ(prefill["runs"].size(), 2u);
        EXPECT_GT(prefill["dot_share"].get<double>(), 0);
    }
    EXPECT_EQ(j["tests"][0]["threads"], 1);
    EXPECT_EQ(j["tests"][3]["threads"], 2);
    EXPECT_EQ(j["tests"][3]["prompt_tokens"], 20);
}

TEST_F(BenchSpeed, OtherProgramsTakeTheirTurns) {
    const std::string driver = script(".driver", "echo \"{\\\"prompt_tokens_per_s\\\": $2, \\\"decode_tokens_per_s\\\": $3$4}\"\n");
    const std::string broken = script(".broken", "echo 'it did not work' >&2\nexit 9\n");
    const std::string mute = script(".mute", "echo '{}'\n");
    const std::string other = "other=" + driver + " {model} {prompt_tokens} {tokens} {threads}";
    const Ended text = spawn(command({"-t", "2", "--peer-command", other}), patience());
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("tg3 after pp20"));
    EXPECT_THAT(text.out, HasSubstr("other"));

    const Ended e = spawn(command({"-t", "2", "--json", "--peer-command", other, "--peer-command", "broken=" + broken, "--peer-command", "mute=" + mute}),
                          patience());
    EXPECT_EQ(e.status, 1);
    const json tests = json::parse(e.out)["tests"];
    ASSERT_EQ(tests.size(), 2u);
    const json& arms = tests[1]["arms"];
    ASSERT_EQ(arms.size(), 4u);
    EXPECT_EQ(arms[1]["prefill"]["tokens_per_s"]["median"], 20.0);
    EXPECT_EQ(arms[1]["decode"]["tokens_per_s"]["median"], 32.0);
    EXPECT_NEAR(arms[1]["decode"]["weir_speed_over"].get<double>(), arms[0]["decode"]["tokens_per_s"]["median"].get<double>() / 32, 1e-9);
    EXPECT_TRUE(arms[2]["decode"].is_null());
    EXPECT_THAT(arms[2]["errors"][0].get<std::string>(), HasSubstr("exit status 9: it did not work"));
    EXPECT_THAT(arms[3]["errors"][0].get<std::string>(), HasSubstr("no prompt_tokens_per_s"));
    for (const std::string& path : {driver, broken, mute}) std::filesystem::remove(path);
}

TEST_F(BenchSpeed, WrongUseIsOneLineAndStatus2) {
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {"-t", "0"}, {"-t", "1,,2"}, {"-t", "many"}, {"-t", "257"}, {"-n", "0"}, {"-r", "0"}, {"-b", "513"}, {"--ram", "1M"},
             {"--peer-command", "nothing"}, {"--peer-command", "weir=x"}, {"--peer-command", "a= "}, {"--frob"}}) {
        SCOPED_TRACE(testing::PrintToString(more));
        const Ended e = spawn(command(more));
        EXPECT_EQ(e.status, 2) << e.err;
        EXPECT_EQ(e.error_lines(), 1u) << e.err;
    }
    for (const char* sizes : {"0", "64,-1", "x", "", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"}) {
        const Ended e = spawn({WEIR_PROGRAM, "bench", "speed", model_.path(), "-p", sizes});
        EXPECT_EQ(e.status, 2) << sizes << e.err;
        EXPECT_EQ(e.error_lines(), 1u) << e.err;
    }
    const Ended absent = spawn({WEIR_PROGRAM, "bench", "speed", model_.path() + ".absent"});
    EXPECT_EQ(absent.status, 1);
    EXPECT_EQ(absent.error_lines(), 1u) << absent.err;
}

TEST_F(BenchSpeed, ASignalEndsItAndWhatItStarted) {
    const std::string sleeper = script(".sleeper", "sleep 3600\n");
    SpawnOptions options = patience();
    options.started = [](pid_t pid) {
        ::usleep(2500000);
        ::kill(pid, SIGINT);
    };
    const Ended e = spawn(command({"-t", "1", "--peer-command", "sleeper=" + sleeper}), options);
    EXPECT_EQ(e.status, 128 + SIGINT) << e.err;
    EXPECT_EQ(e.out, "");
    EXPECT_LT(e.seconds, 60);
    std::filesystem::remove(sleeper);
}

}  // namespace
}  // namespace weir::test
