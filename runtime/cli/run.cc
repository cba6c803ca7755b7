// `weir run`: a prompt on one side, text on the other, and at the end what it took.
#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "runtime/cli/commands.h"
#include "runtime/cli/drafting.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/precision_files.h"
#include "runtime/cli/run_budget.h"
#include "runtime/cli/run_options.h"
#include "runtime/cli/run_report.h"
#include "runtime/cli/terminal.h"
#include "runtime/cli/watch_memory.h"
#include "runtime/engine/expert_trace.h"
#include "runtime/engine/generate.h"
#include "runtime/error.h"
#include "runtime/model/chat.h"
#include "runtime/model/text_stream.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> stop_wanted{false};
std::atomic<int> stop_signal{0};

// The first one asks the run to end after the token under way, the second ends the process at once.
void on_stop_signal(int signal) {
    if (stop_wanted.exchange(true)) ::_exit(128 + signal);
    stop_signal = signal;
}

void install_stop_signals() {
    struct sigaction action = {};
    action.sa_handler = on_stop_signal;
    for (const int s : {SIGINT, SIGTERM}) ::sigaction(s, &action, nullptr);
}

std::string wrap_prompt(const ModelFile& model, const RunOptions& o, const std::string& prompt) {
    Conversation conversation;
    if (o.system) conversation.messages.push_back({"system", *o.system});
    conversation.messages.push_back({"user", prompt});
    return find_chat_template(model.file, o.chat_template).render(conversation, chat_marks(*model.tokenizer));
}

void warn_of_context(const RunOptions& o, const ModelConfig& config) {
    if (o.context <= config.n_ctx_train || o.quiet) return;
    std::fprintf(stderr, "weir: warning: %s was trained on %zu tokens of context and -c asks for %zu: expect nonsense beyond\n",
                 o.model.c_str(), config.n_ctx_train, o.context);
}

// Beside each plan the one that is left of it where refinement comes too late, so that what it reads lies apart.
void add_base_plans(const RunOptions& o, const ModelFile& model, const std::string& fallback, std::vector<sched::Plan>* plans) {
    if (model.file.native() == nullptr)
        throw UsageError("--deadline-ms: " + o.model + " is plain GGUF and has nothing to leave out; weir convert makes a native file of it");
    if (model.config.n_experts != 0) throw UsageError("--deadline-ms: not for models with experts, whose planes are read together");
    if (!fallback.empty()) throw Error("--deadline-ms takes --paging uffd: " + fallback);
    bool any = false;
    for (size_t p = 0, n = plans->size(); p < n; ++p) {
        sched::Plan base = sched::capped_plan((*plans)[p], static_cast<int>(WeightStore::kBaseLevel));
        any |= base != (*plans)[p];
        if (std::find(plans->begin(), plans->end(), base) == plans->end()) plans->push_back(std::move(base));
    }
    if (!any) throw UsageError("--deadline-ms: the precision asked for has no matrix above 4 bits, and nothing to leave out");
}

struct ExpertTraces {
    std::unique_ptr<ExpertTraceWriter> to;
    std::unique_ptr<ExpertTraceReader> from;

    ExpertTraces(const RunOptions& o, const ModelConfig& config, const StoreStats& store, size_t batch) {
        if (o.trace_experts.empty() && o.replay_experts.empty()) return;
        if (config.n_experts == 0) throw UsageError("--trace-experts and --replay-experts want a model with experts, and this one has none");
        if (!o.replay_experts.empty()) from = std::make_unique<ExpertTraceReader>(o.replay_experts, config);
        if (!o.trace_experts.empty())
            to = std::make_unique<ExpertTraceWriter>(o.trace_experts, config, std::max<uint64_t>(1, store.expert_bytes), batch);
    }
};

