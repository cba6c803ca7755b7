// `weir convert`, `verify`, `inspect` and `--precision` as a user meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

std::string read_file(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
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
    for (const char* const word : {"native version 2", "bits a weight", "P4b", "blk.0.attn_q.weight", "output_norm.weight"})
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
    const std::string plan = native_ + ".plan";
    std::ofstream(plan) << R"({"layers":[{"qk":8,"vo":6,"gate_up":4,"down":3},{"qk":4,"vo":4,"gate_up":3,"down":2}],"head":6})";
    const std::vector<std::string> planned = {"run", native_, "-p", "ab", "-n", "4", "--paging", "resident", "--json", "--precision-plan", plan};
    EXPECT_EQ(json::parse(weir(planned).out, nullptr, false)["precision"]["layers"][1]["down"], 2);
    std::vector<std::string> both = planned;
    both.insert(both.end(), {"--precision", "8"});
    expect_one_line(weir(both), 2, "give one");
    std::ofstream(plan) << "{}";
    expect_one_line(weir(planned), 1, "is no precision plan");
    fs::remove(plan);
    with_level.back() = "5";
    EXPECT_EQ(weir(with_level).status, 2);
}

TEST_F(Convert, IsPlannedAndMeasuredAtALevel) {
    convert();
    const auto plan_of = [&](const std::string& level) {
        const Ended e = weir({"plan", native_, "--precision", level, "-c", "64", "-b", "4", "-t", "1", "--device-gbps", "0.5", "--json"});
        EXPECT_EQ(e.status, 0) << e.err;
        return json::parse(e.out, nullptr, false);
    };
    const json high = plan_of("8"), low = plan_of("3");
    EXPECT_EQ(high["kernels"]["parts"][0]["type"], "level 8");
    EXPECT_EQ(low["kernels"]["parts"][0]["type"], "level 3");
    EXPECT_LT(low["weights_bytes"], high["weights_bytes"]);
    expect_one_line(weir({"plan", native_, "--precision", "auto"}), 2, "for weir run, chat and serve");
    expect_one_line(weir({"plan", native_, "--precision", "auto-exact"}), 2, "weir run's alone");
    expect_one_line(weir({"plan", model_.path(), "--precision", "3"}), 2, "has one precision");

    std::vector<std::string> bench = {"bench", "paging", native_, "--precision", "3", "--no-limit", "--arms", "resident", "--limits", "100",
                                      "--runs", "1", "--warmup", "1", "--tokens", "2", "-c", "64", "-p", "ab", "--json"};
    const Ended measured = weir(bench);
    ASSERT_EQ(measured.status, 0) << measured.err << measured.out;
    EXPECT_EQ(json::parse(measured.out, nullptr, false)["precision"], 3);
    bench[2] = model_.path();
    expect_one_line(weir(bench), 2, "has one precision");
}

// However it is drafted: the same answer, and it is said what drafts were worth.
TEST_F(Convert, DraftsGiveTheSameAnswer) {
    convert();
    const auto run = [&](const std::string& model, std::vector<std::string> more) {
        std::vector<std::string> args = {"run", model, "-p", "ab ab ab", "-n", "24", "--paging", "resident", "--json", "--seed", "3", "--ignore-eos", "-c", "48"};
        args.insert(args.end(), more.begin(), more.end());
        const Ended e = weir(args);
        EXPECT_EQ(e.status, 0) << e.err;
        return json::parse(e.out, nullptr, false);
    };
    const auto expect_same = [&](const std::string& model, const std::vector<std::string>& plain, const std::vector<std::vector<std::string>>& ways) {
        const json expected = run(model, plain);
        EXPECT_FALSE(expected.contains("drafts"));
        for (const std::vector<std::string>& way : ways) {
            SCOPED_TRACE(testing::PrintToString(way));
            const json result = run(model, way);
            for (const char* const key : {"ids", "text", "logits_hash", "precision"}) EXPECT_EQ(result[key], expected[key]) << key;
            uint64_t accepted = 0;
            for (const json& source : result["drafts"]["sources"]) accepted += source["accepted"].get<uint64_t>();
            EXPECT_EQ(accepted + result["drafts"]["passes"].get<uint64_t>(), 23u);
        }
    };
    expect_same(native_, {"--precision", "8"},
                {{"--precision", "auto-exact"},
                 {"--precision", "auto-exact", "--draft", "2", "--draft", "lookup", "--draft-max", "3"},
                 {"--draft", "3", "--draft-adapt", "off", "--draft-max", "16"},
                 {"--draft", model_.path()}});
    expect_same(native_, {"--precision", "3", "--temp", "0"}, {{"--precision", "3", "--temp", "0", "--draft", "2"}});
    expect_same(model_.path(), {}, {{"--draft", "lookup"}, {"--draft", native_, "--draft-adapt", "off"}});
    const json by_itself = run(model_.path(), {"--draft", model_.path(), "--draft-adapt", "off"})["drafts"]["sources"][0];
    EXPECT_EQ(by_itself["accepted"], by_itself["drafted"]);
    EXPECT_EQ(by_itself["places"][0]["judged"], by_itself["drafts"]);

    TinyShape other = shape();
    other.n_vocab = 301;
    const TinyModelFile stranger(other);
    const auto refused = [&](const std::string& model, std::vector<std::string> more, int status, const std::string& why) {
        more.insert(more.begin(), {"run", model, "-p", "ab", "-n", "3", "--paging", "resident"});
        expect_one_line(weir(more), status, why);
    };
    refused(native_, {"--draft", stranger.path()}, 1, "must have the same");
    refused(native_, {"--draft", "9"}, 1, "9");
    refused(model_.path(), {"--draft", "4"}, 2, "plain GGUF");
    refused(model_.path(), {"--precision", "auto-exact"}, 2, "plain GGUF");
    refused(native_, {"--precision", "4", "--draft", "6"}, 2, "below");
    refused(native_, {"--precision", "auto", "--draft", "lookup"}, 2, "auto-exact");
    refused(native_, {"--draft", "4", "--draft", "4"}, 2, "twice");
    refused(native_, {"--draft", "lookup", "--trace-experts", "x"}, 2, "token by token");
    refused(native_, {"--io-limit-mbps", "5"}, 2, "--paging uffd");
}

