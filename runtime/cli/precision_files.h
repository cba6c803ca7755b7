// What `--precision auto` reads and writes: the table that `weir calibrate` made, the memory of prompts, the trace.
//
// For the main thread. Throws Error or UsageError with one line.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cli/loaded_model.h"
#include "runtime/engine/auto_precision.h"

namespace weir {

// Few enough that a switch means something, enough to follow a signal.
constexpr size_t kRungs = 8;
// The plans that it moves along, finest first: from the table that options name, or the one beside the file.
std::vector<sched::RatedPlan> chosen_ladder(const RunOptions& options, const ModelFile& model, size_t rungs = kRungs);

// Made ready by the table and the memory; nullptr where the options name another precision.
std::unique_ptr<AutoPrecision> chosen_auto_precision(const RunOptions& options, const ModelFile& model);

// Where the options name a file for it, and something was remembered since.
void save_plan_memory(const RunOptions& options, AutoPrecision* precision);

// The rung of each token with what it was chosen by, where the options name a file.
class PrecisionTrace {
  public:
    // precision: nullptr where it is fixed; there is no trace then.
    PrecisionTrace(const RunOptions& options, const AutoPrecision* precision);
    void add(const TokenSignal& signal, size_t rung);
    // Throws Error where not all of it could be written.
    void finish();

  private:
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    const std::string path_;
    std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace weir
