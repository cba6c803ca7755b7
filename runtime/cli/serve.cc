// `weir serve`: the model behind a socket, for programs that speak OpenAI's protocol.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/option_layers.h"
#include "runtime/cli/precision_files.h"
#include "runtime/cli/run_budget.h"
#include "runtime/cli/run_options.h"
#include "runtime/cli/run_report.h"
#include "runtime/cli/serve_watch.h"
#include "runtime/cli/terminal.h"
#include "runtime/cli/watch_memory.h"
#include "runtime/engine/memory_limits.h"
#include "runtime/error.h"
#include "runtime/service/frame_budget.h"
#include "runtime/service/http_server.h"
#include "runtime/service/scheduler.h"
#include "runtime/service/service_manager.h"
#include "runtime/service/token_trie.h"
#include "runtime/service/watchdog_feeder.h"
#include "runtime/severity.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

struct ServeOptions {
    RunOptions run;
    ServerOptions server;
    size_t slots = 4;
    size_t queue = 16;
    unsigned drain_s = 30;
    std::string api_key_file;
    size_t max_body_kib = 1024;
    unsigned idle_release_s = 0;  // 0: never
    ServeWatchOptions watch;
    std::string config;
    bool print_config = false;
};

// Beside a thread for each request that is answered or waits: for /health and its kind, and for who is sent away.
constexpr size_t kSpareThreads = 16;
// What a thread of the server's takes: stack and its share of malloc's arenas, and a body with what is made of it. Bodies of the
// largest size do not come on all threads at once; four may.
constexpr uint64_t kBytesPerThread = 192u << 10;
constexpr size_t kLargeBodies = 4;
constexpr size_t kBodyCopies = 4;

// How often who manages us is told how we are, and hears of us while weights are read.
constexpr std::chrono::seconds kStatusInterval{5};
constexpr std::chrono::seconds kLoadingInterval{1};
// And how often what was remembered of prompts goes to its file.
constexpr std::chrono::seconds kSaveInterval{5};
// What is asked of the manager beyond what we know to need.
constexpr unsigned kSpareSeconds = 10;

// Waits for SIGINT, SIGTERM and SIGHUP on a thread of its own. SIGHUP asks to reload, or to end where it comes from a terminal
// that has gone. Before it is told that the model is loaded, and the second time, who asks to end ends the process at once.
class ServiceSignals {
  public:
    enum class Asked { kNothing, kReload, kEnd };

    ServiceSignals() : hangup_ends_(stderr_is_terminal()) {
        ::sigemptyset(&signals_);
        for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals_, s);
        ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // for all threads made later, too
        std::thread([this] { watch(); }).detach();         // ends with the process
    }
    void loaded() {
        const std::lock_guard lock(mutex_);
        loaded_ = true;
    }
    // at_most: 0 for ever.
    Asked wait(std::chrono::seconds at_most) {
        std::unique_lock lock(mutex_);
        const auto asked = [this] { return end_ || reload_; };
        if (at_most.count() == 0) asked_.wait(lock, asked);
        else if (!asked_.wait_for(lock, at_most, asked)) return Asked::kNothing;
        if (end_) return Asked::kEnd;
        reload_ = false;
        return Asked::kReload;
    }

  private:
    void watch() {
        for (;;) {
            int signal = 0;
            if (::sigwait(&signals_, &signal) != 0) continue;
            const std::lock_guard lock(mutex_);
            const bool reload = signal == SIGHUP && !hangup_ends_;
            if (!reload && (!loaded_ || end_)) std::_Exit(128 + signal);
            (reload ? reload_ : end_) = true;
            asked_.notify_all();
        }
    }
    const bool hangup_ends_;
    sigset_t signals_;
    std::mutex mutex_;
    std::condition_variable asked_;
    bool loaded_ = false;
    bool end_ = false;
    bool reload_ = false;
};

// What SIGHUP changes: who may use the service. All else was decided when memory was laid out.
void reload(const ServeOptions& o, HttpServer& server) {
    try {
        if (o.api_key_file.empty()) {
            std::fprintf(stderr, "weir: nothing to reload: there is no --api-key-file, and all other options take a restart\n");
            return;
        }
        std::vector<std::string> keys = read_api_keys(o.api_key_file);
        std::fprintf(stderr, "weir: reloaded %zu API keys; all other options take a restart\n", keys.size());
        server.set_api_keys(std::move(keys));
    } catch (const Error& error) {
        complain(std::string(error.what()) + "; the API keys stay as they were");
    }
}