TEST_F(Convert, DeadlinesAreRefusedWhereNothingCanComeLate) {
    convert();
    expect_one_line(weir({"run", model_.path(), "-p", "ab", "--deadline-ms", "5"}), 2, "plain GGUF");
    const auto refused = [&](std::vector<std::string> more, const std::string& why) {
        more.insert(more.begin(), {"run", native_, "-p", "ab", "--deadline-ms", "5"});
        expect_one_line(weir(more), 2, why);
    };
    refused({"--precision", "4"}, "nothing to leave out");
    refused({"--precision", "auto-exact"}, "drafts");
    refused({"--draft", "lookup"}, "drafts");
    refused({"--paging", "resident"}, "--paging uffd");
    refused({"--gates", "off"}, "--paging uffd");
    refused({"--deadline-ms", "0"}, "--deadline-ms");
}

// In the model's place, and only when the new file is whole; every wrong question gets one line.
TEST_F(Convert, TunesScales) {
    convert();
    const std::string text = native_ + ".txt", other = native_ + ".other", before = read_file(native_);
    {
        std::ofstream out(text);
        for (int i = 0; i < 400; ++i) out << "abc ba" << (i * i % 7) << " ";
    }
    const auto tune = [&](std::vector<std::string> more) {
        std::vector<std::string> args = {"calibrate", native_, "--tune", "-f", text, "-c", "32", "--samples", "6"};
        args.insert(args.end(), more.begin(), more.end());
        return weir(args);
    };
    EXPECT_EQ(tune({}).status, 2);  // no --source
    expect_one_line(tune({"--source", native_}), 2, "is a native file");
    expect_one_line(weir({"calibrate", model_.path(), "--tune", "-f", text, "--source", model_.path()}), 2, "plain GGUF");
    expect_one_line(tune({"--source", model_.path(), "--ram", "1M"}), 2, "--ram: tuning takes");
    EXPECT_EQ(tune({"--source", model_.path(), "--windows", "4"}).status, 2);
    EXPECT_EQ(tune({"--source", model_.path(), "--levels", "4"}).status, 2);
    EXPECT_EQ(read_file(native_), before);

    const Ended aside = tune({"--source", model_.path(), "-o", other, "--levels", "2"});
    ASSERT_EQ(aside.status, 0) << aside.err;
    EXPECT_THAT(aside.err, HasSubstr("and the head on 6 samples of 32 tokens: about"));
    EXPECT_EQ(read_file(native_), before);
    expect_one_line(tune({"--source", model_.path(), "-o", other}), 2, "is there already");
    const Ended in_place = tune({"--source", model_.path()});
    ASSERT_EQ(in_place.status, 0) << in_place.err;
    EXPECT_NE(read_file(native_), before);
    EXPECT_EQ(read_file(native_).size(), before.size());
    for (const std::string& path : {native_, other}) EXPECT_THAT(weir({"verify", path}).out, HasSubstr("whole"));
    for (const char* const rest : {".tuning", ".partial"}) EXPECT_FALSE(fs::exists(native_ + rest)) << rest;
    fs::remove(text);
    fs::remove(other);
}

