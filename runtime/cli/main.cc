// The `weir` program: picks the subcommand and turns what goes wrong into one line and an exit status. 0:
// done. 1: it failed. 2: it was asked wrongly.
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "pager/system.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/terminal.h"
#include "runtime/error.h"

namespace {

using weir::Command;

struct Entry {
    CLI::App* app;
    Command command;
};

constexpr Command (*kCommands[])(CLI::App&) = {
    weir::add_run,
    weir::add_chat,
#ifdef WEIR_SERVICE
    weir::add_serve,
#endif
    weir::add_plan,
    weir::add_doctor,
    weir::add_inspect,
    weir::add_convert,
    weir::add_verify,
    weir::add_calibrate,
    weir::add_bench,
    weir::add_perplexity,
    weir::add_synth,
};

void check_environment() {
    const char* const page = std::getenv("WEIR_PAGE_SIZE");
    if (weir::pager::page_size_wanted(page, weir::pager::kernel_page_size()) == 0)
        throw weir::UsageError("WEIR_PAGE_SIZE=" + std::string(page) + ": no power of two from the kernel's page to 64K");
}

int run(int argc, char** argv) {
    check_environment();
    CLI::App app("Runs language models that are larger than the memory they are given.", "weir");
    app.set_version_flag("--version", "weir " WEIR_VERSION);
    std::vector<Entry> entries;
    for (const auto add : kCommands) {
        Command command = add(app);
        entries.push_back({app.get_subcommands([](CLI::App*) { return true; }).back(), std::move(command)});
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& success) {  // --help, --version
        std::ostringstream out;
        app.exit(success, out, out);
        weir::write_stdout(out.str());
        return 0;
    } catch (const CLI::ParseError& error) {
        throw weir::UsageError(std::string(error.what()) + " (--help says more)");
    }
    for (const Entry& entry : entries) {
        if (entry.app->parsed()) return entry.command();
    }
    std::fputs(app.help().c_str(), stderr);
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        weir::prepare_process();
        return run(argc, argv);
    } catch (const weir::OutputClosed&) {
        return 1;
    } catch (const weir::UsageError& error) {
        weir::complain(error.what());
        return 2;
    } catch (const std::bad_alloc&) {
        weir::complain("out of memory; give a smaller context (-c) or batch (-b)");
        return 1;
    } catch (const std::exception& error) {
        weir::complain(error.what());
        return 1;
    }
}
