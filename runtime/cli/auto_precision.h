// `--precision auto`: the plan of each token by the scheduler of schedtool/, from the table that `weir calibrate` made.
//
// The prompt is computed at the finest plan, at 8 bits: its reads are shared by all its tokens. The first token after it begins
// where the last prompt of its kind ended, or in the middle.
//
// For the main thread. Throws Error or UsageError with one line.
#pragma once

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cli/loaded_model.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/weight_store.h"
#include "schedtool/plan_memory.h"
#include "schedtool/scheduler.h"

namespace weir {

struct AutoReport {
    struct Rung {
        uint64_t bytes;  // that a token reads
        double predicted_kl;
        uint64_t tokens;  // computed at it, the prompt's left out
    };
    std::vector<Rung> rungs;  // finest first
    uint64_t switches = 0;
    bool remembered = false;  // the first rung was a prompt's of its kind
    double mean_bytes() const;
};

// Few enough that a switch means something, enough to follow a signal.
constexpr size_t kRungs = 8;
// The plans that it moves along, finest first: from the table that options name, or the one beside the file.
std::vector<sched::RatedPlan> chosen_ladder(const RunOptions& options, const ModelFile& model, size_t rungs = kRungs);

class AutoPrecision {
  public:
    // Reads the table and the memory of prompts.
    AutoPrecision(const RunOptions& options, const ModelFile& model);

    std::vector<sched::Plan> plans() const;
    // Before the prompt is computed. `store` must outlive the calls below.
    void begin(std::span<const TokenId> prompt, WeightStore* store);
    // Before each pass that follows a token.
    void next(const TokenSignal& signal);
    // After the last token: the prompt's kind is remembered.
    void finish();

    const AutoReport& report() const { return report_; }

  private:
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };

    const std::string memory_path_, trace_path_;
    std::vector<sched::RatedPlan> ladder_;
    sched::PlanMemory memory_;
    std::unique_ptr<std::FILE, Close> trace_;
    uint64_t signature_ = 0;
    std::unique_ptr<sched::Scheduler> scheduler_;
    WeightStore* store_ = nullptr;
    AutoReport report_;
};

}  // namespace weir
