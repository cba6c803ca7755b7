// `weir run` as a user meets it: what it prints, how it ends, and that no input, however bad, ends it by a signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "pager/uffd.h"
#include "tests/cli/spawn.h"
#include "tests/engine/tiny_model.h"
#include "tests/pager/live.h"

namespace weir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kModes[] = {"uffd", "advised", "mmap", "resident"};

// In a child: userfaultfd fails as it does in many containers, by system call and by device alike. The errno of a
// system call that seccomp answers is our choice.
void forbid_userfaultfd() {
    constexpr unsigned kNewUserfaultfd = 0xaa00;  // USERFAULTFD_IOC_NEW
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + sizeof(uint64_t)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kNewUserfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {sizeof program / sizeof program[0], program};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) ::_exit(126);
}

std::vector<std::string> command(const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> args = {WEIR_PROGRAM, "run", model};
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

class Run : public ::testing::Test {
  protected:
    void SetUp() override { WEIR_NEEDS_UFFD(); }

    static void expect_one_line(const Ended& e, int status) {
        EXPECT_EQ(e.status, status) << e.err;
        EXPECT_EQ(e.error_lines(), 1u) << e.err;
        EXPECT_THAT(e.err, HasSubstr("weir: "));
        EXPECT_FALSE(e.timed_out);
    }
    TinyModelFile model_{TinyShape{}};
};

// With all the time in the world nothing is left out, and the answer is that of no deadline.
TEST_F(Run, ADeadlineThatIsKeptChangesNothing) {
    TinyShape shape;
    shape.dim = 256;
    shape.ffn_dim = 512;
    const TinyModelFile source(shape);
    const std::string native = source.path() + ".weir";
    ASSERT_EQ(spawn({WEIR_PROGRAM, "convert", source.path(), native, "--force"}).status, 0);
    const auto run = [&](const std::vector<std::string>& more) {
        std::vector<std::string> args = {"-p", "ab ab ab", "-n", "24", "--paging", "uffd", "--json", "-q", "--temp", "0", "--ignore-eos", "-c", "48"};
        args.insert(args.end(), more.begin(), more.end());
        const Ended e = spawn(command(native, args));
        EXPECT_EQ(e.status, 0) << e.err;
        return nlohmann::json::parse(e.out, nullptr, false);
    };
    for (const std::string precision : {"8", "6"}) {
        const auto expected = run({"--precision", precision}), patient = run({"--precision", precision, "--deadline-ms", "3600000"});
        EXPECT_FALSE(expected["paging"].contains("late"));
        for (const char* const key : {"ids", "logits_hash", "reproducible"}) EXPECT_EQ(patient[key], expected[key]) << key;
        EXPECT_EQ(patient["reproducible"], true);
        EXPECT_GT(patient["paging"]["late"]["parts"], 0);
        EXPECT_EQ(patient["paging"]["late"]["late_parts"], 0);
    }
    std::remove(native.c_str());
}

// A disk that no deadline can wait for: what the finer bits are read for is done without, and that is said.
TEST_F(Run, ADeadlineThatPassesIsSaid) {
    TinyShape shape;
    shape.n_layers = 8;
    shape.dim = 256;
    shape.ffn_dim = 1024;
    const TinyModelFile source(shape);
    const std::string native = source.path() + ".weir";
    ASSERT_EQ(spawn({WEIR_PROGRAM, "convert", source.path(), native, "--force"}).status, 0);
    const auto run = [&](const std::vector<std::string>& more) {
        std::vector<std::string> args = {"-p", "ab", "-n", "6", "--json", "-q", "--temp", "0", "--ignore-eos", "-c", "16", "--weights-ram", "50%"};
        args.insert(args.end(), more.begin(), more.end());
        return spawn(command(native, args));
    };
    const Ended whole = run({}), late = run({"--io-limit-mbps", "20", "--deadline-ms", "1"});
    std::remove(native.c_str());
    ASSERT_EQ(whole.status, 0) << whole.err;
    ASSERT_EQ(late.status, 0) << late.err;
    const auto expected = json::parse(whole.out), said = json::parse(late.out);
    EXPECT_EQ(said["ids"].size(), 6u);
    EXPECT_EQ(said["reproducible"], false);
    EXPECT_GT(said["paging"]["late"]["late_parts"], 0);
    EXPECT_GT(said["paging"]["late"]["late_tokens"], 0);
    EXPECT_LT(said["paging"]["bytes_read_per_token"], expected["paging"]["bytes_read_per_token"]);
    EXPECT_THAT(late.err, HasSubstr("not reproducible"));
    EXPECT_THAT(late.err, HasSubstr("--deadline-ms"));
}

TEST_F(Run, TextGoesToStdoutAndTheRestToStderr) {
    const Ended e = spawn(command(model_.path(), {"-p", "ab", "-n", "5", "--ignore-eos", "--temp", "0"}));
    EXPECT_EQ(e.status, 0) << e.err;
    EXPECT_FALSE(e.out.empty());
    EXPECT_EQ(e.out.back(), '\n');
    EXPECT_THAT(e.err, HasSubstr("paging=uffd"));
    EXPECT_THAT(e.err, HasSubstr("kernels="));
    const Ended quiet = spawn(command(model_.path(), {"-p", "ab", "-n", "5", "--ignore-eos", "--temp", "0", "-q"}));
    EXPECT_EQ(quiet.out, e.out);
    EXPECT_EQ(quiet.err, "");
}

TEST_F(Run, JsonHoldsEveryPromisedField) {
    const Ended e = spawn(command(model_.path(), {"-p", "ab", "-n", "6", "--ignore-eos", "--temp", "0", "--json"}));
    ASSERT_EQ(e.status, 0) << e.err;
    const json j = json::parse(e.out);
    for (const char* key : {"text", "prompt_ids", "ids", "timings", "paging", "memory", "logits_hash"}) EXPECT_TRUE(j.contains(key)) << key;
    for (const char* key : {"load_ms", "first_token_ms", "prompt_tokens_per_s", "decode_tokens_per_s"})
        EXPECT_GT(j["timings"][key].get<double>(), 0) << key;
    for (const char* key : {"mode", "weights_bytes", "resident_bytes", "ring_bytes", "bytes_read", "bytes_read_per_token", "faults",
                            "faults_per_token", "waits", "stall_ms", "bounded_by"})
        EXPECT_TRUE(j["paging"].contains(key)) << key;
    EXPECT_EQ(j["ids"].size(), 6u);
    EXPECT_EQ(j["logits_hash"].get<std::string>().size(), 16u);
    EXPECT_LE(j["memory"]["peak_rss_bytes"].get<uint64_t>(), j["memory"]["budget_bytes"].get<uint64_t>());
}

TEST_F(Run, EveryWayOfPagingGivesTheSameText) {
    const TinyModelFile model(paged_shape());
    std::string hash;
    const auto check = [&](std::vector<std::string> more) {
        more.insert(more.end(), {"-p", "abc", "-n", "12", "--ignore-eos", "--temp", "0", "--json"});
        const Ended e = spawn(command(model.path(), more));
        ASSERT_EQ(e.status, 0) << e.err;
        const json j = json::parse(e.out);
        if (hash.empty()) hash = j["logits_hash"];
        EXPECT_EQ(j["logits_hash"], hash) << testing::PrintToString(more);
    };
    for (const char* threads : {"1", "2"}) {
        check({"-t", threads, "--paging", "resident"});
        check({"-t", threads, "--paging", "mmap"});
        for (const char* share : {"90%", "75%", "50%", "25%"}) {
            check({"-t", threads, "--weights-ram", share});
            check({"-t", threads, "--weights-ram", share, "--gates", "off"});
            check({"-t", threads, "--weights-ram", share, "--paging", "advised"});
            check({"-t", threads, "--weights-ram", share, "--paging", "advised", "--gates", "off"});
        }
        check({"-t", threads, "--weights-ram", "50%", "--install", "copy"});
        check({"-t", threads, "--weights-ram", "50%", "--reader", "pread"});
        check({"-t", threads, "--weights-ram", "50%", "--io", "buffered"});
    }
    for (const auto& [word, source] : {std::pair{"user-mode-only", pager::UffdSource::kUserModeOnly},
                                       std::pair{"device", pager::UffdSource::kDevice},
                                       std::pair{"syscall", pager::UffdSource::kSystemCall}}) {
        const std::vector<std::string> forced = {"-p", "a", "-n", "1", "-q", "--uffd-source", word};
        if (pager::probe_uffd_open(source) == 0) {
            check({"--weights-ram", "50%", "--uffd-source", word});
        } else {
            expect_one_line(spawn(command(model.path(), forced)), 1);
        }
    }
    // As on kernels with larger pages.
    for (const char* page : {"16K", "64K"}) {
        ASSERT_EQ(::setenv("WEIR_PAGE_SIZE", page, 1), 0);
        check({"-t", "2", "--paging", "resident"});
        for (const char* share : {"75%", "25%"}) {
            check({"-t", "2", "--weights-ram", share});
            check({"-t", "2", "--weights-ram", share, "--install", "copy", "--gates", "off"});
            check({"-t", "2", "--weights-ram", share, "--paging", "advised"});
        }
        ::unsetenv("WEIR_PAGE_SIZE");
    }
}

TEST_F(Run, AnImpossiblePageIsRefused) {
    ASSERT_EQ(::setenv("WEIR_PAGE_SIZE", "5000", 1), 0);
    expect_one_line(spawn(command(model_.path(), {"-p", "a", "-n", "1"})), 2);
    ::unsetenv("WEIR_PAGE_SIZE");
}

// Where userfaultfd is forbidden, the run goes on by advice and says so; who asked for a rung by name gets an error.
TEST_F(Run, WithoutUserfaultfdItGoesOnByAdviceAndSaysSo) {
    const TinyModelFile model(paged_shape());
    const std::vector<std::string> ask = {"-p", "abc", "-n", "6", "--ignore-eos", "--temp", "0", "--weights-ram", "50%", "--json"};
    const Ended with = spawn(command(model.path(), ask));
    ASSERT_EQ(with.status, 0) << with.err;
    EXPECT_TRUE(json::parse(with.out)["paging"]["fallback"].is_null());
    SpawnOptions forbidden;
    forbidden.in_child = forbid_userfaultfd;
    std::vector<std::string> quiet = ask;
    quiet.push_back("-q");
    const Ended without = spawn(command(model.path(), quiet), forbidden);
    ASSERT_EQ(without.status, 0) << without.err;
    EXPECT_THAT(without.err, HasSubstr("userfaultfd cannot be had"));
    const json j = json::parse(without.out);
    EXPECT_EQ(j["paging"]["mode"], "advised");
    EXPECT_THAT(j["paging"]["fallback"].get<std::string>(), HasSubstr("userfaultfd cannot be had"));
    EXPECT_EQ(j["logits_hash"], json::parse(with.out)["logits_hash"]);

    for (const char* rung : {"--install=copy", "--uffd-source=user-mode-only"}) {
        std::vector<std::string> insisting = ask;
        insisting.push_back(rung);
        expect_one_line(spawn(command(model.path(), insisting), forbidden), 1);
    }
}

TEST_F(Run, PromptsFromFilesAndStdin) {
    const std::string file = model_.path() + ".prompt";
    std::ofstream(file) << "ab";
    const Ended a = spawn(command(model_.path(), {"-p", "ab", "-n", "4", "--ignore-eos", "--temp", "0", "-q"}));
    const Ended b = spawn(command(model_.path(), {"-f", file, "-n", "4", "--ignore-eos", "--temp", "0", "-q"}));
    SpawnOptions from_file;
    from_file.in_child = [&file] {
        if (::dup2(::open(file.c_str(), O_RDONLY | O_CLOEXEC), STDIN_FILENO) < 0) ::_exit(126);
    };
    const Ended c = spawn(command(model_.path(), {"-f", "-", "-n", "4", "--ignore-eos", "--temp", "0", "-q"}), from_file);
    fs::remove(file);
    EXPECT_EQ(a.status, 0);
    EXPECT_EQ(a.out, b.out);
    EXPECT_EQ(a.out, c.out);
}

TEST_F(Run, WrongUseIsOneLineAndStatus2) {
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {},
             {"-p", "a", "-f", "x"},
             {"-p", "a", "--paging", "magic"},
             {"-p", "a", "--ram", "4X"},
             {"-p", "a", "--ram", "-1"},
             {"-p", "a", "--ram", "1M"},
             {"-p", "a", "--paging", "resident", "--ram", "1M"},
             {"-p", "a", "--install", "teleport"},
             {"-p", "a", "--uffd-source", "thin-air"},
             {"-p", "a", "--reader", "psychic"},
             {"-p", "a", "--io", "wishful"},
             {"-p", "a", "-t", "0"},
             {"-p", "a", "-n", "-7"},
             {"-p", "a", "--temp", "nan"},
             {"-p", "a", "--system", "b"},
             {"-p", "a", "--no-such-option"}}) {
        SCOPED_TRACE(testing::PrintToString(more));
        expect_one_line(spawn(command(model_.path(), more)), 2);
    }
}

