// A program run to its end, its output caught. For the main thread, while StopSignals watch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cli/terminal.h"

namespace weir {

struct ChildEnd {
    int status = 0;       // exit status, or 128 + the signal that ended it
    bool stopped = false;    // we were asked to stop, and ended it
    bool timed_out = false;  // it took longer than it may, and we ended it
    std::string out;
    std::string err;

    // The last line of err that says something; "" where there is none.
    std::string last_words() const;
};

// Starts command[0] with a session of its own, nothing on standard input and signals as they are by default. Throws Error
// where it cannot be started.
ChildEnd run_child(const std::vector<std::string>& command, const StopSignals& signals, int timeout_s);

}  // namespace weir
