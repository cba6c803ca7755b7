// `weir perplexity --trace-tokens`: every plan that `--precision auto` moves along, on every scored token, for
// `weir-sched fit`; and what `auto` itself is worth beside them.
//
// For the main thread. Throws Error with one line, or what a pass throws.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/ladder_probe.h"

namespace weir {

struct LadderTrace {
    std::string fingerprint;  // of the model
    std::span<const sched::RatedPlan> plans;
    std::vector<std::vector<double>> kl;    // [plan][window] means, nats
    std::vector<sched::WindowSums> follow;  // by window: --precision auto itself; none where it was not asked for
};

// Writes the file whole, or not at all; an empty path: no file. ids: n_windows windows. precision: nullptr, or what moves along
// these plans. go_on is asked before each window with its number; false where it said no.
bool trace_ladder(const std::string& path, LadderProbe& probe, std::span<const TokenId> ids, size_t window,
                  AutoPrecision* precision, const std::function<bool(size_t window)>& go_on, LadderTrace* trace);

std::string ladder_text(const LadderTrace& trace);
std::string ladder_json(const LadderTrace& trace, const std::string& model, const std::string& reference);

}  // namespace weir
