// The built program from outside: inspect, synth, and what it says to input that is not good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/spawn.h"
#include "tests/material.h"
#include "tests/model/raw_gguf.h"
#include "tests/model/small_model.h"

namespace weir {
namespace {

using nlohmann::json;
using test::Ended;
using test::SmallModel;
using test::SpawnOptions;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

Ended weir(std::vector<std::string> args, const SpawnOptions& options = {}) {
    args.insert(args.begin(), WEIR_PROGRAM);
    // Built for another architecture, it runs in the emulator that Meson runs this test in.
    if (const char* emulator = std::getenv("MESON_EXE_WRAPPER")) args.insert(args.begin(), emulator);
    return test::spawn(args, options);
}

class Program : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "weir-cli-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string path(const char* name) const { return folder_ / name; }
    std::string write(const char* name, std::span<const std::byte> bytes) const {
        std::ofstream out(folder_ / name, std::ios::binary);
        out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        return folder_ / name;
    }
    size_t files() const {
        return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
    }
    static void expect_refusal(const Ended& ended, int status, const std::string& what) {
        EXPECT_EQ(ended.status, status) << ended.err;
        EXPECT_EQ(ended.error_lines(), 1u) << ended.err;
        EXPECT_THAT(ended.err, HasSubstr(what));
        EXPECT_EQ(ended.err.compare(0, 6, "weir: "), 0) << ended.err;
        EXPECT_EQ(ended.out, "");
        EXPECT_LT(ended.seconds, 5);
    }

