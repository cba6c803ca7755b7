#include "runtime/cli/run_options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/cli/option_checks.h"
#include "runtime/engine/draft_length.h"
#include "runtime/error.h"

namespace weir {
namespace {

constexpr const char* kMemory = "Memory";  // a group of the help

// An option that takes one of a few words. (CLI11's own transformers show the values as the help's text.)
template <typename T>
void add_choice(CLI::App& parser, const std::string& name, T* value, const std::map<std::string, T>& choices,
                const std::string& what) {
    std::string words;
    for (const auto& [word, ignored] : choices) words += (words.empty() ? "" : "|") + word;
    const auto choose = [=](const std::string& text) {
        const auto it = choices.find(text);
        if (it == choices.end()) throw CLI::ValidationError(name, text + " is none of " + words);
        *value = it->second;
    };
    parser.add_option_function<std::string>(name, choose, what)->type_name(words);
}

}  // namespace

void add_cache_options(CLI::App& parser, KvType* type) {
    std::map<std::string, kernels::Type> types;
    for (const kernels::Type t : kCacheTypes) types[cache_type_name(t)] = t;
    add_choice<kernels::Type>(parser, "--cache-type-k", &type->keys, types, "of keys in the KV cache (default: f16)");
    add_choice<kernels::Type>(parser, "--cache-type-v", &type->values, types, "of values in the KV cache (default: f16)");
    for (const char* name : {"--cache-type-k", "--cache-type-v"}) parser.get_option(name)->group(kMemory);
}

void add_precision_options(CLI::App& parser, RunOptions* o) {
    add_choice<std::optional<int>>(parser, "--precision", &o->precision, {{"auto", kAutoPrecision}, {"auto-exact", kExactPrecision}, {"8", 8}, {"6", 6}, {"4", 4}, {"3", 3}, {"2", 2}},
                                   "bits that are read of each weight of a native file (default: 8); auto: as each token needs (run, chat, serve); auto-exact: 8, drafted at 4 (run)");
    parser.add_option("--precision-plan", o->precision_plan, "or bits for each layer's matrices and the head (weir-sched makes such a file)")
        ->type_name("FILE");
}

void add_engine_options(CLI::App& parser, RunOptions* o) {
    const auto size_option = [&](const char* name, std::optional<SizeArg>* to, const char* what) {
        parser.add_option_function<std::string>(name, [name, to](const std::string& text) { *to = parse_size(text, name); },
                                                what)->type_name("SIZE|N%");
    };
    parser.add_option("model,-m,--model", o->model, "GGUF or native file")->required()->type_name("FILE");
    add_precision_options(parser, o);
    size_option("--ram", &o->ram, "budget of the whole process (default: 80 % of what is available)");
    parser.get_option("--ram")->group(kMemory);
    size_option("--weights-ram", &o->weights_ram, "what the weights alone may take; N% of the weights");
    parser.get_option("--weights-ram")->group(kMemory);
    add_choice<PagingMode>(parser, "--paging", &o->store.mode,
                           {{"uffd", PagingMode::kUffd}, {"advised", PagingMode::kAdvised}, {"mmap", PagingMode::kMmap}, {"resident", PagingMode::kResident}},
                           "uffd (default): our own paging; advised: ours by advice to the kernel, where userfaultfd is not to be had; mmap: the kernel's; resident: all weights in memory");
    parser.get_option("--paging")->group(kMemory);
    add_cache_options(parser, &o->kv_type);
    add_choice<bool>(parser, "--gates", &o->store.gates, {{"on", true}, {"off", false}},
                     "off: weights that are not here fault instead of being waited for");
    parser.get_option("--gates")->group(kMemory);
    parser.add_option("--uffd-source", o->store.uffd_source, "auto, user-mode-only, device or syscall: where userfaultfd comes from")->capture_default_str()->group(kMemory);
    parser.add_option("--install", o->store.install, "auto, move or copy: how pages get into place")->capture_default_str()->group(kMemory);
    parser.add_option("--reader", o->store.reader, "auto, io_uring or pread")->capture_default_str()->group(kMemory);
    parser.add_option("--io", o->store.io, "auto, direct or buffered")->capture_default_str()->group(kMemory);
    parser.add_option("--trace-io", o->store.trace_io, "list every read of weights in a file: offset and bytes (uffd)")->type_name("FILE")->group(kMemory);
    parser.add_option("--io-limit-mbps", o->store.io_limit_mbps, "read weights no faster than N million bytes a second, as a slow disk would (uffd)")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000}))->group(kMemory);

    using kernels::Activation;
    add_choice<Activation>(parser, "--activations", &o->activations, {{"int8", Activation::kFine}, {"int16", Activation::kWhole}, {"f32", Activation::kF32}},
                           "int8 (default but for calibrate; 16 bits where it matters), int16 (throughout: nearly f32's answers, and calibrate's default), or f32: slower, "
                           "and what the weights alone would answer");
    parser.add_flag("--json", o->json, "one JSON object on standard output instead of text");
}

