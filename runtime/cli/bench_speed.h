// `weir bench speed`: prefill and decode of one model, in the manner of llama-bench, beside what the machine gives at best in
// the same minute and beside other programs in turn. Measured in bench_speed.cc, shown by bench_speed_report.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cli/bench_peer.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/run_options.h"

namespace weir {

struct SpeedOptions {
    RunOptions run;
    std::vector<size_t> prompts = {64, 512};  // tokens, one test each
    size_t new_tokens = 32;                   // decoded after each prompt
    std::vector<size_t> threads;              // empty: physical cores
    size_t runs = 3;
    std::vector<Peer> peers;  // with {model} {threads} {prompt_tokens} {tokens} {context}
};

// What one run of an arm came to, tokens/s; error: "" where it ended well.
struct SpeedRun {
    double prefill = 0;
    double decode = 0;
    double stall_share = 0;  // of the decode time, waiting for weights; ours only
    std::string error;
};

struct SpeedArm {
    std::string name;  // "weir" for ours, which is the first
    std::vector<SpeedRun> runs;
};

// One prompt size with one number of threads.
struct SpeedTest {
    size_t threads = 0;
    size_t prompt = 0;
    std::vector<double> read_bytes_per_s;  // of the probes, one per turn
    std::vector<double> dots_per_s;        // operations
    std::vector<SpeedArm> arms;
};

struct SpeedReport {
    const SpeedOptions* options = nullptr;
    uint64_t model_bytes = 0;
    std::string kernels;
    std::string paging;           // as it came to be
    size_t batch = 0;
    uint64_t weights_bytes = 0;   // that a pass of many tokens reads, all experts among them
    uint64_t token_bytes = 0;     // that one token reads: of the experts, those that it goes through
    uint64_t body_elements = 0;   // of the weights that every token meets
    uint64_t head_elements = 0;   // that those tokens meet whose logits are wanted
    std::vector<SpeedTest> tests;
};

// Prefill or decode of an arm, and how near it comes to the roof.
struct SpeedFigure {
    std::optional<Spread> tokens_per_s;
    double bytes_per_s = 0;   // of weights, at the median
    double ops_per_s = 0;
    double read_share = 0;    // of the probes' medians
    double dot_share = 0;
    std::string bound;        // memory, compute or disk
};
SpeedFigure prefill_figure(const SpeedReport& report, const SpeedTest& test, const SpeedArm& arm);
SpeedFigure decode_figure(const SpeedReport& report, const SpeedTest& test, const SpeedArm& arm);

bool all_well(const SpeedReport& report);
std::string speed_text(const SpeedReport& report);
std::string speed_json(const SpeedReport& report);

Command add_bench_speed(CLI::App& bench);

}  // namespace weir