int run(RunOptions o) {
    const auto start = Clock::now();
    set_exact_precision(&o);
    check_run_options(o);
    install_stop_signals();
    const kernels::KernelSet& kernels = chosen_kernels();
    const ModelFile opened(o.model, o.pre_tokenizer);
    const ModelConfig& config = opened.config;
    const Tokenizer& tokenizer = *opened.tokenizer;
    const std::string text = o.prompt ? *o.prompt : read_text(o.prompt_file, "the prompt");
    const std::vector<TokenId> prompt =
        o.chat ? encode_chat(tokenizer, wrap_prompt(opened, o, text)) : tokenizer.encode(text, true, true);

    const size_t threads = o.threads != 0 ? o.threads : default_thread_count();
    const size_t context = choose_context(o, config);
    warn_of_context(o, config);
    if (prompt.size() > context)
        throw Error("the prompt has " + std::to_string(prompt.size()) + " tokens and the context holds " + std::to_string(context) +
                    "; give a larger one (-c) or a shorter prompt");
    std::string fallback;
    const StoreOptions store_options = chosen_paging(o, &fallback);
    const std::unique_ptr<AutoPrecision> precision = chosen_auto_precision(o, opened);
    PrecisionTrace trace(o, precision.get());
    std::vector<sched::Plan> plans = precision != nullptr ? precision->plans() : chosen_plans(o, opened.file, opened.config);
    if (o.deadline_ms != 0) add_base_plans(o, opened, fallback, &plans);
    Drafting drafting(o, opened, threads, context, &plans);
    const size_t batch = std::max(std::clamp<size_t>(prompt.size(), 1, o.batch), drafting.pass_rows());
    ModelShare share = {&opened, {batch, drafting.pass_rows(), context, threads}};
    share.beside_bytes = drafting.beside_bytes();
    share.copied_bytes = drafting.copied_bytes();
    share.plans = std::move(plans);
    const Budget budget = choose_budget(o, store_options.mode, {&share, 1});
    LoadedModel loaded(share, store_options, o.kv_type, kernels, chosen_activations(o));
    WeightStore& store = *loaded.store;
    const ExpertTraces traces(o, config, store.stats(), batch);
    loaded.forward.trace_experts(traces.to.get(), traces.from.get());

    RunReport report;
    report.options = &o;
    report.config = &config;
    report.budget = budget;
    report.kernels = kernels.name;
    report.threads = threads;
    report.context = context;
    report.fallback = fallback;
    report.seed = o.seed ? *o.seed : std::random_device{}();
    report.load_s = std::chrono::duration<double>(Clock::now() - start).count();
    report.store = store.stats();
    const std::unique_ptr<PressureMonitor> monitor = watch_memory(o, budget, &store);
    report.pressure = o.pressure && monitor != nullptr;
    if (report.pressure) report.pressure_source = monitor->source().describe();
    if (!o.quiet) print_configuration(report);

    SamplerOptions sampler = o.sampler;
    sampler.seed = report.seed;
    Drafter* const drafter = drafting.start(&loaded, prompt, sampler);
    GenerateOptions generate_options;
    generate_options.sampler = sampler;
    generate_options.max_tokens = o.n_tokens < 0 ? SIZE_MAX : static_cast<size_t>(o.n_tokens);
    generate_options.ignore_end = o.ignore_end;
    generate_options.warmup_tokens = o.warmup_tokens;
    generate_options.adapt_threads = o.adapt_threads;
    bool output_ok = true;
    int output_error = 0;  // errno, as it was then
    std::string answer;
    GenerateHooks hooks;
    hooks.stop = &stop_wanted;
    TextStream stream(tokenizer);
    const auto say = [&](const std::string& piece) {
        answer += piece;
        if (!o.json) output_ok = std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size() && std::fflush(stdout) == 0;
        if (!output_ok) output_error = errno;
        return output_ok;
    };
    hooks.on_token = [&](TokenId id) { return say(stream.add(id)); };
    const bool shows_progress = store_options.progress;
    bool progress_shown = false;
    hooks.on_prompt = [&](size_t done, size_t total) {
        if (!shows_progress || Clock::now() - start < std::chrono::seconds(1)) return;
        if (done < total) std::fprintf(stderr, "\rprompt: %zu of %zu tokens ", done, total);
        if (done == total && progress_shown) std::fprintf(stderr, "\r%*s\r", 50, "");
        progress_shown = true;
    };
    std::optional<AutoPrecision::Place> place;
    const std::chrono::milliseconds deadline(o.deadline_ms);
    if (precision != nullptr) {
        place.emplace(precision->begin(prompt));
        hooks.before_pass = [&](TokenId id, const TokenSignal& signal) {
            store.set_deadline(deadline);
            const size_t rung = precision->next(&*place, id, signal);
            precision->use(rung, 1, &store);
            trace.add(signal, rung);
        };
    }
    if (precision == nullptr && o.deadline_ms != 0)
        hooks.before_pass = [&](TokenId, const TokenSignal&) { store.set_deadline(deadline); };
    report.result = generate(loaded.forward, loaded.cache, store, tokenizer, prompt, generate_options, hooks, drafter);
    if (output_ok) say(stream.finish());
    if (traces.to != nullptr) traces.to->finish();
    if (precision != nullptr) {
        precision->end(*place);
        trace.finish();
        save_plan_memory(o, precision.get());
        report.precision = &precision->report();
    }
    report.store = store.stats();
    report.prompt = &prompt;
    report.text = &answer;

    if (o.json) {
        output_ok = print_json(report);
        if (!output_ok) output_error = errno;
    } else if (output_ok) {
        output_ok = std::fputc('\n', stdout) != EOF && std::fflush(stdout) == 0;
        if (!output_ok) output_error = errno;
    }
    if (!o.quiet) print_statistics(report);
    print_late(report);
    if (!output_ok) {
        const bool gone = output_error == EPIPE || output_error == EBADF;  // whoever read the text: nothing to say to it
        if (!gone) complain(std::string("cannot write to stdout: ") + std::strerror(output_error));
        return 1;
    }
    if (stop_signal != 0) return 128 + stop_signal;
    return 0;
}

}  // namespace

Command add_run(CLI::App& app) {
    auto options = std::make_shared<RunOptions>();
    CLI::App* const parser = app.add_subcommand("run", "continue a prompt");
    add_run_options(*parser, options.get());
    return [options] { return run(*options); };
}

}  // namespace weir
