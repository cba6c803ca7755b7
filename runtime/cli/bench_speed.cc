#include "runtime/cli/bench_speed.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pager/system.h"
#include "runtime/cli/child.h"
#include "runtime/cli/format.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/terminal.h"
#include "runtime/engine/compute_probe.h"
#include "runtime/error.h"
#include "runtime/model/model_map.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

const char* const kOurs[] = {"weir"};
constexpr double kProbe_s = 0.25;
constexpr size_t kMostList = 16;
constexpr int kLongest_s = 900;

std::vector<size_t> parse_list(const std::string& text, const char* option, size_t most) {
    std::vector<size_t> out;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) {
        size_t value = 0;
        const char* const end = word.data() + word.size();
        const auto [rest, error] = std::from_chars(word.data(), end, value);
        if (error != std::errc() || rest != end || value < 1 || value > most || out.size() == kMostList)
            throw UsageError(std::string(option) + " " + text + ": write whole numbers from 1 to " + std::to_string(most) +
                             " with commas between them, " + std::to_string(kMostList) + " at most");
        out.push_back(value);
    }
    if (out.empty()) throw UsageError(std::string(option) + ": none given");
    return out;
}

// A fixed sequence of ids: what they say does not matter for speed.
std::vector<TokenId> some_prompt(size_t tokens, size_t n_vocab) {
    std::vector<TokenId> ids;
    for (size_t i = 0; i < tokens; ++i) ids.push_back(static_cast<TokenId>((1 + i * 7919) % n_vocab));
    return ids;
}

SpeedRun run_own(LoadedModel* m, std::span<const TokenId> prompt, size_t new_tokens) {
    SpeedRun run;
    m->cache.set_length(0);
    const auto begin = Clock::now();
    std::span<const float> logits;
    for (size_t at = 0, n = 0; at < prompt.size(); at += n) {
        n = std::min(m->forward.max_batch(), prompt.size() - at);
        logits = m->forward.pass(prompt.subspan(at, n), at + n == prompt.size() ? 1 : 0, true);
    }
    const auto pick = [&] { return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()); };
    TokenId id = pick();
    run.prefill = static_cast<double>(prompt.size()) / seconds_since(begin);
    const auto decode_begin = Clock::now();
    const uint64_t stalled = m->store->stall_us();
    for (size_t i = 0; i < new_tokens; ++i) {
        logits = m->forward.pass({&id, 1}, 1, true);
        id = pick();
    }
    const double seconds = seconds_since(decode_begin);
    run.decode = static_cast<double>(new_tokens) / seconds;
    run.stall_share = static_cast<double>(m->store->stall_us() - stalled) / 1e6 / seconds;
    return run;
}

SpeedRun run_peer(const SpeedOptions& o, const Peer& peer, const SpeedTest& test, size_t context, const StopSignals& signals) {
    const std::pair<const char*, std::string> places[] = {
        {"{model}", o.run.model},
        {"{threads}", std::to_string(test.threads)},
        {"{prompt_tokens}", std::to_string(test.prompt)},
        {"{tokens}", std::to_string(o.new_tokens)},
        {"{context}", std::to_string(context)},
    };
    SpeedRun run;
    const ChildEnd end = run_child(peer_command(peer, places), signals, kLongest_s);
    if (end.stopped || end.timed_out) {
        run.error = end.stopped ? "stopped" : "given up after " + std::to_string(kLongest_s) + " s";
    } else if (end.status != 0) {
        run.error = "exit status " + std::to_string(end.status) + ": " + end.last_words();
    } else {
        try {
            const nlohmann::json said = peer_figures(end.out);
            const auto prefill = number_of(said, {"prompt_tokens_per_s"});
            const auto decode = number_of(said, {"tokens_per_s", "decode_tokens_per_s"});
            if (!prefill || !decode) run.error = "its JSON has no prompt_tokens_per_s or no tokens_per_s";
            run.prefill = prefill.value_or(0);
            run.decode = decode.value_or(0);
        } catch (const nlohmann::json::exception& e) {
            run.error = std::string("its output is not what was expected: ") + e.what();
        }
    }
    return run;
}

// All arms in turn, and the probes at the start of each turn.
void measure(const SpeedOptions& o, const kernels::KernelSet& kernels, LoadedModel* model, size_t n_vocab, uint64_t probe_bytes, SpeedTest* test,
             const StopSignals& signals) {
    test->arms.push_back({kOurs[0], {}});
    for (const Peer& peer : o.peers) test->arms.push_back({peer.name, {}});
    const std::vector<TokenId> prompt = some_prompt(test->prompt, n_vocab);
    ProgressLine progress;
    const auto show = [&](const std::string& what) {
        progress.show(std::to_string(test->threads) + " threads, pp" + std::to_string(test->prompt) + ", " + what);
    };
    show("warming up");
    (void)run_own(model, prompt, 1);
    for (size_t turn = 0; turn < o.runs && signals.asked() == 0; ++turn) {
        const std::string of = ", run " + std::to_string(turn + 1) + " of " + std::to_string(o.runs);
        show("probing the machine" + of);
        test->read_bytes_per_s.push_back(probe_reads(model->team, probe_bytes, kProbe_s));
        test->dots_per_s.push_back(probe_dots(kernels, model->team, kProbe_s));
        for (size_t i = 0; i < test->arms.size() && signals.asked() == 0; ++i) {
            show(test->arms[i].name + of);
            test->arms[i].runs.push_back(i == 0 ? run_own(model, prompt, o.new_tokens)
                                                : run_peer(o, o.peers[i - 1], *test, model->cache.capacity(), signals));
        }
    }
}

