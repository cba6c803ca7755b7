// `weir doctor`: what this machine gives to a run, each thing tried for real, and what to do about what it does not.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>

#include "runtime/cli/commands.h"
#include "runtime/cli/doctor_report.h"
#include "runtime/cli/terminal.h"

namespace weir {
namespace {

struct Options {
    std::string file;
    bool json = false;
};

// A line on the terminal that is written over until it is wiped.
class Progress {
  public:
    ~Progress() { show(""); }
    void show(const std::string& text) {
        if (stderr_is_terminal()) std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
    }
};

void append(Findings* all, Findings more) {
    std::move(more.begin(), more.end(), std::back_inserter(*all));
}

int doctor(const Options& options) {
    Findings findings;
    {
        Progress progress;
        append(&findings, examine_kernel("/"));
        append(&findings, examine_rungs());
        append(&findings, examine_memory("/"));
        append(&findings, examine_processor("/", std::getenv("WEIR_KERNELS")));
        if (!options.file.empty())
            append(&findings, examine_file(options.file, [&](const std::string& text) { progress.show(text); }));
    }
    write_stdout(options.json ? doctor_json(findings) : doctor_text(findings));
    const bool missing = std::any_of(findings.begin(), findings.end(),
                                     [](const Finding& f) { return f.needed && f.verdict == Verdict::kNotAvailable; });
    return missing ? 1 : 0;
}

}  // namespace

Command add_doctor(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand("doctor", "what this machine gives to a run, and what to do about the rest");
    command->add_option("file", options->file, "a model, or any file where models lie: its file system and device are tried")
        ->type_name("FILE");
    command->add_flag("--json", options->json, "one JSON object instead of text");
    return [options] { return doctor(*options); };
}

}  // namespace weir
