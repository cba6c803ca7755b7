// `weir bench`: what it can measure.
#include <CLI/CLI.hpp>

#include "runtime/cli/bench_paging.h"
#include "runtime/cli/bench_speed.h"
#include "runtime/cli/commands.h"

namespace weir {

Command add_bench(CLI::App& app) {
    CLI::App* const bench = app.add_subcommand("bench", "measure on this machine");
    bench->require_subcommand(1);
    const Command paging = add_bench_paging(*bench);
    const Command speed = add_bench_speed(*bench);
    return [=] { return bench->got_subcommand("paging") ? paging() : speed(); };
}

}  // namespace weir