TEST_F(Run, BadFilesAreOneLineAndStatus1) {
    const std::string base = model_.path();
    const std::string fifo = base + ".fifo", cut = base + ".cut", empty = base + ".empty", text = base + ".text";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    fs::copy_file(base, cut);
    fs::resize_file(cut, fs::file_size(base) / 2);
    std::ofstream(empty).flush();
    std::ofstream(text) << "not a model, by any means\n";
    for (const char* mode : kModes) {
        for (const std::string& path : {base + ".absent", fs::temp_directory_path().string(), fifo, cut, empty, text}) {
            SCOPED_TRACE(path + " " + mode);
            expect_one_line(spawn(command(path, {"-p", "a", "-n", "2", "--paging", mode})), 1);
        }
    }
    for (const std::string& path : {fifo, cut, empty, text}) fs::remove(path);
}

TEST_F(Run, AFlippedBitIsAnErrorOrAModel) {
    std::ifstream in(model_.path(), std::ios::binary);
    const std::string whole(std::istreambuf_iterator<char>(in), {});
    const std::string path = model_.path() + ".flipped";
    for (size_t bit = 3; bit < 8 * 9000; bit += 1013) {
        std::string damaged = whole;
        damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
        std::ofstream(path, std::ios::binary) << damaged;
        const Ended e = spawn(command(path, {"-p", "a", "-n", "2", "-c", "32"}));
        EXPECT_TRUE(e.status >= 0 && e.status <= 2) << "bit " << bit << ": status " << e.status << "\n" << e.err;
        EXPECT_FALSE(e.timed_out) << "bit " << bit;
    }
    fs::remove(path);
}

