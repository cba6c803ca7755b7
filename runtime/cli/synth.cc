// `weir synth`: a synthetic model on disk.
#include <CLI/CLI.hpp>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>

#include "runtime/cli/commands.h"
#include "runtime/error.h"
#include "runtime/model/synth.h"

namespace weir {
namespace {

std::atomic<int> stop_signal{0};

int synth(const SynthOptions& options, const std::string& path) {
    if (path == "-") throw UsageError("-o -: a model is not written to standard output; name a file");
    struct sigaction action = {};
    action.sa_handler = [](int s) { stop_signal = s; };
    for (const int s : {SIGINT, SIGTERM}) ::sigaction(s, &action, nullptr);

    const bool terminal = ::isatty(STDERR_FILENO) != 0;
    const auto start = std::chrono::steady_clock::now();
    try {
        write_synth(options, path, [&](uint64_t done, uint64_t total) {
            if (terminal) {
                std::fprintf(stderr, "\rwriting %s: %llu of %llu MiB ", path.c_str(), static_cast<unsigned long long>(done >> 20),
                             static_cast<unsigned long long>(total >> 20));
            }
            return stop_signal == 0;
        });
    } catch (const Error&) {
        if (terminal) std::fputc('\n', stderr);
        if (stop_signal != 0) return 128 + stop_signal;
        throw;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double bytes = static_cast<double>(synth_file_bytes(options));
    std::fprintf(stderr, "%s%s: %.0f MiB in %.1f s (%.0f MB/s)\n", terminal ? "\r" : "", path.c_str(), bytes / (1 << 20), seconds,
                 bytes / 1e6 / seconds);
    return 0;
}

}  // namespace

Command add_synth(CLI::App& app) {
    auto options = std::make_shared<SynthOptions>();
    auto path = std::make_shared<std::string>();
    CLI::App* const parser = app.add_subcommand("synth", "write a synthetic model (random weights) for measurements and tests");
    parser->add_option("--shape", options->shape, "dimensions: " + synth_shapes())->required();
    parser->add_option("--type", options->type, "type of all matrices: " + synth_types())->required();
    parser->add_option("--layers", options->n_layers, "layers (default: the shape's)")->check(CLI::Range(size_t{1}, size_t{1000}));
    parser->add_option("--vocab", options->n_vocab, "tokens (default: the shape's)");
    parser->add_flag("--tied", options->tied, "no head of its own");
    parser->add_option("--seed", options->seed, "equal options give equal files")->capture_default_str();
    parser->add_option("-o,--output", *path, "the GGUF file to write")->required()->type_name("FILE");
    return [options, path] { return synth(*options, *path); };
}

}  // namespace weir
