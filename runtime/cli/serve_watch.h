// What `weir serve` watches quality and bytes by, and what it does about a warning: a line in the log, and for prompts that are
// foretold worse than they were, a command of the owner's.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/service/scheduler.h"

namespace weir {

struct ServeWatchOptions {
    double baseline_perplexity = 0;  // 0: of the first prompts
    std::string recalibrate;         // for the shell; empty: none
};

// streams_from: the file that weights stream from, whose storage is probed for a quarter of a second, in memory that is given
// back; empty: none. Throws std::runtime_error where the file cannot be read.
WatchHook watch_hook(const ServeWatchOptions& options, uint64_t ram_budget, const std::string& streams_from);

}  // namespace weir