TEST_F(Run, AFileThatShrinksOrChangesEndsTheRun) {
    const TinyModelFile model(paged_shape());
    for (const char* mode : kModes) {
        for (const bool gates : {true, false}) {
            const bool by_budget = std::string(mode) == "uffd" || std::string(mode) == "advised";
            if (!gates && !by_budget) continue;
            for (const bool shrinks : {true, false}) {
                SCOPED_TRACE(std::string(mode) + (gates ? "" : " without gates") + (shrinks ? " shrinks" : " changes"));
                const std::string path = model.path() + ".shrinking";
                fs::copy_file(model.path(), path, fs::copy_options::overwrite_existing);
                std::jthread meanwhile;
                SpawnOptions options;
                options.started = [&](pid_t) {
                    meanwhile = std::jthread([path, shrinks] {
                        std::this_thread::sleep_for(std::chrono::milliseconds(400));
                        if (shrinks) {
                            fs::resize_file(path, fs::file_size(path) / 3);
                        } else {
                            std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(20000).write("changed", 7).flush();
                        }
                    });
                };
                std::vector<std::string> more = {"-p", "a", "-n", "-1", "--ignore-eos", "--temp", "0", "-q", "--paging", mode};
                if (by_budget) more.insert(more.end(), {"--weights-ram", "40%", "--gates", gates ? "on" : "off"});
                expect_one_line(spawn(command(path, more), options), 1);
                fs::remove(path);
            }
        }
    }
}

