// `weir chat`: a conversation at the terminal. What has been said stays in the KV cache; each turn computes what is new only.
#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/precision_files.h"
#include "runtime/cli/run_budget.h"
#include "runtime/cli/run_options.h"
#include "runtime/cli/run_report.h"
#include "runtime/cli/terminal.h"
#include "runtime/cli/watch_memory.h"
#include "runtime/engine/generate.h"
#include "runtime/error.h"
#include "runtime/model/chat.h"
#include "runtime/model/text_stream.h"

namespace weir {
namespace {

constexpr const char* kHelp =
    "/save FILE   keep the conversation        /load FILE   go on with one that was kept\n"
    "/reset       forget it                    /stats       what the last answer took\n"
    "/exit        as Ctrl-D                    /help        this\n"
    "A line that ends with \\ goes on in the next; \"\"\" begins and ends several lines. Ctrl-C stops an answer.\n";

std::atomic<bool> stop_wanted{false};

// SIGINT stops the answer under way, or clears the line that is being typed.
void catch_interrupts() {
    struct sigaction action = {};
    action.sa_handler = [](int) { stop_wanted = true; };  // no SA_RESTART: reading a line must end
    ::sigaction(SIGINT, &action, nullptr);
}

enum class Typed : uint8_t { kText, kInterrupted, kEnd };

Typed read_line(const char* prompt, std::string* line) {
    if (::isatty(STDIN_FILENO) == 1) std::fputs(prompt, stderr);
    line->clear();
    char piece[1024];
    for (;;) {
        errno = 0;
        if (std::fgets(piece, sizeof piece, stdin) == nullptr) {
            const bool interrupted = errno == EINTR;
            std::clearerr(stdin);
            if (interrupted) return Typed::kInterrupted;
            return line->empty() ? Typed::kEnd : Typed::kText;
        }
        *line += piece;
        if (line->back() != '\n') continue;
        line->pop_back();
        return Typed::kText;
    }
}

// One message: a line, lines joined by a \ at their end, or what stands between two lines of """.
Typed read_message(std::string* message) {
    Typed typed = read_line("> ", message);
    if (typed != Typed::kText) return typed;
    std::string line;
    if (*message == "\"\"\"") {
        message->clear();
        while ((typed = read_line("... ", &line)) == Typed::kText && line != "\"\"\"") *message += (message->empty() ? "" : "\n") + line;
        return typed == Typed::kInterrupted ? typed : Typed::kText;
    }
    while (!message->empty() && message->back() == '\\') {
        message->back() = '\n';
        if ((typed = read_line("... ", &line)) != Typed::kText) return typed;
        *message += line;
    }
    return Typed::kText;
}

class Chat {
  public:
    // precision: nullptr where it is fixed.
    Chat(const RunOptions& options, const ModelFile& file, LoadedModel& loaded, AutoPrecision* precision, PrecisionTrace& trace)
        : options_(options), file_(file), loaded_(loaded), precision_(precision), trace_(trace), kind_(find_chat_template(file.file, options.chat_template)),
          seed_(options.seed ? *options.seed : std::random_device{}()) {
        reset();
    }

    // False: the conversation is over.
    bool turn() {
        std::string message;
        switch (read_message(&message)) {
            case Typed::kEnd: return false;
            case Typed::kInterrupted:
                stop_wanted = false;
                std::fputs("\n(/exit or Ctrl-D ends)\n", stderr);
                return true;
            case Typed::kText: break;
        }
        if (message.empty()) return true;
        if (message.front() != '/') {
            answer(message);
            return true;
        }
        const size_t blank = message.find(' ');
        const std::string name = message.substr(0, blank), rest = blank == std::string::npos ? "" : message.substr(blank + 1);
        if (name == "/exit" || name == "/quit") return false;
        command(name, rest);
        return true;
    }

    // A message stayed without an answer.
    bool failed() const { return failed_; }

  private:
    void reset() {
        conversation_.messages.clear();
        if (options_.system) conversation_.messages.push_back({"system", *options_.system});
    }

    void command(const std::string& name, const std::string& file) {
        try {
            if (name == "/reset") return reset();
            if (name == "/stats") return print_stats();
            if (name == "/save" && !file.empty()) return save(file);
            if (name == "/load" && !file.empty()) return load(file);
        } catch (const std::exception& error) {
            return complain(error.what());
        }
        std::fputs(kHelp, stderr);
    }

    void save(const std::string& path) const {
        nlohmann::ordered_json kept = nlohmann::ordered_json::array();
        for (const ChatMessage& m : conversation_.messages) kept.push_back({{"role", m.role}, {"content", m.content}});
        std::ofstream out(path);
        out << nlohmann::ordered_json{{"messages", kept}}.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
        if (!out.flush()) throw Error(path + ": the conversation cannot be written");
        std::fprintf(stderr, "%zu messages kept in %s\n", conversation_.messages.size(), path.c_str());
    }

    void load(const std::string& path) {
        std::vector<ChatMessage> messages;
        const auto kept = nlohmann::json::parse(read_text(path, "the conversation"), nullptr, false);
        if (!kept.is_object() || !kept.contains("messages") || !kept["messages"].is_array()) throw Error(path + ": holds no conversation");
        for (const auto& m : kept["messages"]) {
            const bool usable = m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content") && m["content"].is_string();
            if (!usable) throw Error(path + ": holds a message without role and content");
            messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
        }
        conversation_.messages = std::move(messages);
        std::fprintf(stderr, "%zu messages\n", conversation_.messages.size());
    }

