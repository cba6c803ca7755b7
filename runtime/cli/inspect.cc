#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "runtime/cli/commands.h"
#include "runtime/cli/inspect_report.h"
#include "runtime/cli/terminal.h"
#include "runtime/model/gguf.h"

namespace weir {
namespace {

struct Options {
    std::string model;
    bool json = false;
};

int inspect(const Options& options) {
    const GgufFile file = GgufFile::open(options.model);
    if (file.native() != nullptr) {
        write_stdout(options.json ? inspect_native_json(file) : inspect_native_text(file));
        return 0;
    }
    const InspectReport report = make_report(file);
    write_stdout(options.json ? inspect_json(file, report) : inspect_text(file, report));
    return 0;
}

}  // namespace

Command add_inspect(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand("inspect", "show what is in a model file");
    command->add_option("model,-m,--model", options->model, "GGUF or native file")->required()->type_name("FILE");
    command->add_flag("--json", options->json, "one JSON object instead of text");
    return [options] { return inspect(*options); };
}

}  // namespace weir
