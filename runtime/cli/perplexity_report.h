// What `weir perplexity` has found, for people and for machines.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/run_options.h"
#include "runtime/engine/budget.h"
#include "runtime/engine/score.h"
#include "runtime/engine/weight_store.h"

namespace weir {

struct PerplexityReport {
    const RunOptions* options = nullptr;  // -f is the text
    std::string reference;                // "": none
    size_t tokens = 0;                    // of the whole text
    size_t window = 0;
    size_t batch = 0;
    size_t threads = 0;
    std::string kernels;
    Budget budget;
    StoreStats store;
    double seconds = 0;
    std::vector<WindowScore> windows;
};

std::string perplexity_text(const PerplexityReport& report);
std::string perplexity_json(const PerplexityReport& report);

}  // namespace weir
