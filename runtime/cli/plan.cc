// `weir plan`: what a run with a budget will come to, before anything is loaded. Speeds are measured just before (a second
// of reading the file, a second of computing), or the device's is given; everything else is the run's own arithmetic.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>

#include "pager/device_probe.h"
#include "pager/system.h"
#include "pager/uffd.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/format.h"
#include "runtime/cli/loaded_model.h"
#include "runtime/cli/option_checks.h"
#include "runtime/cli/plan_report.h"
#include "runtime/cli/run_budget.h"
#include "runtime/cli/terminal.h"
#include "runtime/engine/expert_groups.h"
#include "runtime/engine/expert_trace.h"
#include "runtime/engine/paging_shape.h"
#include "runtime/error.h"

namespace weir {
namespace {

// The pager keeps 16 Extents in flight.
constexpr size_t kDepth = 16;
constexpr uint64_t kDeviceBytes = uint64_t{4} << 30;
constexpr double kDeviceSeconds = 1;
constexpr double kSecondsPerPart = 0.12;
// Reading beside computing: reads begin first and end last.
constexpr double kReadBeside = 0.6;
constexpr double kComputeBeside = 0.4;
// Rows of the table, as shares of the budget.
constexpr double kOtherBudgets[] = {0.5, 0.75, 1, 1.25, 1.5, 2};
// What a matrix may be quantised to, finest first.
constexpr kernels::Type kOtherTypes[] = {kernels::Type::kQ8_0, kernels::Type::kQ6_K, kernels::Type::kQ5_K,
                                         kernels::Type::kQ4_K, kernels::Type::kQ3_K, kernels::Type::kQ2_K};
constexpr size_t kMostOtherTypes = 3;
// A layer's groups of matrices: q, k and v; output; gate and up; down. The team meets after each (which the probe
// measures with it), and once more after attention.
constexpr size_t kGroupsPerLayer = 4;

struct Options {
    RunOptions run;
    double device_gbps = 0;
    double expert_skew = 0;
    std::string expert_trace;
    std::optional<Tiers> tiers;
    bool json = false;
};

Tiers parse_tiers(const std::string& text) {
    Tiers tiers;
    const char* const end = text.data() + text.size();
    const auto [comma, error] = std::from_chars(text.data(), end, tiers.activations);
    const bool first = error == std::errc() && comma != end && *comma == ',';
    const auto [rest, second_error] = first ? std::from_chars(comma + 1, end, tiers.weights) : std::from_chars_result{comma, error};
    if (!first || second_error != std::errc() || rest != end || !(tiers.activations > 0) || !(tiers.weights > 0) ||
        tiers.activations + tiers.weights > 100)
        throw UsageError("--tiers " + text + ": two shares of the budget in per cent, 100 together at most: 60,25");
    return tiers;
}

double bits_per_element(std::span<const ComputePart> parts) {
    double bits = 0, elements = 0;
    for (const ComputePart& part : parts) {
        bits += 8 * static_cast<double>(part.bytes);
        elements += static_cast<double>(part.elements);
    }
    return elements > 0 ? bits / elements : 0;
}

double bits_of(kernels::Type type) {
    const kernels::TypeTraits& t = kernels::traits(type);
    return 8.0 * t.block_bytes / t.block_elements;
}

// The parts with every matrix that takes more bits than `type` quantised to it, where its rows allow.
std::vector<ComputePart> at_type(std::vector<ComputePart> parts, kernels::Type type) {
    const kernels::TypeTraits& t = kernels::traits(type);
    std::vector<ComputePart> out;
    for (ComputePart& part : parts) {
        if (part.cols % t.block_elements == 0 && bits_of(part.type) > bits_of(type)) {
            part.form = part.form == kernels::Activation::kF32 ? kernels::Activation::kInt8 : part.form;
            part.type = type;
            part.bytes = part.elements / t.block_elements * t.block_bytes;
        }
        const auto same = std::find_if(out.begin(), out.end(), [&](const ComputePart& o) { return o.type == part.type && o.form == part.form; });
        if (same == out.end()) {
            out.push_back(part);
        } else {
            same->bytes += part.bytes;
            same->elements += part.elements;
        }
    }
    return out;
}

uint64_t bytes_of(std::span<const ComputePart> parts) {
    uint64_t bytes = 0;
    for (const ComputePart& part : parts) bytes += part.bytes;
    return bytes;
}

double seconds_of(std::span<const ComputePart> parts) {
    double seconds = 0;
    for (const ComputePart& part : parts) seconds += static_cast<double>(part.bytes) / part.bytes_per_s;
    return seconds;
}

struct Alternative {
    std::string name;
    std::vector<ComputePart> parts;
};

// The next types with fewer bits than the model has on average.
std::vector<Alternative> finer_to_coarser(const std::vector<ComputePart>& parts) {
    std::vector<Alternative> out;
    const double bits = bits_per_element(parts);
    for (const kernels::Type type : kOtherTypes)
        if (out.size() < kMostOtherTypes && bits_of(type) < bits - 0.5) out.push_back({kernels::traits(type).name, at_type(parts, type)});
    return out;
}

// The same for a native file: its levels that take fewer bits than the plan.
std::vector<Alternative> lower_levels(const GgufFile& file, const ModelConfig& config, const RunOptions& o, const std::vector<ComputePart>& parts) {
    std::vector<Alternative> out;
    const double bits = bits_per_element(parts);
    for (auto level = std::rbegin(kernels::kLevels); level != std::rend(kernels::kLevels); ++level) {
        const int number = static_cast<int>(*level);
        if (number > bits - 1) continue;
        const sched::Plan plan = sched::uniform_plan(config.n_layers, number);
        const ModelMap map = build_model_map(file, config, pager::page_size(), false, {plan});
        out.push_back({"level " + std::to_string(number), compute_parts(map, chosen_activations(o), 1, plan)});
    }
    return out;
}

// Fills the speed of every part, in one go over one stretch of memory. Returns the seconds of a token that the team meets
// for without a matrix.
double measure_kernels(const kernels::KernelSet& kernels, size_t threads, size_t n_layers, uint64_t memory,
                       std::vector<ComputePart>* parts, std::vector<Alternative>* alternatives) {
    std::vector<ComputePart> all = *parts;
    for (const Alternative& other : *alternatives) all.insert(all.end(), other.parts.begin(), other.parts.end());
    Team team(threads);
    const uint64_t group_bytes = bytes_of(*parts) / (kGroupsPerLayer * n_layers + 1);
    const double meeting_s = probe_compute(kernels, team, {kSecondsPerPart, group_bytes, memory}, all);
    auto from = all.begin();
    const auto take = [&](std::vector<ComputePart>* to) {
        std::copy_n(from, to->size(), to->begin());
        from += static_cast<ptrdiff_t>(to->size());
    };
    take(parts);
    for (Alternative& other : *alternatives) take(&other.parts);
    return meeting_s * static_cast<double>(n_layers + 1);
}

// The first rung of userfaultfd decides how pages get into place; without one a run pages otherwise, or not at all.
bool copies_pages(std::string* note) {
    try {
        if (pager::Uffd(pager::UffdSource::kAuto).has_move()) return false;
        *note = "this kernel has no UFFDIO_MOVE: every byte that streams is copied once, which the figures leave out";
        return true;
    } catch (const std::runtime_error&) {
        *note = "userfaultfd cannot be had here and the plan is for paging by it; a run goes on with --paging advised, which is slower: weir doctor says what to do";
        return false;
    }
}

void measure_device(const Options& options, const pager::File& file, size_t depth, PlanReport* report) {
    if (options.device_gbps > 0) {
        report->device_bytes_per_s = options.device_gbps * 1e9;
        report->device = "as given";
        return;
    }
    const pager::DeviceSpeed speed = pager::probe_device(file, depth, kDeviceBytes, kDeviceSeconds);
    report->device_bytes_per_s = speed.bytes_per_s;
    report->device = std::string("measured: ") + std::to_string(speed.depth) + " reads of " + format_bytes(speed.read_bytes) +
                     " at once, " + (file.direct() ? "direct" : "through the page cache");
}

// The largest part of the walk computed while the file is read, each held against what it does alone.
Together measure_together(const kernels::KernelSet& kernels, size_t threads, const ComputeProbeOptions& probe, ComputePart part,
                          const pager::File& file, size_t depth) {
    const double alone = part.bytes_per_s;
    const double device_alone = pager::probe_device(file, depth, kDeviceBytes, kReadBeside).bytes_per_s;
    auto read = std::async(std::launch::async, [&] { return pager::probe_device(file, depth, kDeviceBytes, kReadBeside); });
    Team team(threads);
    (void)probe_compute(kernels, team, probe, {&part, 1});
    const auto share = [](double beside, double alone) { return alone > 0 ? std::clamp(beside / alone, 0.05, 1.0) : 1.0; };
    return {share(part.bytes_per_s, alone), share(read.get().bytes_per_s, device_alone)};
}

// context_within: the largest context whose KV cache takes so many bytes.
TiersOutcome try_tiers(const Tiers& tiers, PlanInput input, const std::function<size_t(uint64_t bytes)>& context_within) {
    TiersOutcome out;
    out.tiers = tiers;
    const auto part = [&](double percent) { return static_cast<uint64_t>(static_cast<double>(*input.budget.ram) * percent / 100); };
    out.activations_bytes = part(tiers.activations);
    out.weights_bytes = part(tiers.weights);
    const uint64_t work = input.budget.activations;
    out.context = out.activations_bytes <= work ? 0 : context_within(out.activations_bytes - work);
    input.budget.weights_ram = out.weights_bytes;
    if (input.budget.kv_cache + work <= out.activations_bytes) out.plan = plan_at(input, *input.budget.ram);
    return out;
}

int plan(const Options& options) {
    const RunOptions& o = options.run;
    const kernels::KernelSet& kernels = chosen_kernels();

    // As a run begins, so that as much is resident when the budget is divided.
    const ModelFile opened(o.model, "");
    const GgufFile& file = opened.file;
    const ModelConfig& config = opened.config;
    const bool native = file.native() != nullptr;
    if (native && config.n_experts != 0)
        throw Error(file.path() + ": weir plan knows native files without experts only; weir run FILE --precision N says what this one takes");
    const std::vector<sched::Plan> plans = chosen_plans(o, file, config);
    const size_t threads = o.threads != 0 ? o.threads : default_thread_count();
    const size_t context = choose_context(o, config);
    const pager::File weights = [&] {
        try {
            return pager::File::open(o.model, pager::IoMode::kAuto);
        } catch (const std::runtime_error& error) {
            throw Error(error.what());
        }
    }();
    const ModelMap map = build_model_map(file, config, weights.granule(), !native, plans);
    if (config.n_experts == 0 && !options.expert_trace.empty())
        throw UsageError("--expert-trace wants a model with experts, and this one has none");
    std::optional<ExpertTraceReader> trace;
    if (!options.expert_trace.empty()) trace.emplace(options.expert_trace, config);

    PlanReport report;
    PlanInput in;
    const BufferShape shape = {o.batch, 1, context, threads};
    in.budget = budget_input(o, PagingMode::kUffd, map, config, threads, KvCache::bytes(config, o.kv_type, context, o.batch),
                             ActivationBuffers::bytes(config, shape));
    if (!in.budget.ram) in.budget.ram = in.budget.limits.sensible();
    in.image_bytes = map.image_bytes;
    in.longest_row_bytes = longest_row_bytes(map, true);
    in.experts = {gather_experts(map, config.n_experts, weights.granule()).layout, config.n_experts, config.n_experts_used,
                  options.expert_skew, trace ? &*trace : nullptr};
    const double expert_share =
        config.n_experts == 0 ? 1 : static_cast<double>(config.n_experts_used) / static_cast<double>(config.n_experts);
    in.row_bytes = config.tied_head ? 0 : kernels::row_bytes(map.embedding->type, map.embedding->dims[0]);  // kept whole in native files, too
    in.granule = weights.granule();
    in.copies = copies_pages(&report.note);
    (void)make_plan(in);  // a budget that does not do is told before anything is measured

    ProgressLine progress;
    const uint64_t allowed = in.budget.limits.sensible() / 4;
    const size_t depth = std::clamp<uint64_t>(allowed / (2u << 20), 1, kDepth);
    progress.show("reading the model file for a second");
    try {
        measure_device(options, weights, depth, &report);
    } catch (const std::runtime_error& error) {
        throw Error(error.what());
    }
    in.device_bytes_per_s = report.device_bytes_per_s;

    progress.show("computing for a second");
    report.parts = compute_parts(map, chosen_activations(o), expert_share, native ? plans.front() : sched::Plan{});
    std::vector<Alternative> alternatives = native ? lower_levels(file, config, o, report.parts) : finer_to_coarser(report.parts);
    // A token of a small model walks no more than its weights, of which the caches may hold a part in a run as well.
    const uint64_t memory = probe_memory(std::min<uint64_t>(allowed, map.weights_bytes));
    const double meetings_s = measure_kernels(kernels, threads, config.n_layers, memory, &report.parts, &alternatives);
    in.compute_s = seconds_of(report.parts) + meetings_s;
    report.compute_bytes_per_s = static_cast<double>(bytes_of(report.parts)) / seconds_of(report.parts);

    progress.show("computing and reading for a second");
    try {
        in.together = report.together =
            measure_together(kernels, threads, {kComputeBeside, bytes_of(report.parts) / (kGroupsPerLayer * config.n_layers + 1), memory},
                             report.parts.front(), weights, depth);
    } catch (const std::runtime_error& error) {
        throw Error(error.what());
    }

    report.plan = make_plan(in);
    report.ram_for_all = ram_for_all(in);
    for (const double times : kOtherBudgets) {
        const auto ram = static_cast<uint64_t>(static_cast<double>(*in.budget.ram) * times);
        report.more_ram.push_back({format_bytes(ram), plan_at(in, ram)});
        if (ram > report.ram_for_all) break;
    }
    for (const Alternative& other : alternatives) {
        const double share = static_cast<double>(bytes_of(other.parts)) / static_cast<double>(bytes_of(report.parts));
        report.fewer_bits.push_back({other.name,
                                     plan_at(with_weights(in, share, seconds_of(other.parts) + meetings_s), *in.budget.ram)});
    }
    if (options.tiers) {
        report.tiers = try_tiers(*options.tiers, in, [&](uint64_t bytes) {
            return KvCache::context_within(bytes, config, o.kv_type, kMostContext, o.batch);
        });
    }

    report.model = o.model;
    report.shape = std::to_string(config.n_layers) + " layers of " + std::to_string(config.dim);
    report.weights_bytes = bytes_of(report.parts) + in.row_bytes;
    if (config.n_experts != 0) {
        report.experts = std::to_string(in.experts.n_groups()) + " of " + format_bytes(in.experts.group_bytes()) + ", " +
                         std::to_string(config.n_experts_used) + " of " + std::to_string(config.n_experts) +
                         " used by a token in each layer; " +
                         (trace ? "routing as recorded" : "routing assumed with a skew of " + format_fixed(options.expert_skew, 2));
    }
    report.threads = threads;
    report.context = context;
    report.batch = o.batch;
    report.kernels = std::string(kernels.name) + ", measured with " + std::to_string(threads) + " threads";
    progress.show("");
    write_stdout(options.json ? plan_json(report) : plan_text(report));
    return 0;
}

}  // namespace

Command add_plan(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    RunOptions& run = options->run;
    CLI::App* command = app.add_subcommand("plan", "what a run will come to: memory, reads, tokens/s, and what would help");
    command->add_option("model,-m,--model", run.model, "GGUF or native file")->required()->type_name("FILE");
    add_precision_options(*command, &run);
    command->add_option_function<std::string>("--ram", [&run](const std::string& text) { run.ram = parse_size(text, "--ram"); },
                                              "budget of the whole process (default: 80 % of what is available)")->type_name("SIZE|N%");
    command->add_option("-c,--ctx-size", run.context, "context in tokens (default: the model's, at most " + std::to_string(kDefaultContext) + ")")
        ->check(whole_number(0, kMostContext));
    command->add_option("-t,--threads", run.threads, "decode threads (default: physical cores)")->check(whole_number(1, 256));
    command->add_option("-b,--batch-size", run.batch, "tokens of the prompt computed together at most; a shorter prompt takes less memory")
        ->capture_default_str()->check(whole_number(1, 512));
    add_cache_options(*command, &run.kv_type);
    command->add_option_function<std::string>("--tiers", [options](const std::string& text) { options->tiers = parse_tiers(text); },
                                              "shares of the budget in per cent for activations with the KV cache and for weights: what that would cost")
        ->type_name("A,W");
    command->add_option("--device-gbps", options->device_gbps, "speed of the device in GB/s (default: measured on the file)")
        ->check(number(0.001, 1000));
    command->add_option("--expert-skew", options->expert_skew, "Zipf's exponent of how unevenly routers choose experts (default: 0, evenly)")
        ->check(number(0, 10));
    command->add_option("--expert-trace", options->expert_trace, "routing as weir run --trace-experts recorded it, instead")->type_name("FILE");
    command->add_flag("--json", options->json, "one JSON object instead of text");
    return [options] { return plan(*options); };
}

}  // namespace weir