// Tells the service manager how the service is, where there is news.
class StatusLine {
  public:
    StatusLine(const ServiceManager& manager, const Scheduler& scheduler, uint64_t ram)
        : manager_(manager), scheduler_(scheduler), ram_(ram), generated_(scheduler.stats().generated_tokens) {}
    void tell() {
        const SchedulerStats s = scheduler_.stats();
        const auto now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - then_).count();
        const double speed = static_cast<double>(s.generated_tokens - generated_) / seconds;
        generated_ = s.generated_tokens;
        then_ = now;
        char text[160];
        std::snprintf(text, sizeof text, "%zu of %zu slots busy, %zu requests wait; %.1f tokens/s; %llu of %llu MiB", s.busy_slots(),
                      s.slots.size(), s.queued, speed, static_cast<unsigned long long>(resident_now() >> 20),
                      static_cast<unsigned long long>(ram_ >> 20));
        if (text == told_) return;
        told_ = text;
        manager_.status(text);
    }

  private:
    const ServiceManager& manager_;
    const Scheduler& scheduler_;
    const uint64_t ram_;
    uint64_t generated_;
    Clock::time_point then_ = Clock::now();
    std::string told_;
};

// Weights that are read whole before the service is ready: the manager sees how far that is, and does not lose patience.
std::function<void(uint64_t, uint64_t)> loading_progress(const ServiceManager& manager) {
    if (!manager.listens()) return {};
    return [&manager, last = Clock::time_point{}](uint64_t done, uint64_t whole) mutable {
        if (Clock::now() - last < kLoadingInterval) return;
        last = Clock::now();
        manager.status("reading weights: " + std::to_string(done >> 20) + " of " + std::to_string(whole >> 20) + " MiB");
        manager.notify("EXTEND_TIMEOUT_USEC=" + std::to_string(kSpareSeconds * 1'000'000));
    };
}

WatchdogFeeder::Hooks watchdog_hooks(const ServiceManager& manager, WeightStore& store, const Scheduler& scheduler) {
    return {.probe = [&store] { store.probe_faults(); },
            .beat =
                [&scheduler] {
                    const SchedulerStats s = scheduler.stats();
                    return Beat{s.queued > 0 || s.busy_slots() > 0, scheduler.moves()};
                },
            .feed = [&manager] { manager.notify("WATCHDOG=1"); },
            .on_silence = [] { complain("requests are under way and nothing moves; the watchdog is not fed"); }};
}

// Keeps the memory of plans in its file, as far as it goes: a service does not end for it.
class PlanMemorySaver {
  public:
    PlanMemorySaver(const RunOptions& options, AutoPrecision* precision)
        : options_(options), precision_(options.plan_memory.empty() ? nullptr : precision) {}
    bool saves() const { return precision_ != nullptr; }
    void save() {
        if (precision_ == nullptr) return;
        try {
            save_plan_memory(options_, precision_);
        } catch (const Error& error) {
            complain(std::string(error.what()) + "; plans are remembered until the service ends");
            precision_ = nullptr;
        }
    }

  private:
    const RunOptions& options_;
    AutoPrecision* precision_;
};

// As /props has it: "auto", a level, or a plan; null of plain GGUF.
nlohmann::ordered_json precision_of(const RunOptions& o, const sched::Plan& plan) {
    return o.precision == kAutoPrecision ? nlohmann::ordered_json("auto") : nlohmann::ordered_json::parse(sched::precision_json(plan));
}

nlohmann::ordered_json properties_of(const ServeOptions& o, const ModelFile& model, const Budget& budget, const StoreStats& store, const char* kernels,
                                     size_t threads) {
    return {{"model_path", o.run.model},
            {"model_alias", std::filesystem::path(o.run.model).stem().string()},
            {"architecture", model.config.architecture.name},
            {"n_ctx_train", model.config.n_ctx_train},
            {"n_vocab", model.config.n_vocab},
            {"precision", precision_of(o.run, store.plan)},
            {"paging", paging_mode_name(o.run.store.mode)},
            {"ram_budget_bytes", budget.ram},
            {"kv_cache_bytes", budget.kv_cache},
            {"kernels", kernels},
            {"threads", threads}};
}

