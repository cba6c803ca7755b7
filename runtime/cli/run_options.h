// The options of `weir run` as typed, before any file is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/cli/size_arg.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/weight_store.h"

namespace CLI {
class App;
}

namespace weir {

struct RunOptions {
    std::string model;
    std::optional<std::string> prompt;
    std::string prompt_file;
    long long n_tokens = 128;
    size_t context = 0;  // 0: min(trained, kDefaultContext)
    size_t threads = 0;  // 0: physical cores
    size_t batch = 512;
    SamplerOptions sampler;
    std::optional<uint64_t> seed;
    bool ignore_end = false;
    size_t warmup_tokens = 2;
    KvType kv_type = KvType::kF16;
    // Rounding of activations; kFine is the product's, which goes by "int8".
    kernels::Activation activations = kernels::Activation::kFine;
    bool adapt_threads = true;
    StoreOptions store;
    std::optional<int> precision;  // of a native file, bits; kAutoPrecision: a plan for each token; kExactPrecision: 8, drafted
    std::string precision_plan;    // or a file with a level for each shard
    std::string sensitivity;       // of auto: the table; empty: MODEL.sensitivity.json
    std::string token_plans;       // the plans by token that weir-sched fit has written
    std::string plan_memory;       // and a file that remembers where prompts ended
    std::string trace_precision;   // and one to record each token's rung in
    std::vector<std::string> drafts;  // who drafts: "lookup", a level of a native file, a model's file
    size_t most_drafts = 8;           // tokens at a time
    bool adapt_drafts = true;
    size_t draft_head = 16 << 10;     // rows of the head that a level drafts from; 0: all
    std::optional<SizeArg> ram;
    std::optional<SizeArg> weights_ram;
    bool pressure = true;
    std::vector<TimedSize> budget_script;  // other values for --ram, later
    bool chat = false;
    std::optional<std::string> system;
    std::string chat_template;  // a family's name or a file; empty: the model file's own
    std::string pre_tokenizer;
    uint32_t deadline_ms = 0;      // of each token's pass; 0: none
    std::string trace_experts;   // file to record the routers' choices in
    std::string replay_experts;  // and one to route by
    bool json = false;
    bool quiet = false;
};

constexpr int kAutoPrecision = 0;
constexpr int kExactPrecision = -1;
constexpr size_t kLeastDraftHead = 64;
constexpr size_t kDefaultContext = 4 << 10;
constexpr size_t kMostContext = size_t{1} << 24;

// Adds options to a subcommand's parser; they fill `options`, which must outlive the parse.
// What every command takes that computes with a model: the file, its memory and paging, activations, --json.
void add_engine_options(CLI::App& parser, RunOptions* options);
// Of these, --precision and --precision-plan alone.
void add_precision_options(CLI::App& parser, RunOptions* options);
// And what every command takes that answers: context, threads, sampling, chat format, files of --precision auto.
void add_answer_options(CLI::App& parser, RunOptions* options);
// --token-plans
void add_token_plans(CLI::App& parser, RunOptions* options);
// --trace-precision
void add_precision_trace(CLI::App& parser, RunOptions* options);
// All of `weir run`.
void add_run_options(CLI::App& parser, RunOptions* options);

// --cache-type-k, --cache-type-v
void add_cache_options(CLI::App& parser, KvType* type);

// What the parser cannot check: a prompt there must be, one only. Throws UsageError.
void check_run_options(const RunOptions& options);
// What auto-exact stands for, where it was asked for: level 8, and level 4 drafts unless others do.
void set_exact_precision(RunOptions* options);
// Of it, what every command that answers has to ask.
void check_answer_options(const RunOptions& options);

}  // namespace weir
