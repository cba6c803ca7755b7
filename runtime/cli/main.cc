// The `weir` program: chooses the subcommand and turns what it throws into one line and an exit status.
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/error.h"

namespace {

int fail(const char* text, int status) {
    std::fflush(stdout);
    std::fprintf(stderr, "weir: %s\n", text);
    return status;
}

int run(int argc, char** argv) {
    CLI::App app{"Runs language models that are larger than the memory they are given."};
    app.set_version_flag("--version", WEIR_VERSION);
    app.require_subcommand(0, 1);

    std::vector<std::pair<CLI::App*, weir::Command>> commands;
    for (const auto add : {weir::add_run, weir::add_synth}) {
        weir::Command command = add(app);
        commands.emplace_back(app.get_subcommands(nullptr).back(), std::move(command));
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& e) {  // --help, --version
        return app.exit(e);
    } catch (const CLI::ParseError& e) {
        return fail((std::string(e.what()) + " (--help shows the options)").c_str(), 2);
    }
    for (const auto& [parser, command] : commands)
        if (parser->parsed()) return command();
    std::fputs(app.help().c_str(), stderr);
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    ::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, which every writer checks
    try {
        return run(argc, argv);
    } catch (const weir::UsageError& e) {
        return fail(e.what(), 2);
    } catch (const std::bad_alloc&) {
        return fail("out of memory; give a smaller context (-c) or batch (-b)", 1);
    } catch (const std::exception& e) {
        return fail(e.what(), 1);
    }
}
