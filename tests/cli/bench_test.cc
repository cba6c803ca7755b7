// `weir bench paging` as a user meets it: what it prints, what it refuses, and that it leaves the machine as it was,
// however it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/cli/page_cache.h"
#include "tests/cli/spawn.h"
#include "tests/engine/tiny_model.h"
#include "tests/pager/live.h"

namespace weir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

class Bench : public ::testing::Test {
  protected:
    void SetUp() override { WEIR_NEEDS_UFFD(); }

    std::vector<std::string> command(std::vector<std::string> more) const {
        std::vector<std::string> args = {WEIR_PROGRAM, "bench", "paging", model_.path(), "--runs", "1", "--warmup", "2", "--tokens", "3", "-c", "64"};
        args.insert(args.end(), more.begin(), more.end());
        return args;
    }
    static bool can_limit() { return spawn({WEIR_PROGRAM, "bench", "paging", "--probe"}).status == 0; }
    // Groups that the bench of this process has made and not removed, anywhere below the mount points.
    static std::vector<std::string> groups_left(pid_t pid) {
        std::vector<std::string> left;
        std::error_code skip;
        for (fs::recursive_directory_iterator at("/sys/fs/cgroup", fs::directory_options::skip_permission_denied, skip), end; at != end;
             at.increment(skip))
            if (at->path().filename().string().starts_with("weir-bench-" + std::to_string(pid) + "-")) left.push_back(at->path());
        return left;
    }
    std::string script(const std::string& name, const std::string& text) const {
        const std::string path = model_.path() + name;
        std::ofstream(path) << "#!/bin/sh\n" << text;
        ::chmod(path.c_str(), 0755);
        return path;
    }

    TinyModelFile model_{paged_shape()};
};

TEST_F(Bench, EveryArmSaysWhatItTook) {
    const bool limited = can_limit();
    std::vector<std::string> more = {"--limits", "1000,900", "--json"};
    if (!limited) more.push_back("--no-limit");
    SpawnOptions patience;
    patience.timeout_s = 60;
    pid_t bench = 0;
    patience.started = [&bench](pid_t pid) { bench = pid; };
    const Ended e = spawn(command(more), patience);
    ASSERT_EQ(e.status, 0) << e.err << e.out;
    const json j = json::parse(e.out);
    ASSERT_EQ(j["limits"].size(), 2u);
    for (const json& limit : j["limits"]) {
        EXPECT_TRUE(limit["same_logits"].get<bool>());
        EXPECT_GT(limit["device_bytes_per_s"][0].get<double>(), 0);
        ASSERT_EQ(limit["arms"].size(), 4u);
        for (const json& arm : limit["arms"]) {
            SCOPED_TRACE(arm["arm"].get<std::string>());
            EXPECT_GT(arm["tokens_per_s"]["median"].get<double>(), 0);
            EXPECT_GT(arm["peak_rss_bytes"]["median"].get<double>(), 0);
            EXPECT_EQ(arm["runs"][0]["measured_tokens"], 3);
            EXPECT_EQ(arm["runs"][0].value("cached_bytes_before", 0), 0);
            EXPECT_EQ(arm["cgroup_peak_bytes"].is_null(), !limited || arm["arm"] == "resident");
        }
    }
    EXPECT_THAT(groups_left(bench), testing::IsEmpty());
}

TEST_F(Bench, OtherProgramsAreArmsToo) {
    const std::string driver = script(".driver", "[ \"$7\" = 'one two' ] || exit 3\necho noise\n"
                                                 "echo \"{\\\"tokens_per_s\\\": $4, \\\"bytes_per_token\\\": $2$3}\"\n");
    const std::string broken = script(".broken", "echo 'it did not work' >&2\nexit 9\n");
    const Ended e = spawn(command({"--no-limit", "--limits", "1000", "--arms", "mmap", "-p", "one two", "-t", "1", "--json", "--peer-command",
                                   "other=" + driver + " {model} {threads} {warm} {tokens} {total} {context} {prompt}", "--peer-command",
                                   "broken=" + broken}));
    EXPECT_EQ(e.status, 1);
    const json arms = json::parse(e.out)["limits"][0]["arms"];
    ASSERT_EQ(arms.size(), 3u);
    EXPECT_EQ(arms[1]["arm"], "other");
    EXPECT_EQ(arms[1]["tokens_per_s"]["median"], 3);
    EXPECT_EQ(arms[1]["bytes_per_token"]["median"], 12);
    EXPECT_THAT(arms[2]["runs"][0]["error"].get<std::string>(), HasSubstr("exit status 9: it did not work"));
    fs::remove(driver);
    fs::remove(broken);
}