int serve(ServeOptions o, ServiceManager& manager, ServiceSignals& signals) {
    const auto start = Clock::now();
    if (o.run.model.empty()) throw UsageError("no model: name a file, or give model = \"FILE\" in the configuration");
    check_answer_options(o.run);
    if (!o.api_key_file.empty()) o.server.api_keys = read_api_keys(o.api_key_file);
    o.server.max_body_bytes = o.max_body_kib << 10;
    o.server.threads = o.slots + o.queue + kSpareThreads;
    const kernels::KernelSet& kernels = chosen_kernels();
    o.server.socket = manager.take_socket();
    HttpServer server(o.server);
    // Clients of a socket that the service manager holds wait in its backlog until there is a model; others are told to.
    const bool clients_wait = o.server.socket >= 0;
    if (!clients_wait) server.start();
    std::fprintf(stderr, "weir: listening at %s, loading %s\n", server.address().c_str(), o.run.model.c_str());
    manager.status("loading " + o.run.model);

    const ModelFile opened(o.run.model, o.run.pre_tokenizer);
    const TokenTrie trie(*opened.tokenizer);  // before the budget: it is in what the program has
    const size_t threads = o.run.threads != 0 ? o.run.threads : default_thread_count();
    const size_t context = choose_context(o.run, opened.config);
    std::string fallback;
    StoreOptions store_options = chosen_paging(o.run, &fallback);
    store_options.on_progress = loading_progress(manager);
    o.run.store.mode = store_options.mode;
    ModelShare share = {&opened, {std::min(o.run.batch, context), o.slots, context, threads}};
    const std::unique_ptr<AutoPrecision> precision = chosen_auto_precision(o.run, opened);
    share.plans = precision != nullptr ? precision->plans() : chosen_plans(o.run, opened.file, opened.config);
    share.sequences = o.slots;
    share.beside_bytes = o.server.threads * kBytesPerThread + kLargeBodies * (kBodyCopies * o.server.max_body_bytes + Grammar::most_bytes()) +
                         o.slots * Constraint::most_bytes(opened.tokenizer->size());
    Budget budget;
    try {
        budget = choose_budget(o.run, store_options.mode, {&share, 1});
    } catch (const UsageError& error) {
        throw UsageError(std::string(error.what()) + "; or fewer slots (--parallel): each has a KV cache of its own");
    }
    const bool streams = store_options.mode == PagingMode::kUffd && budget.frames < opened.file.file_size();
    WatchHook watch = watch_hook(o.watch, budget.ram, streams ? o.run.model : "");
    LoadedModel loaded(share, store_options, o.run.kv_type, kernels, chosen_activations(o.run));
    std::vector<std::unique_ptr<KvCache>> more;
    std::vector<KvCache*> caches{&loaded.cache};
    while (caches.size() < o.slots) {
        more.push_back(std::make_unique<KvCache>(opened.config, o.run.kv_type, context, share.shape.batch));
        caches.push_back(more.back().get());
    }
    FrameBudget frames(loaded.store->stats().frame_bytes, [&loaded](uint64_t bytes) { return loaded.store->set_frame_bytes(bytes); });
    const std::unique_ptr<PressureMonitor> monitor =
        watch_memory(o.run, budget, loaded.store.get(), [&frames](uint64_t bytes) { return frames.allow(bytes); });

    RunReport report;
    report.options = &o.run;
    report.config = &opened.config;
    report.budget = budget;
    report.kernels = kernels.name;
    report.threads = threads;
    report.context = context;
    report.fallback = fallback;
    report.load_s = std::chrono::duration<double>(Clock::now() - start).count();
    report.store = loaded.store->stats();
    report.pressure = o.run.pressure && monitor != nullptr;
    if (report.pressure) report.pressure_source = monitor->source().describe();
    print_configuration(report);

    RestHook rest{std::chrono::seconds(o.idle_release_s), [&frames](bool rests) { frames.rest(rests); }};
    if (o.idle_release_s == 0 || o.run.store.mode != PagingMode::kUffd) rest = {};
    Scheduler scheduler(loaded.forward, *loaded.store, *opened.tokenizer, trie, caches, o.queue, std::move(rest), std::move(watch), precision.get());
    ModelService service{scheduler, *opened.tokenizer, trie, std::filesystem::path(o.run.model).stem().string(),
                         static_cast<int64_t>(std::time(nullptr)), std::nullopt, {}, o.run.sampler, budget.ram,
                         properties_of(o, opened, budget, report.store, kernels.name, threads)};
    try {
        service.chat = find_chat_template(opened.file, o.run.chat_template);
    } catch (const UsageError&) {
        throw;
    } catch (const Error& error) {
        service.no_chat = error.what();
        std::fprintf(stderr, "%sweir: warning: no chat: %s\n", severity_prefix(Severity::kWarning), error.what());
    }
    server.attach(service);
    if (clients_wait) server.start();
    signals.loaded();
    manager.notify("READY=1");
    std::optional<WatchdogFeeder> feeder;
    if (manager.watchdog().count() > 0) feeder.emplace(manager.watchdog(), watchdog_hooks(manager, *loaded.store, scheduler));
    std::fprintf(stderr, "weir: ready after %.1f s: %zu slots of %zu tokens, %zu may wait\n", report.load_s, o.slots, context, o.queue);

    StatusLine status(manager, scheduler, budget.ram);
    PlanMemorySaver saver(o.run, precision.get());
    for (auto asked = ServiceSignals::Asked::kNothing; asked != ServiceSignals::Asked::kEnd;) {
        if (manager.listens()) status.tell();
        saver.save();
        asked = signals.wait(manager.listens() ? kStatusInterval : saver.saves() ? kSaveInterval : std::chrono::seconds(0));
        if (asked != ServiceSignals::Asked::kReload) continue;
        manager.reloading();
        reload(o, server);
        manager.notify("READY=1");
    }
    manager.notify("STOPPING=1\nSTATUS=finishing what is under way\nEXTEND_TIMEOUT_USEC=" +
                   std::to_string((o.drain_s + kSpareSeconds) * uint64_t{1'000'000}));
    std::fprintf(stderr, "weir: finishing what is under way, %u s at most\n", o.drain_s);
    scheduler.drain(std::chrono::seconds(o.drain_s));
    // What was generated a moment ago is still on its way to its client.
    for (int i = 0; i < 100 && service.deliveries.load(std::memory_order_relaxed) > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    server.stop();
    saver.save();
    return 0;
}

}  // namespace

