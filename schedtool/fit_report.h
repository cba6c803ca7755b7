// What `weir-sched fit` has found, for people and for machines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedtool/fit.h"

namespace weir::sched {

struct FitReport {
    struct Text {
        size_t tokens = 0, windows = 0;
        std::vector<Cost> plans;  // each alone
    };
    // What is worth how much on a text.
    struct Rules {
        Worth entropy, token;
        Bounds bounds;  // at the bytes of the rule by entropy
    };
    struct Row {
        double wanted = 0;  // bytes; 0: the thresholds that a run has, and plans by token for the bytes that come of it
        Tuning tuning;
        Rules fitted, held_out;
    };
    Text fitted, held_out;
    std::string held_out_name;  // empty: there is none, and figures are of the text that was fitted to
    std::vector<Row> rows;
};

// held_out: nullptr, or a trace of the same plans (std::runtime_error where it is not, which begins with its name).
// bytes: that a token may read on average; 0: those of each plan but the first and the last.
FitReport fit_report(const TokenTrace& trace, const TokenTrace* held_out, uint64_t bytes,
                     const std::string& held_out_name);

std::string fit_text(const FitReport& report);
std::string fit_json(const FitReport& report);

}  // namespace weir::sched
