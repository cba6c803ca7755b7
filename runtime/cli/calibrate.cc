// `weir calibrate`: what each level of each layer's matrices costs a native file, on a text: the table that plans are made from.
#include <sys/stat.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>

#include "runtime/cli/commands.h"
#include "runtime/cli/format.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/run_report.h"
#include "runtime/cli/terminal.h"
#include "runtime/cli/tune.h"
#include "runtime/engine/score.h"
#include "runtime/engine/sensitivity.h"
#include "runtime/error.h"
#include "runtime/model/native_format.h"
#include "runtime/model/partial_file.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens of a window: a pass each, so that states of one pass are all there is to keep.
constexpr size_t kWindow = 256, kMostWindow = 512;
constexpr size_t kSample = 128;  // the same of --tune
constexpr size_t kWindows = 8;
// Of the logits of the scored positions. 128 positions of a vocabulary of 128k tokens.
constexpr uint64_t kLogitBytes = 64u << 20;

struct Options {
    RunOptions run;
    std::string output;
    size_t windows = kWindows;
    bool force = false;
    bool tunes = false;
    TuneCommand tune;
};

std::string text_hash(const std::vector<TokenId>& ids) {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016" PRIx64, native_checksum(std::as_bytes(std::span(ids))));
    return hex;
}

// The table that is there, where it is a part of what is wanted.
std::optional<sched::Sensitivity> found_table(const Options& o, const sched::Sensitivity& wanted) {
    struct stat there {};
    if (o.force || ::stat(o.output.c_str(), &there) != 0) return std::nullopt;
    const sched::Sensitivity table = sched::read_sensitivity(read_text(o.output, "the table"), o.output);
    if (table.model != wanted.model || table.text != wanted.text || table.activations != wanted.activations || table.window_tokens != wanted.window_tokens ||
        table.scored_tokens != wanted.scored_tokens || table.shards.size() != wanted.shards.size())
        throw UsageError(o.output +
                         ": is a table of another model, text, window or rounding of activations; name another, or give --force to replace it");
    return table;
}

void write_table(const std::string& path, const sched::Sensitivity& table) {
    const std::string text = sched::sensitivity_json(table);
    PartialFile file(path);
    file.write(0, std::as_bytes(std::span(text)));
    file.finish(text.size());
}

int calibrate(Options o) {
    if (o.run.context == 0) o.run.context = o.tunes ? kSample : kWindow;
    if (o.tunes) {
        o.tune.run = o.run;
        o.tune.output = o.output;
        o.tune.force = o.force;
        return tune(o.tune);
    }
    if (o.output.empty()) o.output = sensitivity_path(o.run.model);
    const ModelFile model(o.run.model, o.run.pre_tokenizer);
    if (model.file.native() == nullptr)
        throw UsageError(o.run.model +
                         ": is plain GGUF, which has one precision; weir convert makes a native file of it");
    std::vector<TokenId> ids;
    {
        const std::string text = read_text(o.run.prompt_file, "the text");
        ids = model.tokenizer->encode(text, true, false);
    }
    const size_t window = o.run.context, there = ids.size() / window;
    if (there < o.windows)
        throw Error("the text has " + std::to_string(ids.size()) + " tokens, " + std::to_string(there) +
                    " windows of " + std::to_string(window) + ", and " + std::to_string(o.windows) +
                    " were asked for (--windows)");
    const size_t scored =
        std::clamp<uint64_t>(kLogitBytes / sizeof(float) / model.config.n_vocab, 1, scored_per_window(window));

    ModelShare share = {&model, {window, scored, window, o.run.threads != 0 ? o.run.threads : default_thread_count()}};
    share.plans = plans_to_measure(model.config.n_layers);
    share.beside_bytes = SensitivityProbe::bytes(model.config, window, scored);
    sched::Sensitivity table = empty_table(
        build_model_map(model.file, model.config, model.file.native()->page, false, share.plans), model.config);
    table.model = native_fingerprint(*model.file.native());
    table.text = text_hash(ids);
    table.activations = activations_name(o.run);
    table.window_tokens = window;
    table.scored_tokens = scored;
    if (std::optional<sched::Sensitivity> found = found_table(o, table)) table = std::move(*found);
    if (table.windows >= o.windows) {
        std::fprintf(stderr, "weir: %s has %zu windows already\n", printable(o.output, SIZE_MAX).c_str(),
                     table.windows);
        return 0;
    }

    std::string fallback;
    const StoreOptions paging = chosen_paging(o.run, &fallback);
    choose_budget(o.run, paging.mode, {&share, 1});
    LoadedModel loaded(share, paging, o.run.kv_type, chosen_kernels(), chosen_activations(o.run));
    SensitivityProbe probe({&loaded.forward, &loaded.cache, loaded.store.get(), &loaded.team}, model.config, window,
                           scored);

    const StopSignals signals;
    const auto begin = Clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    const size_t first = table.windows, passes = SensitivityProbe::passes(table), all = (o.windows - first) * passes;
    // Windows from all over the text, in an order that does not depend on how many are wanted: steps of the golden section.
    size_t step = std::max<size_t>(1, static_cast<size_t>(0.618 * static_cast<double>(there)));
    while (std::gcd(step, there) != 1) ++step;
    ProgressLine progress;
    for (size_t w = first; w < o.windows; ++w) {
        const std::span<TokenId> tokens = std::span(ids).subspan(w * step % there * window, window);
        if (model.tokenizer->adds_bos() && model.tokenizer->bos()) tokens[0] = *model.tokenizer->bos();
        const bool done = probe.measure(tokens, &table, [&](size_t pass) {
            const size_t so_far = (w - first) * passes + pass;
            if (so_far > 0 && progress.due()) {
                const double left = seconds() / static_cast<double>(so_far) * static_cast<double>(all - so_far);
                progress.show("window " + std::to_string(w + 1) + " of " + std::to_string(o.windows) + ", pass " +
                              std::to_string(pass + 1) + " of " + std::to_string(passes) + ", " +
                              format_fixed(left, 0) + " s left");
            }
            return signals.asked() == 0;
        });
        if (!done) {
            complain(table.windows == 0 ? "stopped in the first window: nothing is kept"
                                        : "stopped; " + std::to_string(table.windows) + " of " + std::to_string(o.windows) +
                                              " windows are in " + o.output + ", the same command goes on from there");
            return 128 + signals.asked();
        }
        write_table(o.output, table);
    }
    std::fprintf(stderr, "weir: %s: %zu windows of %zu tokens, %zu passes in %.1f s\n",
                 printable(o.output, SIZE_MAX).c_str(), table.windows, window, all, seconds());
    return 0;
}

}  // namespace

