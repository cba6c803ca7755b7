// The program's subcommands. Each adds its options to the parser and gives what is to be called when it was chosen; the
// call returns the exit status, or throws UsageError (2) or Error (1).
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace weir {

using Command = std::function<int()>;

// The subcommand's parser is the last one added to `app` when these return.
Command add_run(CLI::App& app);
Command add_synth(CLI::App& app);

}  // namespace weir