// From a text to a table, from the table to a plan, and from both to a run; a calibration that was ended goes on.
TEST_F(Convert, CalibratesPlansAndAdapts) {
    convert();
    const std::string text = native_ + ".txt", table = native_ + ".sensitivity.json", plan = native_ + ".plan", memory = native_ + ".memory",
                      trace = native_ + ".trace", token_trace = native_ + ".tokens", by_token = native_ + ".token-plans";
    {
        std::ofstream out(text);
        for (int i = 0; i < 400; ++i) out << "abc ba" << (i * i % 7) << " ";
    }
    const auto calibrate = [&](const char* windows, std::vector<std::string> more = {}) {
        std::vector<std::string> args = {"calibrate", native_, "-f", text, "-c", "32", "--windows", windows, "--paging", "resident"};
        args.insert(args.end(), more.begin(), more.end());
        return weir(args);
    };
    expect_one_line(weir({"calibrate", model_.path(), "-f", text}), 2, "plain GGUF");
    expect_one_line(calibrate("100000"), 1, "were asked for");
    ASSERT_EQ(calibrate("1").status, 0);
    const std::string one = read_file(table);
    EXPECT_THAT(calibrate("1").err, HasSubstr("has 1 windows already"));
    ASSERT_EQ(calibrate("3").status, 0);
    const std::string three = read_file(table);
    EXPECT_NE(one, three);
    ASSERT_EQ(calibrate("3", {"--force"}).status, 0);
    EXPECT_EQ(json::parse(read_file(table), nullptr, false)["windows"], 3);
    expect_one_line(weir({"calibrate", native_, "-f", text, "-c", "16", "--windows", "1"}), 2, "--force");
    EXPECT_EQ(json::parse(read_file(table), nullptr, false)["activations"], "int16");
    expect_one_line(calibrate("4", {"--activations", "int8"}), 2, "rounding of activations");

    const Ended list = spawn({WEIR_SCHED, "list", table}, {});
    EXPECT_THAT(list.out, HasSubstr("8 bits everywhere"));
    EXPECT_THAT(spawn({WEIR_SCHED, "show", table}, {}).out, HasSubstr("head"));
    EXPECT_THAT(spawn({WEIR_SCHED, "check", table}, {}).out, HasSubstr("3 windows of 32 tokens"));
    expect_one_line(spawn({WEIR_SCHED, "check", text}, {}), 1, "is no table");
    expect_one_line(spawn({WEIR_SCHED, "plan", table}, {}), 2, "--like");
    expect_one_line(spawn({WEIR_SCHED, "plan", table, "--bytes", "1"}, {}), 1, "the coarsest plan takes");
    const Ended made = spawn({WEIR_SCHED, "plan", table, "--like", "4"}, {});
    ASSERT_EQ(made.status, 0) << made.err;
    std::ofstream(plan) << made.out;
    EXPECT_EQ(weir({"run", native_, "-p", "ab", "-n", "3", "--precision-plan", plan, "--paging", "resident"}).status, 0);

    const std::vector<std::string> run = {"run", native_, "-p", "ab ab ab", "-n", "24", "--precision", "auto", "--plan-memory", memory, "--trace-precision", trace,
                                          "--paging", "resident", "--json", "--temp", "0", "--ignore-eos"};
    const json first = json::parse(weir(run).out, nullptr, false)["precision"], second = json::parse(weir(run).out, nullptr, false)["precision"];
    uint64_t tokens = 0;
    for (const json& rung : first["auto"]) tokens += rung["tokens"].get<uint64_t>();
    EXPECT_EQ(tokens, 23u);  // passes after the prompt's
    EXPECT_EQ(first["remembered"], false);
    EXPECT_EQ(second["remembered"], true);
    EXPECT_LE(second["switches"], first["switches"]);
    EXPECT_THAT(read_file(trace), HasSubstr("# rung 0: "));

    const std::vector<std::string> traced = {"perplexity", native_, "-f", text, "-c", "32", "--windows", "3", "--paging", "resident", "--trace-tokens", token_trace};
    expect_one_line(weir(traced), 2, "--kl");
    std::vector<std::string> compared = traced;
    compared.insert(compared.end(), {"--kl", model_.path(), "--json"});
    const json ladder = json::parse(weir(compared).out, nullptr, false)["plans"];
    ASSERT_EQ(ladder.size(), first["auto"].size());
    for (size_t p = 0; p < ladder.size(); ++p) EXPECT_EQ(ladder[p]["bytes"], first["auto"][p]["bytes"]);
    const std::string lines = read_file(token_trace);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1 + 3 * 15);
    const Ended fitted = spawn({WEIR_SCHED, "fit", token_trace, "--held-out", token_trace, "--json"}, {});
    ASSERT_EQ(fitted.status, 0) << fitted.err;
    EXPECT_EQ(json::parse(fitted.out, nullptr, false)["rows"].size(), ladder.size());
    expect_one_line(spawn({WEIR_SCHED, "fit", table}, {}), 1, "is no trace");

    // Plans by token: of bytes without bounds each token has the finest plan, of none the coarsest, and as they were traced.
    std::vector<std::string> followed = {"perplexity", native_, "-f", text, "-c", "32", "--windows", "3", "--paging", "resident", "--kl", model_.path(), "--precision", "auto", "--json"};
    EXPECT_GT(json::parse(weir(followed).out, nullptr, false)["auto"]["kl"], 0);
    followed.insert(followed.end(), {"--token-plans", by_token});
    for (const char* const bytes : {"1000000000000", "1"}) {
        expect_one_line(spawn({WEIR_SCHED, "fit", token_trace, "-o", by_token}, {}), 2, "--bytes");
        ASSERT_EQ(spawn({WEIR_SCHED, "fit", token_trace, "--bytes", bytes, "-o", by_token}, {}).status, 0);
        const json said = json::parse(weir(followed).out, nullptr, false);
        const json& plan = bytes[1] == 0 ? said["plans"].back() : said["plans"].front();
        EXPECT_EQ(said["auto"]["bytes"], plan["bytes"]);
        EXPECT_NEAR(said["auto"]["kl"].get<double>(), plan["kl"].get<double>(), 1e-12);
        EXPECT_NEAR(said["auto"]["ratio"].get<double>(), 1, 1e-6);
    }
    std::vector<std::string> by_tokens = {"run", native_, "-p", "ab ab ab", "-n", "24", "--precision", "auto", "--token-plans", by_token, "--paging", "resident", "--json", "--temp", "0", "--ignore-eos"};
    const json coarsest = json::parse(weir(by_tokens).out, nullptr, false)["precision"];
    EXPECT_EQ(coarsest["auto"].back()["tokens"], 23);
    EXPECT_EQ(coarsest["remembered"], false);
    by_tokens.insert(by_tokens.end(), {"--plan-memory", memory});
    expect_one_line(weir(by_tokens), 2, "--plan-memory together");
    by_tokens[by_tokens.size() - 2] = "--sensitivity";
    expect_one_line(weir(by_tokens), 2, "--sensitivity together");
    by_tokens.resize(by_tokens.size() - 2);
    expect_one_line(weir({"run", native_, "-p", "ab", "--token-plans", by_token}), 2, "belong to --precision auto");
    expect_one_line(weir({"perplexity", native_, "-f", text, "--token-plans", by_token}), 2, "belongs to --precision auto");
    const std::vector<std::string> simulate = {WEIR_SCHED, "simulate", table, "--compute-ms", "5,4,3,2,1", "--acceptance", "0.5,0.4", "--device-gbps"};
    const auto at_speed = [&](const char* gbps) {
        std::vector<std::string> args = simulate;
        args.push_back(gbps);
        return spawn(args, {});
    };
    EXPECT_THAT(at_speed("1").out, HasSubstr("auto-exact, drafted at 4 bits"));
    expect_one_line(at_speed("nan"), 2, "--device-gbps");
    compared.insert(compared.end(), {"--precision", "4", "--trace-plans", "3"});
    expect_one_line(weir(compared), 2, "no --precision");

    std::vector<std::string> elsewhere = run;
    elsewhere.insert(elsewhere.end(), {"--sensitivity", text});
    expect_one_line(weir(elsewhere), 1, "is no table");
    elsewhere.back() = text + ".not";
    expect_one_line(weir(elsewhere), 2, "weir calibrate");
    expect_one_line(weir({"run", native_, "-p", "ab", "--trace-precision", trace}), 2, "belong to --precision auto");
    expect_one_line(weir({"perplexity", native_, "-f", text, "--precision", "auto"}), 2, "they take --kl");
    // Of another model: planes that were rounded in another way.
    ASSERT_EQ(weir({"convert", model_.path(), native_, "--force", "--calibration", text, "--calibration-tokens", "512"}).status, 0);
    EXPECT_EQ(weir({"verify", native_}).status, 0);
    expect_one_line(weir(run), 1, "was measured on another model");
    expect_one_line(weir(by_tokens), 1, "was fitted to another model");
    for (const std::string& path : {text, table, plan, memory, trace, token_trace, by_token}) fs::remove(path);
}

}  // namespace
}  // namespace weir::test