TEST_F(Run, NotANumberIsAnErrorThatNamesTheLayer) {
    TinyShape shape;
    shape.nan_layer = 1;
    const TinyModelFile model(shape);
    const Ended e = spawn(command(model.path(), {"-p", "a", "-n", "2", "-q"}));
    expect_one_line(e, 1);
    EXPECT_THAT(e.err, HasSubstr("layer 1"));
}

TEST_F(Run, AnOutputThatCannotBeWrittenSaysSo) {
    for (const char* const form : {"", " --json"}) {
        const std::string line = std::string(WEIR_PROGRAM) + " run " + model_.path() + " -p a -n 2 -q" + form + " >/dev/full";
        const Ended e = spawn({"/bin/sh", "-c", line});
        expect_one_line(e, 1);
        EXPECT_THAT(e.err, HasSubstr("cannot write to stdout: No space left"));
    }
}

TEST_F(Run, AFullContextSaysSo) {
    const Ended e = spawn(command(model_.path(), {"-p", "a", "-n", "-1", "-c", "16", "--ignore-eos"}));
    EXPECT_EQ(e.status, 0) << e.err;
    EXPECT_THAT(e.err, HasSubstr("context of 16 tokens is full"));
    expect_one_line(spawn(command(model_.path(), {"-p", "abcdefghijklmnopqrstuvwxyz0123456789", "-c", "8", "-q"})), 1);
}