Command add_calibrate(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    RunOptions& run = options->run;
    // What a level changes is small beside what rounding in 8 bits does, anew wherever anything changes: with it each shard seems
    // to cost 0.001 nats more on Gemma 3 270M, and a plan is chosen by noise. 16 bits take as long, and f32's table comes of it.
    run.activations = kernels::Activation::kWhole;
    CLI::App* const command = app.add_subcommand(
        "calibrate", "measure what each level of each layer's matrices costs, for plans of precision");
    command->add_option("-f,--file", run.prompt_file, "the calibration text, - for standard input")
        ->required()
        ->type_name("FILE");
    command
        ->add_option("-o,--output", options->output,
                     "the table (default: MODEL.sensitivity.json), one that is there is gone on with; of --tune the tuned file")
        ->type_name("FILE");
    command->add_flag("--force", options->force, "begin anew");
    CLI::Option* const tunes = command->add_flag(
        "--tune", options->tunes, "tune the scales of levels 3 and 2 against --source, and put the tuned file in the model's place (or at -o)");
    CLI::Option* const source = command->add_option("--source", options->tune.source, "of --tune: the GGUF file that the model was made from");
    source->type_name("FILE")->needs(tunes);
    tunes->needs(source);
    command->add_option("--samples", options->tune.samples, "of --tune: windows of the text, from all over it")
        ->capture_default_str()
        ->check(whole_number(1, 1u << 20))
        ->needs(tunes);
    command->add_option("--levels", options->tune.levels, "of --tune: 3, 2 or both")
        ->delimiter(',')
        ->capture_default_str()
        ->check(CLI::IsMember({2, 3}))
        ->needs(tunes);
    command->add_option("--windows", options->windows, "of the text, from all over it")
        ->capture_default_str()
        ->check(whole_number(1, 1u << 20))
        ->excludes(tunes);
    command
        ->add_option("-c,--ctx-size", run.context,
                     "tokens of a window, of which the last are compared, half of it at most (default: 256; 128 with --tune)")
        ->check(whole_number(kLeastWindow, kMostWindow));
    command->add_option("-t,--threads", run.threads, "threads (default: physical cores)")->check(whole_number(1, 256));
    command->add_option("--pre-tokenizer", run.pre_tokenizer, "override the file's pre-tokenizer")->type_name("NAME");
    add_engine_options(*command, &run);
    return [options] { return calibrate(*options); };
}

}  // namespace weir
