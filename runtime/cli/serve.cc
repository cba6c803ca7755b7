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
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/run_budget.h"
#include "runtime/cli/run_options.h"
#include "runtime/cli/run_report.h"
#include "runtime/cli/watch_memory.h"
#include "runtime/error.h"
#include "runtime/service/http_server.h"
#include "runtime/service/scheduler.h"

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
};

// Beside a thread for each request that is answered or waits: for /health and its kind, and for who is sent away.
constexpr size_t kSpareThreads = 16;
// What a thread of the server's takes: stack and its share of malloc's arenas, and a body with what is made of it. Bodies of the
// largest size do not come on all threads at once; four may.
constexpr uint64_t kBytesPerThread = 192u << 10;
constexpr size_t kLargeBodies = 4;
constexpr size_t kBodyCopies = 4;

// Waits for SIGINT and SIGTERM on a thread of its own. Before it is told that the model is loaded, and the second time, the
// process ends at once.
class StopRequest {
  public:
    StopRequest() {
        ::sigemptyset(&signals_);
        for (const int s : {SIGINT, SIGTERM}) ::sigaddset(&signals_, s);
        ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // for all threads made later, too
        std::thread([this] { watch(); }).detach();         // ends with the process
    }
    void loaded() {
        const std::lock_guard lock(mutex_);
        loaded_ = true;
    }
    void wait() {
        std::unique_lock lock(mutex_);
        asked_.wait(lock, [this] { return signal_ != 0; });
    }

  private:
    void watch() {
        for (;;) {
            int signal = 0;
            if (::sigwait(&signals_, &signal) != 0) continue;
            const std::lock_guard lock(mutex_);
            if (!loaded_ || signal_ != 0) std::_Exit(128 + signal);
            signal_ = signal;
            asked_.notify_all();
        }
    }
    sigset_t signals_;
    std::mutex mutex_;
    std::condition_variable asked_;
    bool loaded_ = false;
    int signal_ = 0;
};

nlohmann::ordered_json properties_of(const ServeOptions& o, const ModelFile& model, const Budget& budget, const char* kernels, size_t threads) {
    return {{"model_path", o.run.model},
            {"model_alias", std::filesystem::path(o.run.model).stem().string()},
            {"architecture", model.config.architecture.name},
            {"n_ctx_train", model.config.n_ctx_train},
            {"n_vocab", model.config.n_vocab},
            {"paging", paging_mode_name(o.run.store.mode)},
            {"ram_budget_bytes", budget.ram},
            {"kv_cache_bytes", budget.kv_cache},
            {"kernels", kernels},
            {"threads", threads}};
}

int serve(ServeOptions o, StopRequest& stop) {
    const auto start = Clock::now();
    check_sampling(o.run.sampler);
    if (!o.api_key_file.empty()) o.server.api_keys = read_api_keys(o.api_key_file);
    o.server.max_body_bytes = o.max_body_kib << 10;
    o.server.threads = o.slots + o.queue + kSpareThreads;
    const kernels::KernelSet& kernels = chosen_kernels();
    HttpServer server(o.server);
    server.start();
    std::fprintf(stderr, "weir: listening at %s, loading %s\n", server.address().c_str(), o.run.model.c_str());

    const ModelFile opened(o.run.model, o.run.pre_tokenizer);
    const size_t threads = o.run.threads != 0 ? o.run.threads : default_thread_count();
    const size_t context = choose_context(o.run, opened.config);
    std::string fallback;
    const StoreOptions store_options = chosen_paging(o.run, &fallback);
    o.run.store.mode = store_options.mode;
    ModelShare share = {&opened, {std::min(o.run.batch, context), o.slots, context, threads}};
    share.level = chosen_level(o.run, opened.file);
    share.sequences = o.slots;
    share.beside_bytes = o.server.threads * kBytesPerThread + kLargeBodies * kBodyCopies * o.server.max_body_bytes;
    Budget budget;
    try {
        budget = choose_budget(o.run, store_options.mode, {&share, 1});
    } catch (const UsageError& error) {
        throw UsageError(std::string(error.what()) + "; or fewer slots (--parallel): each has a KV cache of its own");
    }
    LoadedModel loaded(share, store_options, o.run.kv_type, kernels, chosen_activations(o.run));
    std::vector<std::unique_ptr<KvCache>> more;
    std::vector<KvCache*> caches{&loaded.cache};
    while (caches.size() < o.slots) {
        more.push_back(std::make_unique<KvCache>(opened.config, o.run.kv_type, context, share.shape.batch));
        caches.push_back(more.back().get());
    }
    const std::unique_ptr<PressureMonitor> monitor = watch_memory(o.run, budget, loaded.store.get());

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

    Scheduler scheduler(loaded.forward, *loaded.store, *opened.tokenizer, caches, o.queue);
    ModelService service{scheduler, *opened.tokenizer, std::filesystem::path(o.run.model).stem().string(),
                         static_cast<int64_t>(std::time(nullptr)), std::nullopt, {}, o.run.sampler, budget.ram,
                         properties_of(o, opened, budget, kernels.name, threads)};
    try {
        service.chat = find_chat_template(opened.file, o.run.chat_template);
    } catch (const UsageError&) {
        throw;
    } catch (const Error& error) {
        service.no_chat = error.what();
        std::fprintf(stderr, "weir: warning: no chat: %s\n", error.what());
    }
    server.attach(service);
    stop.loaded();
    std::fprintf(stderr, "weir: ready after %.1f s: %zu slots of %zu tokens, %zu may wait\n", report.load_s, o.slots, context, o.queue);

    stop.wait();
    std::fprintf(stderr, "weir: finishing what is under way, %u s at most\n", o.drain_s);
    scheduler.drain(std::chrono::seconds(o.drain_s));
    // What was generated a moment ago is still on its way to its client.
    for (int i = 0; i < 100 && service.deliveries.load(std::memory_order_relaxed) > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    server.stop();
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
    add_answer_options(*parser, &o->run);
    return [options] {
        static StopRequest stop;  // its thread lives as long as the process
        return serve(*options, stop);
    };
}

}  // namespace weir