Command add_serve(CLI::App& app) {
    auto options = std::make_shared<ServeOptions>();
    ServeOptions* const o = options.get();
    CLI::App* const parser = app.add_subcommand("serve", "answer programs that speak OpenAI's protocol");
    const std::string service = "Service";
    parser->add_option("--host", o->server.host, "address to listen at")->capture_default_str()->group(service);
    parser->add_option("--port", o->server.port, "0: any that is free")->capture_default_str()->check(CLI::Range(0, 65535))->group(service);
    parser->add_option("--unix-socket", o->server.unix_socket, "listen at this path instead")->type_name("PATH")->group(service);
    parser->add_option("--parallel,--np", o->slots, "requests that are answered at once, each in a context of its own")->capture_default_str()
        ->check(CLI::Range(size_t{1}, size_t{64}))->group(service);
    parser->add_option("--queue", o->queue, "requests that may wait beside them")->capture_default_str()->check(CLI::Range(size_t{0}, size_t{1000}))->group(service);
    parser->add_option("--api-key-file", o->api_key_file, "ask for one of these keys, one a line")->type_name("FILE")->group(service);
    parser->add_option("--allow-host", o->server.allowed_hosts, "names that clients may call this host by, beside localhost and addresses")
        ->type_name("NAME")->group(service);
    parser->add_option("--cors", o->server.cors_origin, "origin of web pages that may use it, * for any")->type_name("ORIGIN")->group(service);
    parser->add_option("--max-body", o->max_body_kib, "largest request, in KiB")->capture_default_str()->check(CLI::Range(size_t{1}, size_t{1} << 16))->group(service);
    parser->add_option("--timeout", o->server.timeout_s, "seconds to send a request, and to take some of an answer")->capture_default_str()
        ->check(CLI::Range(1u, 3600u))->group(service);
    parser->add_option("--drain", o->drain_s, "seconds that answers under way may take when the server is told to end")->capture_default_str()
        ->check(CLI::Range(0u, 3600u))->group(service);
    parser->add_option("--idle-release", o->idle_release_s, "seconds without a request after which memory of weights is given back; 0: never")
        ->capture_default_str()->check(CLI::Range(0u, 1u << 24))->group(service);
    parser->add_option("--baseline-perplexity", o->watch.baseline_perplexity,
                       "of prompts, which drift is measured from (default: that of the first prompts)")
        ->check(number(1, 1e9))->group(service);
    parser->add_option("--recalibrate", o->watch.recalibrate, "command to run when perplexity of prompts is 5 % above it")
        ->type_name("COMMAND")->group(service);
    parser->add_flag("--dashboard,!--no-dashboard", o->server.dashboard, "a page at / that shows where the bytes are, with a chat (on by default)")
        ->default_str("true")->group(service);
    parser->add_option("--config", o->config, "read options from this file (TOML); WEIR_... and the command line override it")
        ->type_name("FILE")->configurable(false)->group(service);
    parser->add_flag("--print-config", o->print_config, "say what holds and where it is from, and end")->configurable(false)->group(service);
    add_answer_options(*parser, &o->run);
    parser->get_option("--model")->required(false);  // the file or the environment may name it
    for (const char* name : {"--json", "--seed", "--system"}) parser->get_option(name)->configurable(false)->group("");  // each request's
    return [options, parser] {
        const OptionSources sources = fill_options(*parser, options->config);
        if (options->print_config) {
            write_stdout(describe_options(*parser, sources));
            return 0;
        }
        ServiceManager manager;        // before there are threads
        static ServiceSignals signals;  // its thread lives as long as the process
        return serve(*options, manager, signals);
    };
}

}  // namespace weir