TEST_F(Run, SignalsEndItCleanlyAndAClosedPipeToo) {
    const TinyModelFile model(paged_shape());
    for (const int signal : {SIGINT, SIGTERM}) {
        std::jthread meanwhile;
        SpawnOptions options;
        options.started = [&](pid_t pid) {
            meanwhile = std::jthread([pid, signal] {
                std::this_thread::sleep_for(std::chrono::milliseconds(400));
                ::kill(pid, signal);
            });
        };
        const Ended e = spawn(command(model.path(), {"-p", "a", "-n", "-1", "--ignore-eos", "--json"}), options);
        EXPECT_EQ(e.status, 128 + signal) << e.err;
        EXPECT_EQ(json::parse(e.out)["finish_reason"], "interrupted");
    }
    SpawnOptions nobody;
    nobody.drop_stdout_reader = true;
    const Ended e = spawn(command(model.path(), {"-p", "a", "-n", "-1", "--ignore-eos", "-q"}), nobody);
    EXPECT_EQ(e.status, 1);
    EXPECT_EQ(e.err, "");
}

TEST_F(Run, ChatSaysWhenItDoesNotKnowTheTemplate) {
    const Ended none = spawn(command(model_.path(), {"-p", "a", "--chat"}));
    expect_one_line(none, 1);
    TinyShape shape;
    shape.chat_template = "{{ something_else }}";
    const TinyModelFile unknown(shape);
    const Ended e = spawn(command(unknown.path(), {"-p", "a", "--chat"}));
    expect_one_line(e, 1);
    EXPECT_THAT(e.err, HasSubstr("--chat-template NAME|FILE"));
    EXPECT_EQ(spawn(command(unknown.path(), {"-p", "a", "-n", "1", "-q", "--chat", "--chat-template", "chatml"})).status, 0);
    expect_one_line(spawn(command(unknown.path(), {"-p", "a", "--chat", "--chat-template", "no-such"})), 2);
    expect_one_line(spawn(command(unknown.path(), {"-p", "a", "--chat-template", "chatml"})), 2);
}

}  // namespace
}  // namespace weir::test
