// `weir bench paging`: one model decoded by every way of paging under the same hard memory limits, in turn, each figure
// beside what the storage gave in the same minute. What is measured here; bench_arm.cc makes one run, bench_report.cc
// computes and shows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cli/bench_peer.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/memory_cgroup.h"
#include "runtime/cli/terminal.h"

namespace weir {

// What the kernel charges to a limit besides a process's own memory: page tables, stacks, its files' pages. Arms with a
// budget are told to stay so far below the limit.
constexpr uint64_t kKernelBytes = 16u << 20;

// Tokens of a run: decoded first, and then measured. Slow arms may do with fewer.
struct TokenCounts {
    size_t warmup = 8;
    size_t measured = 16;
};
constexpr TokenCounts kSlowCounts = {4, 8};
constexpr double kSlowTokensPerS = 1;

struct BenchOptions {
    std::string model;
    int precision = 0;  // of a native file, bits; 0: plain GGUF, or 8
    std::vector<unsigned> limits = {110, 90, 75, 50, 25};  // per cent of the file, of a native one of what level 8 reads
    std::vector<std::string> arms = {"resident", "mmap", "advised", "uffd"};
    std::vector<Peer> peers;  // with {model} {threads} {warm} {tokens} {total} {context} {prompt}
    size_t runs = 3;
    TokenCounts counts;
    size_t threads = 0;
    size_t context = 512;
    std::string prompt = "Once upon a time";
    std::optional<uint64_t> read_ahead_kib;
    bool no_limit = false;
    bool fetch_peer = false;
    bool probe = false;
    bool json = false;
};

inline TokenCounts slow_counts(const TokenCounts& wanted) {
    return {std::min(wanted.warmup, kSlowCounts.warmup), std::min(wanted.measured, kSlowCounts.measured)};
}

// What one run came to; what an arm cannot say is not there.
struct Figures {
    std::optional<double> tokens_per_s;
    std::optional<double> bytes_per_token;      // from storage, by /proc/self/io
    std::optional<double> device_share;         // of the device's own speed, used while decoding
    std::optional<double> expert_bytes_per_s;   // while at least one expert was being read
    std::optional<double> expert_device_share;
    std::optional<double> cpu_s_per_token;
    std::optional<double> stall_ms_per_token;
    std::optional<double> faults_per_token;     // userfaultfd's
    std::optional<double> major_faults_per_token;
    std::optional<double> first_token_ms;       // loading included
    std::optional<double> prefill_ms;           // of it, after loading
    std::optional<double> first_token_bytes;    // read until then by the pager
    std::optional<double> frame_bytes;          // that take their first bytes then
    std::optional<double> peak_rss_bytes;       // VmHWM
    std::optional<double> cgroup_peak_bytes;
    std::optional<double> must_read_bytes;      // per token: M - R
    std::optional<double> formula_s;            // per token: the larger of compute and what must be read
    std::optional<double> formula_ratio;        // measured time to it
    std::optional<double> first_formula_ms;     // the first token's: the larger of its compute and of reading its bytes
    std::optional<double> first_ratio;
};

struct NamedFigure {
    const char* name;
    std::optional<double> Figures::*value;
};
constexpr NamedFigure kFigures[] = {
    {"tokens_per_s", &Figures::tokens_per_s},
    {"bytes_per_token", &Figures::bytes_per_token},
    {"device_share", &Figures::device_share},
    {"expert_bytes_per_s", &Figures::expert_bytes_per_s},
    {"expert_device_share", &Figures::expert_device_share},
    {"cpu_s_per_token", &Figures::cpu_s_per_token},
    {"stall_ms_per_token", &Figures::stall_ms_per_token},
    {"faults_per_token", &Figures::faults_per_token},
    {"major_faults_per_token", &Figures::major_faults_per_token},
    {"first_token_ms", &Figures::first_token_ms},
    {"prefill_ms", &Figures::prefill_ms},
    {"first_token_bytes", &Figures::first_token_bytes},
    {"frame_bytes", &Figures::frame_bytes},
    {"peak_rss_bytes", &Figures::peak_rss_bytes},
    {"cgroup_peak_bytes", &Figures::cgroup_peak_bytes},
    {"must_read_bytes", &Figures::must_read_bytes},
    {"formula_s", &Figures::formula_s},
    {"formula_ratio", &Figures::formula_ratio},
    {"first_formula_ms", &Figures::first_formula_ms},
    {"first_ratio", &Figures::first_ratio},
};

struct ArmRun {
    size_t turn = 0;
    TokenCounts counts;
    Figures figures;
    uint64_t oom_kills = 0;
    std::optional<uint64_t> cached_before;  // bytes of the model in the page cache when it began
    std::string logits_hash;                // of our own arms
    std::string bounded_by;
    std::string error;                      // "" where it ended well
    std::optional<double> fresh_bytes_per_s;  // the device's speed into memory as fresh as this run's, right before it
};

struct Arm {
    std::string name;
    std::vector<ArmRun> runs;
};

// All arms under one limit.
struct LimitRuns {
    unsigned percent = 0;
    uint64_t limit_bytes = 0;
    std::vector<double> device_bytes_per_s;  // one per turn: the median of probes before each of its arms
    std::vector<Arm> arms;
};

struct BenchReport {
    const BenchOptions* options = nullptr;
    uint64_t model_bytes = 0;  // that limits are shares of
    LimitPlace place;
    std::optional<uint64_t> read_ahead_kib;
    std::string read_ahead_note;  // why it is not the one that was asked for
    std::string device;           // how it was measured
    std::vector<LimitRuns> limits;
    std::vector<std::string> notes;
};

std::optional<Spread> spread(const std::vector<ArmRun>& runs, std::optional<double> Figures::*value);

// One run of an arm under a limit of limit_bytes (resident: under none). Ends early where a signal asks for it, with an
// error that says so.
ArmRun run_arm(const BenchOptions& options, const LimitPlace& place, const std::string& arm, uint64_t limit_bytes,
               const TokenCounts& counts, const StopSignals& signals);
ArmRun run_peer(const BenchOptions& options, const LimitPlace& place, const Peer& peer, uint64_t limit_bytes,
                const TokenCounts& counts, const StopSignals& signals);

// Fills in what needs other arms: shares of the device's speed, the formula.
void compare_arms(LimitRuns* limit);
// True where every run ended well and all arms of ours computed the same logits.
bool all_well(const BenchReport& report);

std::string bench_text(const BenchReport& report);
std::string bench_json(const BenchReport& report);

Command add_bench_paging(CLI::App& bench);

}  // namespace weir
