// Watches a service while it serves: does the model still foretell what it is shown as it did, and do bytes come and go as they
// should? Four warnings, each raised and taken back by what was seen last:
//
//     perplexity       of the last three windows of prompts, over 1.05 x the baseline: the file, or what it is asked, has
//                      changed, and a recalibration is worth its time
//     memory           over 80 % of the machine's memory beside our own budget is in use
//     device           while reads bound, storage gives under 60 % of what a probe of it gave
//     bytes_per_token  a pass reads 15 % more than the plan in force must
//
// A window is of some thousand tokens: of windows as short as a prompt, texts differ by more than 5 %.
//
// Pure and deterministic; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weir::sched {

enum class Warning : uint8_t { kPerplexity, kMemory, kDevice, kBytesPerToken };
constexpr size_t kWarnings = 4;
constexpr std::array<const char*, kWarnings> kWarningNames = {"perplexity", "memory", "device", "bytes_per_token"};

struct MonitorOptions {
    size_t window = 2048;            // scored tokens
    size_t recent_windows = 3;       // that are compared, and as many make the baseline where none is given
    double baseline_perplexity = 0;  // 0: of the first windows
    double perplexity_ratio = 1.05;
    double memory_share = 0.80;
    double device_share = 0.60;
    double bytes_ratio = 1.15;
    double device_bytes_per_s = 0;   // by a probe; 0: there is no such warning
    double span_s = 10;              // of passes, over which bytes are summed up before they are judged
};

// What serving came to since the sample before.
struct MonitorSample {
    double busy_s = 0;         // in passes
    double stall_s = 0;        // of it, waiting for weights
    uint64_t bytes_read = 0;
    uint64_t must_read = 0;    // what the passes could not spare
    bool must_is_known = true; // false while memory is filled, and with experts
    double memory_share = 0;   // of the machine's beside our budget, in use now; 0: not known
};

struct MonitorState {
    std::array<bool, kWarnings> warned{};
    std::array<uint64_t, kWarnings> raised{};  // how often so far
    uint64_t scored_tokens = 0;
    double baseline_perplexity = 0;  // 0: not known yet
    double recent_perplexity = 0;    // of the last windows; 0: not known yet
    double device_share = 0;         // of the last span that reads bound; 0: there was none
    double bytes_ratio = 0;          // of the last span; 0: not known
    double memory_share = 0;
};

struct WarningChange {
    Warning warning;
    bool raised;
    std::string text;  // one line: what was seen, what the bound is
};

class Monitor {
  public:
    explicit Monitor(const MonitorOptions& options) : options_(options) { state_.baseline_perplexity = options.baseline_perplexity; }

    // A token of a prompt that a pass has foretold, by -ln of its probability.
    void score(double nll);
    void sample(const MonitorSample& sample);
    // Warnings raised and taken back since the last call.
    std::vector<WarningChange> take_changes();
    const MonitorState& state() const { return state_; }

  private:
    void judge(Warning warning, bool bad, std::string text);

    const MonitorOptions options_;
    MonitorState state_;
    double window_nll_ = 0;
    size_t window_tokens_ = 0;
    std::vector<double> windows_;  // mean nll of the last ones, oldest first
    MonitorSample span_;
    std::vector<WarningChange> changes_;
};

}  // namespace weir::sched
