// `weir perplexity`: how well a model foretells a text, and how far its distributions are from those of another.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/cli/commands.h"
#include "runtime/cli/format.h"
#include "runtime/cli/ladder_trace.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/perplexity_report.h"
#include "runtime/cli/precision_files.h"
#include "runtime/cli/terminal.h"
#include "runtime/error.h"
#include "runtime/model/native_format.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

// As llama.cpp's tool has it, so that figures compare.
constexpr size_t kUsualWindow = 512;
// Of one pass's logits, for each model. A vocabulary of 128k tokens gets 64 rows, so that a window of 512 is five walks over
// the weights; a small one is scored in a single pass.
constexpr size_t kLogitBytes = 32u << 20;

// Of a trace: each is a pass over every window.
constexpr size_t kMostTracePlans = 64;

struct Options {
    RunOptions run;
    std::string reference;
    std::string trace_tokens;  // file to record every plan of --precision auto in, token by token
    std::optional<size_t> trace_plans;
    size_t windows = 0;  // 0: all
};

std::vector<TokenId> ids_of(const ModelFile& model, const std::string& text, size_t window) {
    std::vector<TokenId> ids = model.tokenizer->encode(text, true, false);
    if (ids.size() < window)
        throw Error("the text has " + std::to_string(ids.size()) + " tokens and a window takes " + std::to_string(window) +
                    "; give a longer text or a smaller window (-c)");
    return ids;
}

// Nothing but the weights may differ where distributions are compared.
void check_pair(const ModelFile& model, const ModelFile& reference, const std::string& text, const std::vector<TokenId>& ids) {
    const std::string both = model.file.path() + " and " + reference.file.path();
    if (model.config.n_vocab != reference.config.n_vocab)
        throw Error("--kl: " + both + " have vocabularies of " + std::to_string(model.config.n_vocab) + " and " +
                    std::to_string(reference.config.n_vocab) + " tokens: their distributions cannot be compared");
    if (model.tokenizer->adds_bos() != reference.tokenizer->adds_bos() || model.tokenizer->bos() != reference.tokenizer->bos() ||
        reference.tokenizer->encode(text, true, false) != ids)
        throw Error("--kl: " + both + " cut the text into other tokens: their distributions cannot be compared");
}

