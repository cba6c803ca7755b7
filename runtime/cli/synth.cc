#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "runtime/cli/commands.h"
#include "runtime/cli/format.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/size_arg.h"
#include "runtime/cli/terminal.h"
#include "runtime/error.h"
#include "runtime/model/architecture.h"
#include "runtime/model/printable.h"
#include "runtime/model/synth.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    SynthOptions synth;
    std::string output;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string rate(uint64_t bytes, double seconds) {
    return format_fixed(static_cast<double>(bytes) / 1e6 / (seconds > 0 ? seconds : 1), 0) + " MB/s";
}

int synth(const Options& options) {
    if (options.output == "-") throw UsageError("-o -: a model is written to a file, not to stdout");
    const Clock::time_point start = Clock::now();
    const StopSignals signals;
    uint64_t bytes = 0;
    std::string written;
    try {
        ProgressLine progress;
        written = write_synth(options.synth, options.output, [&](uint64_t done, uint64_t total) {
            bytes = total;
            if (progress.due()) {
                const double share = 100 * static_cast<double>(done) / static_cast<double>(total);
                progress.show(format_fixed(share, 0) + " % of " + format_bytes(total) + ", " + rate(done, seconds_since(start)));
            }
            return signals.asked() == 0;
        });
    } catch (const Error& error) {
        if (signals.asked() == 0) throw;
        complain(error.what());
        return 128 + signals.asked();
    }
    const double seconds = seconds_since(start);
    std::fprintf(stderr, "%s: %s (%s bytes) in %s s, %s\n", printable(written, SIZE_MAX).c_str(),
                 format_bytes(bytes).c_str(), std::to_string(bytes).c_str(), format_fixed(seconds, 1).c_str(),
                 rate(bytes, seconds).c_str());
    return 0;
}

}  // namespace

Command add_synth(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("synth", "write a synthetic model (random weights) for measurements and tests");
    SynthOptions& synth_options = options->synth;
    command->add_option("--shape", synth_options.shape, "dimensions: " + synth_shapes())->required();
    command
        ->add_option("--type", synth_options.type,
                     "type of the matrices: " + synth_types() +
                         " (q4_k_m: Q4_K, and Q6_K for the head and half of attn_v and ffn_down)")
        ->required();
    command->add_option("--arch", synth_options.architecture, "architecture: " + architecture_names())
        ->capture_default_str();
    command->add_option("--layers", synth_options.n_layers, "layers (default: the shape's)")
        ->check(whole_number(1, UINT32_MAX));
    command->add_option("--vocab", synth_options.n_vocab, "tokens (default: the shape's)")
        ->check(whole_number(1, UINT32_MAX));
    command->add_flag("--tied", synth_options.tied, "no head of its own: the embedding is the head, as Gemma's always is");
    command->add_option("--seed", synth_options.seed, "equal options give equal files")
        ->check(whole_number(0, UINT64_MAX))
        ->capture_default_str();
    command->add_option_function<std::string>("--split-max-size", [&synth_options](const std::string& text) {
        synth_options.split_bytes = parse_size(text, "--split-max-size").of(0);
        if (synth_options.split_bytes == 0) throw CLI::ValidationError("--split-max-size", text + " is no size; write 2G");
    }, "several files, named FILE-00001-of-00003.gguf and so on, of about so much each")->type_name("SIZE");
    command->add_option("-o,--output", options->output, "the GGUF file to write")->required()->type_name("FILE");
    return [options] { return synth(*options); };
}

}  // namespace weir