    void print_stats() const {
        std::fprintf(stderr, "context: %zu of %zu tokens; last answer: %zu tokens, first after %.2f s, then %.2f tokens/s (%zu of the prompt computed)\n",
                     loaded_.cache.length(), loaded_.cache.capacity(), last_.ids.size(), last_.prompt_s,
                     last_.ids.size() > 1 ? static_cast<double>(last_.ids.size() - 1) / last_.decode_s : 0.0, computed_);
        if (precision_ != nullptr) print_precision(precision_->report());
    }

    void answer(const std::string& message) {
        conversation_.messages.push_back({"user", message});
        TextStream stream(*file_.tokenizer);
        std::string text;
        const auto say = [&](const std::string& piece) {
            text += piece;
            write_stdout(piece);
            return true;
        };
        GenerateHooks hooks;
        hooks.stop = &stop_wanted;
        hooks.on_token = [&](TokenId id) { return say(stream.add(id)); };
        GenerateOptions options;
        options.sampler = options_.sampler;
        options.sampler.seed = seed_++;
        options.max_tokens = options_.n_tokens < 0 ? SIZE_MAX : static_cast<size_t>(options_.n_tokens);
        options.adapt_threads = options_.adapt_threads;
        try {
            const std::vector<TokenId> ids = encode_chat(*file_.tokenizer, kind_.render(conversation_, chat_marks(*file_.tokenizer)));
            if (ids.size() >= loaded_.cache.capacity()) throw Error("the conversation fills the context: /reset, or give a larger one (-c)");
            const size_t kept = keep_beginning(ids);
            computed_ = ids.size() - kept;
            stop_wanted = false;
            std::optional<AutoPrecision::Place> place;
            size_t finest = SIZE_MAX;  // tokens of the answer, from the first on, that were computed as prompts are
            if (precision_ != nullptr) {
                place.emplace(precision_->begin(ids));
                precision_->use(AutoPrecision::kFinest, 0, loaded_.store.get());
                hooks.before_pass = [&](TokenId id, const TokenSignal& signal) {
                    const size_t rung = precision_->next(&*place, id, signal);
                    precision_->use(rung, 1, loaded_.store.get());
                    trace_.add(signal, rung);
                    if (rung != AutoPrecision::kFinest) finest = std::min(finest, signal.token);
                };
            }
            last_ = generate(loaded_.forward, loaded_.cache, *loaded_.store, *file_.tokenizer, std::span(ids).subspan(kept), options, hooks);
            say(stream.finish());
            cached_.add(std::span(ids).subspan(kept), true);
            finest = std::min(finest, last_.ids.size());
            cached_.add(std::span(last_.ids).first(finest), true);
            cached_.add(std::span(last_.ids).subspan(finest), false);
            cached_.cut(loaded_.cache.length());
            if (precision_ != nullptr) {
                precision_->end(*place);
                save_plan_memory(options_, precision_);
            }
        } catch (const Error& error) {
            conversation_.messages.pop_back();
            complain(error.what());
            failed_ = true;
            return;
        }
        write_stdout("\n");
        stop_wanted = false;
        conversation_.messages.push_back({"assistant", text});
    }

    // Leaves in the cache what it has of these; the last is computed in any case.
    size_t keep_beginning(const std::vector<TokenId>& ids) {
        const size_t kept = std::min(cached_.common(ids), ids.size() - 1);
        cached_.cut(kept);
        loaded_.cache.set_length(kept);
        return kept;
    }

    const RunOptions& options_;
    const ModelFile& file_;
    LoadedModel& loaded_;
    AutoPrecision* const precision_;
    PrecisionTrace& trace_;
    const ChatTemplate kind_;
    uint64_t seed_;
    Conversation conversation_;
    CachedTokens cached_;
    GenerateResult last_;
    bool failed_ = false;
    size_t computed_ = 0;
};

int chat(const RunOptions& o) {
    check_answer_options(o);
    const ModelFile opened(o.model, o.pre_tokenizer);
    find_chat_template(opened.file, o.chat_template);  // before anything is loaded
    const size_t threads = o.threads != 0 ? o.threads : default_thread_count();
    const size_t context = choose_context(o, opened.config);
    std::string fallback;
    const StoreOptions store_options = chosen_paging(o, &fallback);
    ModelShare share = {&opened, {std::min(o.batch, context), 1, context, threads}};
    const std::unique_ptr<AutoPrecision> precision = chosen_auto_precision(o, opened);
    PrecisionTrace trace(o, precision.get());
    share.plans = precision != nullptr ? precision->plans() : chosen_plans(o, opened.file, opened.config);
    const Budget budget = choose_budget(o, store_options.mode, {&share, 1});
    LoadedModel loaded(share, store_options, o.kv_type, chosen_kernels(), chosen_activations(o));
    const std::unique_ptr<PressureMonitor> monitor = watch_memory(o, budget, loaded.store.get());
    catch_interrupts();
    const bool talks = ::isatty(STDIN_FILENO) == 1;
    if (talks) std::fputs(kHelp, stderr);
    Chat session(o, opened, loaded, precision.get(), trace);
    while (session.turn()) {
    }
    trace.finish();
    return session.failed() && !talks ? 1 : 0;  // who talks has seen it
}

}  // namespace

Command add_chat(CLI::App& app) {
    auto options = std::make_shared<RunOptions>();
    options->n_tokens = -1;
    options->quiet = true;
    CLI::App* const parser = app.add_subcommand("chat", "talk to a model at the terminal");
    parser->add_option("-n,--predict", options->n_tokens, "tokens of an answer at most, -1 until it ends")->capture_default_str()
        ->check(CLI::Range(-1LL, 1LL << 31));
    add_precision_trace(*parser, options.get());
    add_answer_options(*parser, options.get());
    parser->remove_option(parser->get_option("--json"));
    return [options] { return chat(*options); };
}

}  // namespace weir