int perplexity(const Options& options) {
    const RunOptions& o = options.run;
    const bool follows = o.precision == kAutoPrecision, traces = follows || !options.trace_tokens.empty();
    if (traces && options.reference.empty()) throw UsageError("--trace-tokens and --precision auto measure distances: they take --kl REF_MODEL");
    if (traces && ((o.precision && !follows) || !o.precision_plan.empty()))
        throw UsageError("--trace-tokens goes through the plans of --precision auto: no other --precision and no --precision-plan beside it");
    if (!traces && !o.sensitivity.empty()) throw UsageError("--sensitivity belongs to --trace-tokens and --precision auto");
    if (!follows && !o.token_plans.empty()) throw UsageError("--token-plans belongs to --precision auto");
    if (options.trace_plans && (follows || !traces)) throw UsageError("--trace-plans belongs to --trace-tokens, and --precision auto has its own");
    const kernels::KernelSet& kernels = chosen_kernels();
    const ModelFile model(o.model, o.pre_tokenizer);
    std::optional<ModelFile> reference;
    if (!options.reference.empty()) reference.emplace(options.reference, o.pre_tokenizer);

    PerplexityReport report;
    report.options = &o;
    report.reference = options.reference;
    report.window = o.context;
    report.threads = o.threads != 0 ? o.threads : default_thread_count();
    report.batch = std::min(o.batch, o.context);
    report.kernels = kernels.name;
    std::vector<TokenId> ids;
    {
        const std::string text = read_text(o.prompt_file, "the text");
        ids = ids_of(model, text, o.context);
        if (reference) check_pair(model, *reference, text, ids);
    }
    report.tokens = ids.size();
    const size_t n_windows = options.windows == 0 ? ids.size() / o.context : std::min(options.windows, ids.size() / o.context);
    if (model.tokenizer->adds_bos() && model.tokenizer->bos())
        for (size_t i = 0; i < n_windows; ++i) ids[i * o.context] = *model.tokenizer->bos();
    // Room for all results now, so that the budget counts it with what is there already.
    report.windows.assign(n_windows, WindowScore(o.context, reference.has_value()));

    const size_t rows = std::clamp<size_t>(kLogitBytes / sizeof(float) / model.config.n_vocab, 1, std::min(report.batch, scored_per_window(o.context)));
    const BufferShape shape = {report.batch, rows, o.context, report.threads};
    std::vector<ModelShare> shares = {{&model, shape}};
    std::unique_ptr<AutoPrecision> precision;
    std::vector<sched::RatedPlan> ladder;
    if (traces) {
        precision = chosen_auto_precision(o, model);
        ladder = follows ? precision->ladder() : chosen_ladder(o, model, options.trace_plans.value_or(kRungs));
        for (const sched::RatedPlan& rated : ladder) shares[0].plans.push_back(rated.plan);
        shares[0].beside_bytes = LadderProbe::bytes(o.context, model.config.n_vocab, ladder.size());
    } else {
        shares[0].plans = chosen_plans(o, model.file, model.config);
    }
    if (reference) shares.push_back({&*reference, shape});
    std::string fallback;
    const StoreOptions paging = chosen_paging(o, &fallback);
    report.budget = choose_budget(o, paging.mode, shares);
    LoadedModel loaded(shares[0], paging, o.kv_type, kernels, chosen_activations(o));
    std::unique_ptr<LoadedModel> truth;
    std::optional<Reader> truth_reader;
    if (reference) {
        truth = std::make_unique<LoadedModel>(shares[1], paging, o.kv_type, kernels, ActivationForms::all(kernels::Activation::kF32));
        truth_reader = {&truth->forward, &truth->cache};
    }

    const StopSignals signals;
    const auto begin = Clock::now();
    const auto left = [&](size_t done) {
        const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
        return format_fixed(spent / static_cast<double>(done) * static_cast<double>(n_windows - done), 0) + " s left";
    };
    LadderTrace trace;
    if (traces) {
        trace.fingerprint = native_fingerprint(*model.file.native());
        trace.plans = ladder;
        LadderProbe probe({&loaded.forward, &loaded.cache}, *loaded.store, ladder, *truth_reader, loaded.team, o.context,
                          model.config.n_vocab, rows);
        ProgressLine progress;
        trace_ladder(options.trace_tokens, probe, std::span<const TokenId>(ids).first(n_windows * o.context), o.context, precision.get(), [&](size_t i) {
            if (i > 0 && progress.due()) progress.show("window " + std::to_string(i + 1) + " of " + std::to_string(n_windows) + ", " + left(i));
            return signals.asked() == 0;
        }, &trace);
    } else {
        ProgressLine progress;
        double sum = 0;
        for (size_t i = 0; i < n_windows; ++i) {
            const auto window = std::span<const TokenId>(ids).subspan(i * o.context, o.context);
            score_window(window, {&loaded.forward, &loaded.cache}, truth_reader, loaded.team, rows, i + 1 < n_windows, &report.windows[i]);
            sum += mean_surprise(report.windows[i]);
            if (progress.due()) {
                progress.show("window " + std::to_string(i + 1) + " of " + std::to_string(n_windows) + ", perplexity so far " +
                              format_fixed(std::exp(sum / static_cast<double>(i + 1)), 2) + ", " + left(i + 1));
            }
            if (signals.asked() != 0) break;
        }
    }
    if (signals.asked() != 0) {
        complain("stopped before the last window");
        return 128 + signals.asked();
    }
    if (traces) {
        write_stdout(o.json ? ladder_json(trace, o.model, options.reference) : ladder_text(trace));
        return 0;
    }
    report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    report.store = loaded.store->stats();
    write_stdout(o.json ? perplexity_json(report) : perplexity_text(report));
    return 0;
}

}  // namespace

Command add_perplexity(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    RunOptions& run = options->run;
    run.context = kUsualWindow;
    CLI::App* const command = app.add_subcommand("perplexity", "how well a model foretells a text, and its distance from another model");
    command->add_option("-f,--file", run.prompt_file, "the text, - for standard input")->required()->type_name("FILE");
    command->add_option("--kl", options->reference, "a model of the same vocabulary that reads along with float activations: KL divergence from it")
        ->type_name("REF_MODEL");
    command->add_option("--trace-tokens", options->trace_tokens,
                        "with --kl: each plan of --precision auto on each token, recorded for weir-sched fit")->type_name("FILE");
    command->add_option("--trace-plans", options->trace_plans, "of --trace-tokens: so many plans of the list, instead of those of auto")
        ->check(whole_number(2, kMostTracePlans));
    command->add_option("--sensitivity", run.sensitivity, "of --trace-tokens and --precision auto: the table (default: MODEL.sensitivity.json, by weir calibrate)")
        ->type_name("FILE");
    add_token_plans(*command, &run);
    command->add_option("-c,--ctx-size", run.context, "tokens of a window, of which the second half is scored")->capture_default_str()
        ->check(whole_number(kLeastWindow, 1u << 24));
    command->add_option("--windows,--chunks", options->windows, "of the text, from its start (default: all)")->check(whole_number(1, UINT32_MAX));
    command->add_option("-b,--batch-size", run.batch, "tokens computed together at most")->capture_default_str()->check(whole_number(1, 512));
    command->add_option("-t,--threads", run.threads, "threads (default: physical cores)")->check(whole_number(1, 256));
    command->add_option("--pre-tokenizer", run.pre_tokenizer, "override the file's pre-tokenizer")->type_name("NAME");
    add_engine_options(*command, &run);
    return [options] { return perplexity(*options); };
}

}  // namespace weir