void add_answer_options(CLI::App& parser, RunOptions* o) {
    parser.add_option("-c,--ctx-size", o->context, "context in tokens (default: the model's, at most " + std::to_string(kDefaultContext) + ")")
        ->check(CLI::Range(size_t{0}, kMostContext));
    parser.add_option("-t,--threads", o->threads, "decode threads (default: physical cores)")->check(CLI::Range(size_t{1}, size_t{256}));
    parser.add_option("-b,--batch-size", o->batch, "tokens of the prompt computed together at most")->capture_default_str()
        ->check(CLI::Range(size_t{1}, size_t{512}));
    const std::string sampling = "Sampling";
    parser.add_option("--temp", o->sampler.temperature, "temperature, 0 for greedy")->capture_default_str()->check(CLI::Range(0.0f, 100.0f))->group(sampling);
    parser.add_flag_callback("--greedy", [o] { o->sampler.temperature = 0; }, "the same as --temp 0")->group(sampling);
    parser.add_option("--top-k", o->sampler.top_k, "0: off")->capture_default_str()
        ->check(CLI::Range(size_t{0}, size_t{1} << 30))->group(sampling);
    parser.add_option("--top-p", o->sampler.top_p, "1: off")->capture_default_str()->check(CLI::Range(0.0f, 1.0f))->group(sampling);
    parser.add_option("--min-p", o->sampler.min_p, "0: off")->capture_default_str()->check(CLI::Range(0.0f, 1.0f))->group(sampling);
    parser.add_option("--repeat-penalty", o->sampler.repeat_penalty, "1: off")->capture_default_str()->check(CLI::Range(0.01f, 100.0f))->group(sampling);
    parser.add_option("--repeat-last-n", o->sampler.repeat_last_n, "tokens that are penalised")->capture_default_str()
        ->check(CLI::Range(size_t{0}, size_t{1} << 30))->group(sampling);
    const auto seed = [o](int64_t value) {
        if (value >= 0) o->seed = static_cast<uint64_t>(value);
    };
    parser.add_option_function<int64_t>("--seed", seed, "of the draws (default, and -1: random, and reported)")
        ->check(CLI::Range(int64_t{-1}, INT64_MAX - 1))->type_name("N")->group(sampling);
    add_choice<bool>(parser, "--pressure", &o->pressure, {{"on", true}, {"off", false}},
                     "on (default): give memory of the weights back while memory is short, here or in the cgroups above");
    parser.get_option("--pressure")->group(kMemory);
    parser.add_option("--sensitivity", o->sensitivity, "of --precision auto: the table (default: MODEL.sensitivity.json, by weir calibrate)")->type_name("FILE");
    add_token_plans(parser, o);
    parser.add_option("--plan-memory", o->plan_memory, "of --precision auto: remember there where prompts ended, and begin there with the next of their kind")
        ->type_name("FILE");
    parser.add_option("--system", o->system, "system prompt of a chat")->type_name("TEXT");
    parser.add_option("--chat-template", o->chat_template, "chat format, by the name of its kind or as a template in a file (default: the model's)")
        ->type_name("NAME|FILE");
    parser.add_option("--pre-tokenizer", o->pre_tokenizer, "override the file's pre-tokenizer")->type_name("NAME");
    add_engine_options(parser, o);
}

void add_token_plans(CLI::App& parser, RunOptions* o) {
    parser.add_option("--token-plans", o->token_plans, "of --precision auto: plans by which token is read, as weir-sched fit writes them, instead of by entropy")
        ->type_name("FILE");
}

void add_precision_trace(CLI::App& parser, RunOptions* o) {
    parser.add_option("--trace-precision", o->trace_precision, "of --precision auto: record each token's entropy and plan")->type_name("FILE");
}