TEST_F(Bench, WrongUseIsOneLineAndStatus2) {
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {"--limits", "0"}, {"--limits", "many"}, {"--limits", ""}, {"--arms", "magic"}, {"--runs", "0"}, {"--tokens", "-1"},
             {"--read-ahead-kib", "x"}, {"--peer-command", "nothing"}, {"--peer-command", "uffd=x"}, {"--peer-command", "a="}, {"--frob"}}) {
        SCOPED_TRACE(testing::PrintToString(more));
        const Ended e = spawn(command(more));
        EXPECT_EQ(e.status, 2) << e.err;
        EXPECT_EQ(e.error_lines(), 1u) << e.err;
    }
    EXPECT_EQ(spawn({WEIR_PROGRAM, "bench"}).status, 2);
    EXPECT_EQ(spawn({WEIR_PROGRAM, "bench", "paging", "--no-limit"}).status, 2);
    EXPECT_EQ(spawn({WEIR_PROGRAM, "bench", "paging", "--no-limit", model_.path() + ".absent"}).status, 1);
}

TEST_F(Bench, SignalsLeaveTheMachineAsItWas) {
    const ReadAhead read_ahead(model_.path());
    const auto before = read_ahead.kib();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
        std::jthread meanwhile;
        SpawnOptions options;
        pid_t bench = 0;
        options.started = [&](pid_t pid) {
            bench = pid;
            meanwhile = std::jthread([pid, signal] {
                std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                ::kill(pid, signal);
                ::kill(pid, signal);  // who presses it twice changes nothing
            });
        };
        const std::string driver = script(".sleeper", "sleep 3600\n");
        std::vector<std::string> more = {"--limits", "1000", "--arms", "mmap", "--read-ahead-kib", "64", "--peer-command", "sleeper=" + driver};
        if (!can_limit()) more.push_back("--no-limit");
        const Ended e = spawn(command(more), options);
        EXPECT_EQ(e.status, 128 + signal) << e.err;
        EXPECT_EQ(e.out, "");
        EXPECT_EQ(read_ahead.kib(), before);
        EXPECT_THAT(groups_left(bench), testing::IsEmpty());
        fs::remove(driver);
    }
}

TEST_F(Bench, ReadAheadIsSetAndPutBack) {
    std::optional<uint64_t> before;
    {
        ReadAhead read_ahead(model_.path());
        before = read_ahead.kib();
        if (const std::string why = read_ahead.set(96); !why.empty()) GTEST_SKIP() << why;
        EXPECT_EQ(read_ahead.kib(), 96u);
        EXPECT_EQ(read_ahead.set(160), "");
    }
    EXPECT_EQ(ReadAhead(model_.path()).kib(), before);
}

TEST_F(Bench, ACachedFileIsDroppedAndSaidToBe) {
    std::ifstream in(model_.path(), std::ios::binary);
    const std::string whole(std::istreambuf_iterator<char>(in), {});
    EXPECT_GT(whole.size(), 0u);
    EXPECT_EQ(drop_page_cache(model_.path()).value_or(0), 0u);
}

TEST_F(Bench, ThePlotIsDrawnFromItsJson) {
    const Ended e = spawn(command({"--no-limit", "--limits", "1000", "--arms", "mmap,uffd", "--json"}));
    ASSERT_EQ(e.status, 0) << e.err;
    const std::string from = model_.path() + ".json", to = model_.path() + ".svg";
    std::ofstream(from) << e.out;
    const Ended plot = spawn({"/usr/bin/env", "python3", WEIR_PLOT, from, to});
    EXPECT_EQ(plot.status, 0) << plot.err;
    std::ifstream svg(to);
    const std::string drawn(std::istreambuf_iterator<char>(svg), {});
    EXPECT_THAT(drawn, HasSubstr("</svg>"));
    EXPECT_THAT(drawn, HasSubstr("uffd"));
    std::ofstream(from) << "{}";
    EXPECT_EQ(spawn({"/usr/bin/env", "python3", WEIR_PLOT, from, to}).status, 1);
    fs::remove(from);
    fs::remove(to);
}

}  // namespace
}  // namespace weir::test