int bench_speed(const SpeedOptions& o) {
    const kernels::KernelSet& kernels = chosen_kernels();
    const ModelFile file(o.run.model, "");
    SpeedReport report;
    report.options = &o;
    report.model_bytes = file.file.file_size();
    report.kernels = kernels.name;
    report.batch = std::min(o.run.batch, *std::max_element(o.prompts.begin(), o.prompts.end()));
    report.head_elements = uint64_t{file.config.n_vocab} * file.config.dim;
    const std::vector<sched::Plan> plans = chosen_plans(o.run, file.file, file.config);
    const ModelMap map = build_model_map(file.file, file.config, pager::page_size(), false, plans);
    report.weights_bytes = map.weights_bytes;
    for (const PlacedTensor& placed : map.tensors) {
        const GgufTensor& t = *placed.tensor;
        // Of experts' matrices, one behind the other in a tensor, a token meets a few.
        const bool experts = file.config.n_experts != 0 && t.dims[2] == file.config.n_experts;
        const uint64_t used = experts ? file.config.n_experts_used : 1, all = experts ? file.config.n_experts : 1;
        const uint64_t rows = placed.part != nullptr ? placed.part->rows : t.rows();
        const auto level = static_cast<kernels::Level>(placed.part != nullptr ? plans.front().levels[placed.shard] : 8);
        const uint64_t bytes = placed.part != nullptr ? rows * kernels::level_row_bytes(level, t.dims[0]) : t.bytes;
        report.body_elements += rows * t.dims[0] / all * used;
        report.token_bytes += bytes / all * used;
    }
    report.body_elements -= report.head_elements;

    // The probe of reads takes its memory beside the model, for as long as it lasts: within the budget, where one is given.
    const MemoryLimits limits = read_memory_limits();
    const uint64_t probe_bytes = probe_memory(limits.sensible() / 4);
    RunOptions run = o.run;
    if (run.ram) run.ram = SizeArg{false, 0, run.ram->of(limits.whole()) - std::min(run.ram->of(limits.whole()), probe_bytes)};

    const StopSignals signals;
    const size_t context = *std::max_element(o.prompts.begin(), o.prompts.end()) + o.new_tokens;
    for (const size_t threads : o.threads.empty() ? std::vector<size_t>{default_thread_count()} : o.threads) {
        std::string fallback;
        const StoreOptions paging = chosen_paging(run, &fallback);
        ModelShare share = {&file, {report.batch, 1, context, threads}};
        share.plans = plans;
        choose_budget(run, paging.mode, {&share, 1});
        LoadedModel model(share, paging, run.kv_type, kernels, chosen_activations(run));
        report.paging = paging_mode_name(paging.mode);
        for (const size_t prompt : o.prompts) {
            if (signals.asked() != 0) break;
            SpeedTest test;
            test.threads = threads;
            test.prompt = prompt;
            measure(o, kernels, &model, file.config.n_vocab, probe_bytes, &test, signals);
            report.tests.push_back(std::move(test));
        }
    }
    if (signals.asked() != 0) {
        complain("stopped");
        return 128 + signals.asked();
    }
    write_stdout(o.run.json ? speed_json(report) : speed_text(report));
    return all_well(report) ? 0 : 1;
}

}  // namespace

Command add_bench_speed(CLI::App& bench) {
    const auto o = std::make_shared<SpeedOptions>();
    CLI::App* const speed = bench.add_subcommand("speed", "prefill and decode of one model, beside what the machine gives at best");
    constexpr size_t kMostTokens = size_t{1} << 20;
    speed->add_option_function<std::string>("-p,--n-prompt", [o](const std::string& text) { o->prompts = parse_list(text, "-p", kMostTokens); },
                                            "tokens of the prompts, one test each (default: 64,512)")->type_name("N,N...");
    speed->add_option("-n,--n-gen", o->new_tokens, "tokens decoded after each prompt")->capture_default_str()->check(whole_number(1, kMostTokens));
    speed->add_option_function<std::string>("-t,--threads", [o](const std::string& text) { o->threads = parse_list(text, "-t", Team::kMostWorkers); },
                                            "numbers of threads (default: physical cores)")->type_name("N,N...");
    speed->add_option("-r,--repetitions", o->runs, "of each test by each arm, in turn")->capture_default_str()->check(whole_number(1, 100));
    speed->add_option("-b,--batch-size", o->run.batch, "tokens of a prompt computed together at most")->capture_default_str()->check(whole_number(1, 512));
    speed->add_option_function<std::vector<std::string>>("--peer-command",
        [o](const std::vector<std::string>& texts) { for (const std::string& text : texts) o->peers.push_back(parse_peer(text, kOurs)); },
        "another program in turn with weir: a driver that prints JSON, see bench/peers/README.md; may be given again")->type_name("NAME=COMMAND")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    add_engine_options(*speed, &o->run);
    return [o] { return bench_speed(*o); };
}

}  // namespace weir
