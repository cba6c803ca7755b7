#include "schedtool/monitor.h"

#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

namespace weir::sched {
namespace {

// Reads bound where the team waits for this share of a pass.
constexpr double kReadsBound = 0.2;

template <typename... Numbers>
std::string line(const char* format, Numbers... numbers) {
    char text[160];
    std::snprintf(text, sizeof text, format, numbers...);
    return text;
}

}  // namespace

void Monitor::score(double nll) {
    ++state_.scored_tokens;
    window_nll_ += nll;
    if (++window_tokens_ < options_.window) return;
    if (windows_.size() == options_.recent_windows) windows_.erase(windows_.begin());
    windows_.push_back(std::exchange(window_nll_, 0) / static_cast<double>(std::exchange(window_tokens_, 0)));
    if (windows_.size() < options_.recent_windows) return;
    state_.recent_perplexity = std::exp(std::accumulate(windows_.begin(), windows_.end(), 0.0) / static_cast<double>(windows_.size()));
    if (state_.baseline_perplexity == 0) state_.baseline_perplexity = state_.recent_perplexity;
    judge(Warning::kPerplexity, state_.recent_perplexity > options_.perplexity_ratio * state_.baseline_perplexity,
          line("perplexity of prompts is %.2f, %.2f times its baseline (%.2f is wanted at most): recalibration is wanted",
               state_.recent_perplexity, state_.recent_perplexity / state_.baseline_perplexity, options_.perplexity_ratio));
}

void Monitor::sample(const MonitorSample& sample) {
    state_.memory_share = sample.memory_share;
    judge(Warning::kMemory, sample.memory_share > options_.memory_share,
          line("%.0f %% of the machine's memory beside our budget is in use (%.0f %% at most are wanted)",
               100 * sample.memory_share, 100 * options_.memory_share));
    span_.busy_s += sample.busy_s;
    span_.stall_s += sample.stall_s;
    span_.bytes_read += sample.bytes_read;
    span_.must_read += sample.must_read;
    span_.must_is_known &= sample.must_is_known;
    if (span_.busy_s < options_.span_s) return;
    const MonitorSample span = std::exchange(span_, {});
    const auto read = static_cast<double>(span.bytes_read);
    if (options_.device_bytes_per_s > 0) {
        // A span that reads do not bound says nothing of the device, and takes nothing back that another said.
        if (span.stall_s > kReadsBound * span.busy_s) {
            state_.device_share = read / span.busy_s / options_.device_bytes_per_s;
            judge(Warning::kDevice, state_.device_share < options_.device_share,
                  line("storage gives %.2f GB/s while reads bound, %.0f %% of its probe (%.0f %% at least are wanted)",
                       read / span.busy_s / 1e9, 100 * state_.device_share, 100 * options_.device_share));
        }
    }
    if (span.must_read > 0 && span.must_is_known) {
        state_.bytes_ratio = read / static_cast<double>(span.must_read);
        judge(Warning::kBytesPerToken, state_.bytes_ratio > options_.bytes_ratio,
              line("a pass reads %.2f times what it must (%.2f at most is wanted)", state_.bytes_ratio, options_.bytes_ratio));
    }
}

std::vector<WarningChange> Monitor::take_changes() { return std::exchange(changes_, {}); }

void Monitor::judge(Warning warning, bool bad, std::string text) {
    const auto index = static_cast<size_t>(warning);
    if (state_.warned[index] == bad) return;
    state_.warned[index] = bad;
    if (bad) ++state_.raised[index];
    changes_.push_back({warning, bad, std::move(text)});
}

}  // namespace weir::sched
