// `weir calibrate --tune`: scales of a native file by gradient descent against its source.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/cli/run_options.h"

namespace weir {

struct TuneCommand {
    RunOptions run;  // model, text, threads, tokens of a sample (context), budget
    std::string source;
    std::string output;  // empty: the model itself
    size_t samples = 2000;
    std::vector<int> levels = {3, 2};
    bool force = false;
};

// The exit status. Throws Error, UsageError.
int tune(const TuneCommand& command);

}  // namespace weir
