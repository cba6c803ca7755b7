// What each plan of a ladder made of each token of a text, as `weir perplexity --trace-tokens` records it: the
// signals that a scheduler would have seen, and the divergence that it would have paid. A file of JSON lines: the
// first says which plans, the others are a token each, in order.
//
// Plain data and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedtool/scheduler.h"
#include "schedtool/sensitivity.h"

namespace weir::sched {

// Of the distribution that a token's pass ended with.
struct TokenAtPlan {
    Signal signal;
    double kl = 0;  // nats, from the reference's
};

struct TokenTrace {
    std::string model;                // its fingerprint
    std::vector<RatedPlan> plans;     // finest first
    std::vector<size_t> windows;      // by token: the window that it is of, from 0, ascending
    std::vector<int32_t> inputs;      // by token: the id that was read, whose pass it is
    std::vector<TokenAtPlan> tokens;  // [token][plan]

    size_t n_tokens() const { return windows.size(); }
    std::span<const TokenAtPlan> at(size_t token) const {
        return std::span(tokens).subspan(token * plans.size(), plans.size());
    }
};

// Lines, each with its end.
std::string trace_header(const std::string& model, std::span<const RatedPlan> plans);
std::string trace_line(size_t window, int32_t input, std::span<const TokenAtPlan> plans);
// Throws std::runtime_error, one line that begins with `name`, for a text that is no such trace, or one without a
// token.
TokenTrace read_trace(const std::string& text, const std::string& name);

}  // namespace weir::sched