void add_run_options(CLI::App& parser, RunOptions* o) {
    parser.add_option("-p,--prompt", o->prompt, "text to continue")->type_name("TEXT");
    parser.add_option("-f,--file", o->prompt_file, "read the prompt from a file, - for standard input")->type_name("FILE");
    parser.add_option("-n,--predict", o->n_tokens, "tokens to generate at most, -1 until the answer ends")->capture_default_str()
        ->check(CLI::Range(-1LL, 1LL << 31));
    add_choice<bool>(parser, "--adapt-threads", &o->adapt_threads, {{"on", true}, {"off", false}},
                     "on (default): decode with fewer threads while reads bound and that is faster; off: always with all");

    parser.add_flag("--ignore-eos", o->ignore_end, "go on after an end token")->group("Sampling");

    parser.add_option_function<std::string>("--budget-script",
        [o](const std::string& text) { o->budget_script = parse_timed_sizes(text, "--budget-script"); })->group("");  // for soak tests

    parser.add_flag("--chat", o->chat, "wrap the prompt as a question in the model's chat format");
    parser.add_option("--trace-experts", o->trace_experts, "record which experts each token used, layer by layer (bench/paging_trace.h)")
        ->type_name("FILE");
    parser.add_option("--replay-experts", o->replay_experts, "route by such a record instead: nonsense as text, right as load")
        ->type_name("FILE");
    add_precision_trace(parser, o);
    parser.add_option("--deadline-ms", o->deadline_ms, "time for a token: what 8 or 6 bits read beyond 4 and has not come by then is done without, which is reported (native files, uffd)")
        ->check(whole_number(1, 3'600'000));
    parser.add_option("--draft", o->drafts, "draft tokens, several of which are then verified in one pass, for the same answer sooner: by lookup in the text, by a "
                                            "lower level of a native file, by a small model's file of the same vocabulary; may be given again")
        ->type_name("lookup|6|4|3|2|FILE")->allow_extra_args(false);
    parser.add_option("--draft-max", o->most_drafts, "tokens that are drafted at a time at most")->capture_default_str()
        ->check(CLI::Range(size_t{1}, kMostDrafts));
    parser.add_option("--draft-head", o->draft_head, "tokens of the vocabulary that a level drafts, the likely ones and those of the text; 0: all")
        ->capture_default_str();
    add_choice<bool>(parser, "--draft-adapt", &o->adapt_drafts, {{"on", true}, {"off", false}},
                     "on (default): as many, and by whom, as brings the most tokens a second; off: always --draft-max, by the first that can");
    parser.add_option("--warmup", o->warmup_tokens, "tokens before the figures per token are taken")->capture_default_str()
        ->check(CLI::Range(size_t{1}, size_t{1} << 20));
    parser.add_flag("-q,--quiet", o->quiet, "no configuration, no statistics");
    add_answer_options(parser, o);
}

void check_answer_options(const RunOptions& o) {
    // NaN passes every range.
    for (const float value : {o.sampler.temperature, o.sampler.top_p, o.sampler.min_p, o.sampler.repeat_penalty})
        if (!std::isfinite(value)) throw UsageError("--temp, --top-p, --min-p and --repeat-penalty take numbers");
    const bool with_auto = o.precision == kAutoPrecision;
    if (!with_auto && !(o.sensitivity + o.token_plans + o.plan_memory + o.trace_precision).empty())
        throw UsageError("--sensitivity, --token-plans, --plan-memory and --trace-precision belong to --precision auto");
    if (with_auto && !o.precision_plan.empty()) throw UsageError("--precision and --precision-plan together: give one");
}

void check_run_options(const RunOptions& o) {
    if (o.prompt.has_value() == !o.prompt_file.empty())
        throw UsageError(o.prompt ? "-p and -f together: give one prompt" : "no prompt: give -p TEXT, -f FILE or -f - for standard input");
    check_answer_options(o);
    if (!o.budget_script.empty() && o.store.mode != PagingMode::kUffd)
        throw UsageError("--budget-script changes the budget of --paging uffd only");
    if (o.precision == kAutoPrecision && !o.drafts.empty()) throw UsageError("--draft and --precision auto together: drafts are verified at one precision; use auto-exact");
    if (o.deadline_ms != 0 && (!o.drafts.empty() || o.precision == kExactPrecision))
        throw UsageError("--deadline-ms and drafts together: an answer is verified at one precision, or has what comes in time");
    if (o.deadline_ms != 0 && (o.store.mode != PagingMode::kUffd || !o.store.gates))
        throw UsageError("--deadline-ms takes --paging uffd with its gates: elsewhere nobody knows what is late");
    if (!o.drafts.empty() && !(o.trace_experts + o.replay_experts).empty())
        throw UsageError("--trace-experts and --replay-experts go token by token, and --draft does not");
    std::vector<std::string> drafts = o.drafts;
    std::sort(drafts.begin(), drafts.end());
    if (const auto twice = std::adjacent_find(drafts.begin(), drafts.end()); twice != drafts.end()) throw UsageError("--draft " + *twice + " twice");
    if (o.draft_head != 0 && o.draft_head < kLeastDraftHead)
        throw UsageError("--draft-head " + std::to_string(o.draft_head) + ": give at least " + std::to_string(kLeastDraftHead) + " tokens, or 0 for all");
    if (o.system && !o.chat) throw UsageError("--system without --chat has no place to go");
    if (!o.chat_template.empty() && !o.chat) throw UsageError("--chat-template without --chat has nothing to format");
}

void set_exact_precision(RunOptions* o) {
    if (o->precision != kExactPrecision) return;
    if (!o->precision_plan.empty()) throw UsageError("--precision and --precision-plan together: give one");
    o->precision = 8;
    if (o->drafts.empty()) o->drafts = {"4"};
}

}  // namespace weir
