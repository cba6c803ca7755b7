// The subcommands of `weir`. Each adds its own options to the program and returns what runs when it was
// named: the exit status, or an exception that main turns into one line and a status.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace weir {

using Command = std::function<int()>;

Command add_bench(CLI::App& app);
Command add_calibrate(CLI::App& app);
Command add_convert(CLI::App& app);
Command add_chat(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_perplexity(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_run(CLI::App& app);
Command add_serve(CLI::App& app);
Command add_synth(CLI::App& app);
Command add_verify(CLI::App& app);

}  // namespace weir