    std::filesystem::path folder_;
};

TEST_F(Program, HelpAndVersion) {
    EXPECT_THAT(weir({"--version"}).out, MatchesRegex("weir [0-9]+\\.[0-9]+\\.[0-9]+\n"));
    const Ended help = weir({"--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, HasSubstr("inspect"));
    EXPECT_THAT(help.out, HasSubstr("synth"));
    EXPECT_EQ(weir({"inspect", "--help"}).status, 0);
    const Ended nothing = weir({});
    EXPECT_EQ(nothing.status, 2);
    EXPECT_EQ(nothing.out, "");
    EXPECT_THAT(nothing.err, HasSubstr("Usage: weir"));
}

TEST_F(Program, DoctorSaysWhatIsHere) {
    const std::string file = path("file");
    std::ofstream(file) << std::string(1 << 20, 'x');
    const Ended text = weir({"doctor", file});
    EXPECT_EQ(text.status, 0) << text.err;
    for (const char* what : {"kernel", "userfaultfd: user-mode-only", "io_uring", "cgroup limit", "swap", "file: direct reads",
                             "device: sequential", "kernels"})
        EXPECT_THAT(text.out, HasSubstr(what));
    const Ended machine = weir({"doctor", "--json"});
    EXPECT_EQ(machine.status, 0) << machine.err;
    const json j = json::parse(machine.out);
    for (const json& check : j["checks"]) {
        EXPECT_FALSE(check["found"].get<std::string>().empty()) << check;
        EXPECT_THAT(check["verdict"].get<std::string>(), testing::AnyOf("ok", "slower", "not available"));
    }
    expect_refusal(weir({"doctor", path("absent")}), 1, "absent");
    expect_refusal(weir({"doctor", "--frobnicate"}), 2, "frobnicate");
}

TEST_F(Program, PlanTellsWhatARunWillTake) {
    const std::string model = path("model.gguf");
    ASSERT_EQ(weir({"synth", "--shape", "1.1b", "--type", "q4_0", "--layers", "1", "--vocab", "2000", "-o", model}).status, 0);
    const std::vector<std::string> common = {"plan", model, "-c", "64", "-b", "4", "-t", "2", "--device-gbps", "0.5"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), common.begin(), common.end());
        return weir(std::move(more));
    };
    // Relative to what all of it needs: a sanitizer's own memory counts as the program's.
    const Ended roomy = with({"--ram", "1G", "--json"});
    ASSERT_EQ(roomy.status, 0) << roomy.err;
    const uint64_t mebibytes = (json::parse(roomy.out)["ram_for_all_bytes"].get<uint64_t>() >> 20) - 8;
    const std::string ram = std::to_string(mebibytes) + "M";
    const Ended text = with({"--ram", ram, "--tiers", "30,25"});
    EXPECT_EQ(text.status, 0) << text.err;
    for (const char* what : {"budget", "Expected:", "tokens/s", "quantised to", "Q2_K", "30 % for activations"})
        EXPECT_THAT(text.out, HasSubstr(what));
    const Ended machine = with({"--ram", ram, "--json"});
    ASSERT_EQ(machine.status, 0) << machine.err;
    const json j = json::parse(machine.out);
    EXPECT_EQ(j["plan"]["ram_bytes"], mebibytes << 20);
    EXPECT_EQ(j["device"]["bytes_per_s"], 0.5e9);
    EXPECT_GT(j["plan"]["bytes_read_per_token"], 0);
    EXPECT_GT(j["plan"]["tokens_per_s"], 0);
    EXPECT_GT(j["ram_for_all_bytes"], j["plan"]["ram_bytes"]);
    EXPECT_FALSE(j["more_ram"].empty());
    expect_refusal(with({"--ram", "8M"}), 2, "does not hold");
    for (const char* speed : {"nan", "0", "1e9", "fast"})
        expect_refusal(weir({"plan", model, "--device-gbps", speed}), 2, "is no number from 0.001 to 1000");
    expect_refusal(weir({"run", model, "-p", "a", "--paging", "resident", "--weights-ram", "50%"}), 2, "give one");
    expect_refusal(with({"--tiers", "60"}), 2, "60,25");
    expect_refusal(with({"--tiers", "60,50"}), 2, "60,25");
    expect_refusal(with({"--cache-type-k", "q8"}), 2, "f16");
    expect_refusal(weir({"plan", path("absent")}), 1, "absent");
}

TEST_F(Program, UsageErrors) {
    expect_refusal(weir({"frobnicate"}), 2, "frobnicate");
    expect_refusal(weir({"inspect"}), 2, "required");
    expect_refusal(weir({"inspect", "a", "b"}), 2, "b");
    expect_refusal(weir({"inspect", "--frob", "a"}), 2, "--frob");
    expect_refusal(weir({"synth", "--shape", "1.1b"}), 2, "required");
}

TEST_F(Program, InspectText) {
    const Ended ended = weir({"inspect", write("small.gguf", SmallModel{}.bytes())});
    EXPECT_EQ(ended.status, 0);
    EXPECT_EQ(ended.err, "");
    EXPECT_THAT(ended.out, HasSubstr("GGUF version 3"));
    EXPECT_THAT(ended.out, HasSubstr("llama, 2 layers of 8, 2 heads of 4"));
    EXPECT_THAT(ended.out, HasSubstr("llama.block_count"));
    EXPECT_THAT(ended.out, HasSubstr("blk.1.ffn_down.weight"));
    EXPECT_THAT(ended.out, HasSubstr("12 x 8"));
    EXPECT_THAT(ended.out, HasSubstr("total: "));
}

TEST_F(Program, InspectJson) {
    const std::vector<std::byte> bytes = SmallModel{}.bytes();
    const Ended ended = weir({"inspect", "--json", "-m", write("small.gguf", bytes)});
    EXPECT_EQ(ended.status, 0);
    const json out = json::parse(ended.out);
    EXPECT_EQ(out["file_bytes"], bytes.size());
    EXPECT_EQ(out["config"]["layers"], 2);
    EXPECT_EQ(out["config"]["head_dim"], 4);
    EXPECT_EQ(out["metadata"]["general.name"], "small");
    EXPECT_EQ(out["tensors"].size(), 21u);
    EXPECT_EQ(out["tensors"][0]["name"], "token_embd.weight");
    EXPECT_EQ(out["tensors"][0]["shape"], json({8, 6}));
    uint64_t sum = 0;
    for (const json& tensor : out["tensors"]) sum += tensor["bytes"].get<uint64_t>();
    EXPECT_EQ(out["tensor_bytes"], sum);
    // 6 rows of 32 bytes, of which a token touches one.
    EXPECT_EQ(out["bytes_per_token"], sum - 5 * 32);
    EXPECT_EQ(out["extents"]["head_extents"], 1);
    EXPECT_GE(out["extents"]["image_bytes"].get<uint64_t>(), 1u);
    EXPECT_GE(out["extents"]["reads"].get<size_t>(), out["extents"]["extents"].get<size_t>());
    ASSERT_EQ(out["layers"].size(), 4u);
    EXPECT_EQ(out["layers"][0]["layer"], "embedding");
    EXPECT_EQ(out["layers"][1]["layer"], "blk.0");
    EXPECT_EQ(out["layers"][1]["tensors"], 9);
    EXPECT_EQ(out["layers"][3]["layer"], "head");
    EXPECT_EQ(out["types"][0]["type"], "F32");
    EXPECT_EQ(out["types"][0]["share"], 1.0);
}

TEST_F(Program, InspectShowsWhatItCannotRun) {
    SmallModel model;
    model.also = [](GgufWriter& w) {
        w.add("llama.expert_count", uint32_t{8});
        w.add("odd\nkey", "odd\n\x1b[2Jvalue \xff");
        w.add("nothing", std::vector<float>{});
    };
    const std::string file = write("experts.gguf", model.bytes());
    const Ended text = weir({"inspect", file});
    EXPECT_EQ(text.status, 0);
    EXPECT_THAT(text.out, HasSubstr("cannot be run: key 'llama.expert_used_count' is missing"));
    EXPECT_THAT(text.out, HasSubstr("odd\\x0akey"));
    EXPECT_THAT(text.out, Not(HasSubstr("\x1b")));
    const Ended ended = weir({"inspect", file, "--json"});
    EXPECT_EQ(ended.status, 0);
    const json out = json::parse(ended.out);
    EXPECT_TRUE(out["config"].is_null());
    EXPECT_EQ(out["metadata"]["odd\nkey"], "odd\n\x1b[2Jvalue \xef\xbf\xbd");
    EXPECT_EQ(out["metadata"]["nothing"]["length"], 0);
}

TEST_F(Program, InspectRealFiles) {
    for (const char* name : {"models/stories260K-F32.gguf", "models/weir-demo-8m-f16.gguf",
                             "vocabs/ggml-vocab-llama-bpe.gguf", "vocabs/ggml-vocab-gpt-2.gguf"}) {
        const auto file = test::shared_file(name);
        if (!test::require_material(file)) return;
        EXPECT_EQ(weir({"inspect", file}).status, 0);
        const Ended ended = weir({"inspect", file, "--json"});
        EXPECT_EQ(ended.status, 0);
        EXPECT_FALSE(json::parse(ended.out, nullptr, false).is_discarded());
    }
}

TEST_F(Program, BadFiles) {
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
    const std::vector<std::byte> bytes = SmallModel{}.bytes();
    std::vector<std::pair<std::string, std::string>> bad{
        {path("absent.gguf"), "No such file"},
        {"", "No such file"},
        {folder_, "is a directory"},
        {path("fifo"), "is no regular file"},
        {"/dev/zero", "is no regular file"},
        {write("empty.gguf", {}), "is empty"},
        {write("two\nlines", {}), "is empty"},
        {write("zip.gguf", test::RawGguf().raw("PK\3\4").data(64).bytes()), "not a GGUF file"},
    };
    for (const size_t n : {size_t{3}, size_t{10}, size_t{500}, bytes.size() - 64}) {
        const std::string name = "cut" + std::to_string(n);
        bad.emplace_back(write(name.c_str(), std::span(bytes).first(n)), "at byte ");
    }
    for (const auto& [file, what] : bad) {
        SCOPED_TRACE(file);
        expect_refusal(weir({"inspect", file}), 1, what);
        expect_refusal(weir({"run", file, "-p", "x"}), 1, what);
    }
}

TEST_F(Program, NoPermission) {
    const std::string file = write("secret.gguf", SmallModel{}.bytes());
    ASSERT_EQ(::chmod(file.c_str(), 0), 0);
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    SpawnOptions options;
    if (::geteuid() == 0) {
        // Nothing is forbidden to root, so somebody else asks.
        options.in_child = [] {
            constexpr uid_t kNobody = 65534;
            if (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0)
                ::_exit(126);
        };
    }
    const Ended ended = weir({"inspect", file}, options);
    if (ended.status == 126 || ended.status == 127) GTEST_SKIP() << "an ordinary user cannot run the program here";
    expect_refusal(ended, 1, "Permission denied");
}

TEST_F(Program, OutputThatCannotBeWritten) {
    const std::string file = write("small.gguf", SmallModel{}.bytes());
    SpawnOptions dropped;
    dropped.drop_stdout_reader = true;
    Ended ended = weir({"inspect", file}, dropped);
    EXPECT_EQ(ended.status, 1);
    EXPECT_EQ(ended.err, "");
    SpawnOptions closed;
    closed.close_stdout = true;
    ended = weir({"inspect", file}, closed);
    EXPECT_EQ(ended.status, 1);
    EXPECT_EQ(ended.err, "");
    SpawnOptions full;
    full.stdout_path = "/dev/full";
    expect_refusal(weir({"inspect", file}, full), 1, "cannot write to stdout: No space left");
}

TEST_F(Program, SynthAndInspect) {
    for (const char* type : {"q4_0", "q4_k"}) {
        const Ended made = weir({"synth", "--shape", "1.1b", "--type", type, "--layers", "1", "--vocab", "512",
                                 "--seed", "7", "-o", path("s.gguf")});
        EXPECT_EQ(made.status, 0) << made.err;
        EXPECT_EQ(made.error_lines(), 1u) << made.err;
        EXPECT_EQ(made.out, "");
        const json out = json::parse(weir({"inspect", path("s.gguf"), "--json"}).out);
        EXPECT_EQ(out["config"]["dim"], 2048);
        EXPECT_EQ(out["config"]["layers"], 1);
        EXPECT_EQ(out["config"]["vocab"], 512);
        EXPECT_THAT(out["config"]["name"].get<std::string>(), HasSubstr("synthetic"));
        EXPECT_EQ(out["metadata"]["tokenizer.ggml.tokens"]["length"], 512);
        EXPECT_EQ(out["file_bytes"], std::filesystem::file_size(path("s.gguf")));
    }
    EXPECT_EQ(files(), 1u);
}

TEST_F(Program, SynthRefusals) {
    const auto synth = [&](std::vector<std::string> more, const std::string& output) {
        std::vector<std::string> args{"synth", "--layers", "1", "-o", output};
        args.insert(args.end(), more.begin(), more.end());
        return weir(args);
    };
    const std::vector<std::string> good{"--shape", "1.1b", "--type", "q4_0"};
    expect_refusal(synth({"--shape", "2b", "--type", "q4_0"}, path("s")), 2, "unknown shape '2b'");
    expect_refusal(synth({"--shape", "7b", "--type", "q6_k"}, path("s")), 2, "unknown type 'q6_k'");
    expect_refusal(synth({"--shape", "1.1b", "--type", "q4_0", "--seed", "-1"}, path("s")), 2, "--seed");
    expect_refusal(synth({"--shape", "1.1b", "--type", "q4_0", "--vocab", "0"}, path("s")), 2, "--vocab");
    expect_refusal(synth({"--shape", "1.1b", "--type", "q4_0", "--vocab", "500000"}, path("s")), 2, "500000 tokens");
    expect_refusal(synth(good, "-"), 2, "not to stdout");
    expect_refusal(synth(good, folder_), 1, "is no regular file");
    expect_refusal(synth(good, path("absent/s.gguf")), 1, "No such file");
    expect_refusal(synth(good, "/dev/full"), 1, "is no regular file");
    EXPECT_EQ(files(), 0u);
}

TEST_F(Program, SynthLeavesNothingWhenWritingFails) {
    SpawnOptions options;
    options.in_child = [] {
        const rlimit limit{1 << 20, 1 << 20};
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(126);
    };
    expect_refusal(weir({"synth", "--shape", "1.1b", "--type", "q4_0", "--layers", "1", "-o", path("s.gguf")}, options),
                   1, "File too large");
    EXPECT_EQ(files(), 0u);
}

TEST_F(Program, SynthLeavesNothingWhenInterrupted) {
    const auto space = std::filesystem::space(folder_);
    if (space.available < uint64_t{2} << 30) GTEST_SKIP() << "needs 2 GiB of free disk";
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        SpawnOptions options;
        options.started = [&](pid_t pid) {
            for (int tries = 0; tries < 1000 && files() == 0; ++tries) ::usleep(10000);
            ::kill(pid, number);
        };
        expect_refusal(weir({"synth", "--shape", "1.1b", "--type", "q8_0", "-o", path("s.gguf")}, options),
                       128 + number, "stopped");
        EXPECT_EQ(files(), 0u);
    }
}

}  // namespace
}  // namespace weir
