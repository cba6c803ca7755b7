// The `weir-sched` program: looks at tables of sensitivities and makes plans from them, without a model.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "schedtool/fit_report.h"
#include "schedtool/pareto.h"
#include "schedtool/plan.h"
#include "schedtool/sensitivity.h"
#include "schedtool/simulate.h"

namespace {

using namespace weir::sched;

struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Of a table or a plan: one of a thousand layers has some hundred KiB. A trace has some 200 bytes a token and plan.
constexpr size_t kMostBytes = 16u << 20, kMostTraceBytes = 64u << 20;

std::string read_file(const std::string& path, size_t most = kMostBytes) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error(path + ": " + std::strerror(errno));
    if (std::filesystem::is_directory(path)) throw std::runtime_error(path + ": is a folder");
    std::string text(most + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (in.bad()) throw std::runtime_error(path + ": cannot be read: " + std::strerror(errno));
    text.resize(static_cast<size_t>(in.gcount()));
    if (text.size() > most)
        throw std::runtime_error(path + ": is larger than what it is taken for may be (" + std::to_string(most >> 20) +
                                 " MiB): another file?");
    return text;
}

Sensitivity read_table(const std::string& path) { return read_sensitivity(read_file(path), path); }

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// From a millionth of a nat, a blank, to a whole one.
char shade(double kl) {
    constexpr char kShades[] = " .:-=+*#%@";
    constexpr int kMost = sizeof kShades - 2;
    return kl <= 1e-6 ? kShades[0]
                      : kShades[std::min(kMost, static_cast<int>(std::ceil((std::log10(kl) + 6) * kMost / 6)))];
}

int show(const std::string& path, const std::string& plan_path) {
    const Sensitivity table = read_table(path);
    const size_t n_layers = table.n_layers();
    Plan plan;
    if (!plan_path.empty()) plan = read_plan(read_file(plan_path), n_layers, plan_path);
    std::printf(
        "KL divergence with one shard at 2, 3, 4, 6 bits, in nats: blank below 1e-6, then . : - = + * # %% @ up to "
        "1%s\n",
        plan.levels.empty() ? "" : "; behind it the plan's bits");
    std::printf("%9s", "");
    for (const char* const module : kModuleNames) std::printf("  %-*s", plan.levels.empty() ? 7 : 8, module);
    std::printf("\n");
    const auto cell = [&](size_t shard) {
        std::string text;
        for (size_t l = 0; l < kHighest; ++l) text += shade(table.shards[shard].kl[l]);
        if (!plan.levels.empty()) text += " " + std::to_string(plan.levels[shard]);
        std::printf("  [%s]%s", text.c_str(), plan.levels.empty() ? " " : "");
    };
    for (size_t layer = 0; layer < n_layers; ++layer) {
        std::printf("layer %3zu", layer);
        for (size_t m = 0; m < kModules; ++m) cell(layer * kModules + m);
        std::printf("\n");
    }
    std::printf("head     ");
    cell(head_of(n_layers));
    std::printf("\n%zu windows of %zu tokens\n", table.windows, table.window_tokens);
    for (const uint8_t level : kLevels) {
        const RatedPlan all = rate(table, uniform_plan(n_layers, level));
        std::printf("%d bits everywhere: %.1f MiB a token, predicted KL %.6f\n", level, mib(all.bytes), all.kl);
    }
    if (plan.levels.empty()) return 0;
    const RatedPlan rated = rate(table, plan);
    std::printf("the plan: %llu bytes a token (%.1f MiB), predicted KL %.6f\n", static_cast<unsigned long long>(rated.bytes),
                mib(rated.bytes), rated.kl);
    return 0;
}

int list(const std::string& path) {
    const Sensitivity table = read_table(path);
    std::printf("%6s  %12s  %10s  changed\n", "plan", "bytes", "KL");
    size_t n = 0;
    Plan before;
    for (const RatedPlan& rated : pareto_list(table)) {
        std::string changed = "8 bits everywhere";
        for (size_t s = 0; n > 0 && s < rated.plan.levels.size(); ++s)
            if (rated.plan.levels[s] != before.levels[s])
                changed = shard_name(s, table.n_layers()) + " to " + std::to_string(rated.plan.levels[s]);
        std::printf("%6zu  %12llu  %10.6f  %s\n", n++, static_cast<unsigned long long>(rated.bytes), rated.kl,
                    changed.c_str());
        before = rated.plan;
    }
    return 0;
}

struct PlanOptions {
    std::string table;
    unsigned long long bytes = 0;
    int level = 0;
    int prior = -1;
};

int plan(const PlanOptions& o) {
    if ((o.bytes != 0) + (o.level != 0) + (o.prior >= 0) != 1)
        throw UsageError("one of --bytes, --like and --prior says which plan is meant");
    const Sensitivity table = read_table(o.table);
    RatedPlan rated;
    if (o.prior >= 0) {
        const std::vector<Plan> priors = static_priors(table.n_layers());
        if (static_cast<size_t>(o.prior) >= priors.size())
            throw UsageError("--prior takes 0 to " + std::to_string(priors.size() - 1));
        rated = rate(table, priors[static_cast<size_t>(o.prior)]);
    } else {
        const uint64_t bytes = o.level != 0 ? rate(table, uniform_plan(table.n_layers(), o.level)).bytes : o.bytes;
        rated = best_within(table, bytes);
        if (rated.bytes > bytes)
            throw std::runtime_error("the coarsest plan takes " + std::to_string(rated.bytes) + " bytes a token, and " +
                                     std::to_string(bytes) + " are allowed");
    }
    std::printf("%s\n", plan_json(rated.plan).c_str());
    std::fprintf(stderr, "weir-sched: %llu bytes a token, predicted KL %.6f\n",
                 static_cast<unsigned long long>(rated.bytes), rated.kl);
    return 0;
}

int check(const std::string& path) {
    const Sensitivity table = read_table(path);
    size_t noisy = 0;
    for (const ShardCost& cost : table.shards)
        for (size_t l = 0; l < kHighest; ++l) noisy += cost.kl[l] < cost.kl[l + 1];
    std::printf(
        "%s: %zu layers, %zu windows of %zu tokens, of which %zu compared; %zu of %zu levels cost less than the level "
        "above (noise: more windows help)\n",
        path.c_str(), table.n_layers(), table.windows, table.window_tokens, table.scored_tokens, noisy,
        table.shards.size() * kHighest);
    if (table.windows == 0) throw std::runtime_error(path + ": holds no window yet; weir calibrate goes on with it");
    return 0;
}

TokenTrace read_tokens(const std::string& path) { return read_trace(read_file(path, kMostTraceBytes), path); }

struct FitOptions {
    std::string trace, held_out, output;
    unsigned long long bytes = 0;
    bool json = false;
};

void write_file(const std::string& path, const std::string& text) {
    std::ofstream out(path, std::ios::binary);
    out << text;
    out.close();
    if (!out) throw std::runtime_error(path + ": cannot write: " + std::strerror(errno));
}

int fit(const FitOptions& o) {
    if (!o.output.empty() && o.bytes == 0) throw UsageError("-o takes --bytes: plans by token are for some bytes a token");
    const TokenTrace trace = read_tokens(o.trace);
    std::optional<TokenTrace> held_out;
    if (!o.held_out.empty()) held_out = read_tokens(o.held_out);
    const FitReport report = fit_report(trace, held_out ? &*held_out : nullptr, o.bytes, o.held_out);
    if (!o.output.empty())
        write_file(o.output, token_plans_json(fit_token_plans(trace, static_cast<double>(o.bytes))));
    std::fputs((o.json ? fit_json(report) : fit_text(report)).c_str(), stdout);
    return 0;
}

struct SimulateOptions {
    std::string table;
    double device_gbps = 0, row_ms = 0;
    unsigned long long frames = 0;
    std::vector<double> compute_ms, shares, acceptance;
    int draft = 4;
    bool json = false;
};

// Finite and within bounds; NaN passes the parser's own.
void check_numbers(const char* option, const std::vector<double>& values, double least, double most) {
    for (const double value : values) {
        if (value >= least && value <= most) continue;
        char why[80];
        std::snprintf(why, sizeof why, " takes numbers from %g to %g", least, most);
        throw UsageError(option + std::string(why));
    }
}

int simulate(const SimulateOptions& o) {
    check_numbers("--device-gbps", {o.device_gbps}, 1e-6, 1e6);
    check_numbers("--row-ms", {o.row_ms}, 0, 1e9);
    check_numbers("--compute-ms", o.compute_ms, 1e-6, 1e9);
    check_numbers("--shares", o.shares, 0, 1e9);
    check_numbers("--acceptance", o.acceptance, 0, 1);
    if (!o.shares.empty() && *std::max_element(o.shares.begin(), o.shares.end()) == 0)
        throw UsageError("--shares are all 0");
    const Sensitivity table = read_table(o.table);
    Simulation simulation;
    simulation.device = {1e9 * o.device_gbps, o.frames, 1e-3 * o.row_ms};
    simulation.shares = o.shares;
    simulation.acceptance = o.acceptance;
    for (size_t i = 0; i < kLevels.size(); ++i) {
        const int level = kLevels[kHighest - i];
        if (level == o.draft) simulation.draft = i;
        simulation.plans.push_back({std::to_string(level) + " bits",
                                    rate(table, uniform_plan(table.n_layers(), level)).bytes, 1e-3 * o.compute_ms[i]});
    }
    std::fputs((o.json ? simulation_json(simulation) : simulation_text(simulation)).c_str(), stdout);
    return 0;
}

int run(int argc, char** argv) {
    CLI::App app("Looks at what bits cost, and plans which to read.", "weir-sched");
    app.require_subcommand(1);
    std::string table, plan_path;
    PlanOptions options;
    const auto with_table = [&](const char* name, const char* what, std::string* to) {
        CLI::App* const command = app.add_subcommand(name, what);
        command->add_option("table", *to, "made by weir calibrate")->required()->type_name("TABLE");
        return command;
    };
    CLI::App* const shows = with_table("show", "a heat map of layers, modules and levels", &table);
    shows->add_option("--plan", plan_path, "and the bits of this plan")->type_name("FILE");
    CLI::App* const lists = with_table("list", "the plans that no other beats, finest first", &table);
    CLI::App* const plans =
        with_table("plan", "write the best plan within some bytes, for weir run --precision-plan", &options.table);
    plans->add_option("--bytes", options.bytes, "that a token may read")->check(CLI::Range(1ull, 1ull << 50));
    plans->add_option("--like", options.level, "as many as this many bits everywhere take")
        ->check(CLI::IsMember({2, 3, 4, 6, 8}));
    plans->add_option("--prior", options.prior, "the plan of usual practice, by its number from 0, finest first")
        ->check(CLI::Range(0, 99));
    FitOptions fitted;
    CLI::App* const fits =
        app.add_subcommand("fit", "fit --precision auto, by entropy and by token, and say what it is worth");
    fits->add_option("trace", fitted.trace, "of a calibration text, by weir perplexity --kl REF --trace-tokens")
        ->required()
        ->type_name("TRACE");
    fits->add_option("--held-out", fitted.held_out, "another of a text that nothing was fitted to, for the figures")
        ->type_name("TRACE");
    fits->add_option("--bytes", fitted.bytes, "that a token may read on average (default: those of each plan in turn)")
        ->check(CLI::Range(1ull, 1ull << 50));
    fits->add_option("-o,--output", fitted.output,
                     "with --bytes: write plans by token there, for weir run --precision auto --token-plans")
        ->type_name("FILE");
    fits->add_flag("--json", fitted.json, "one JSON object");
    SimulateOptions simulated;
    CLI::App* const simulates =
        with_table("simulate", "tokens a second by formulas: levels, auto, auto-exact", &simulated.table);
    simulates->add_option("--device-gbps", simulated.device_gbps, "of reads, 10^9 bytes a second")->required();
    simulates
        ->add_option("--compute-ms", simulated.compute_ms, "of a token at 8, 6, 4, 3 and 2 bits, all weights in memory")
        ->required()
        ->delimiter(',')
        ->expected(kLevels.size());
    simulates->add_option("--frames", simulated.frames, "bytes that stay in memory (default: none)")
        ->check(CLI::Range(0ull, 1ull << 50));
    simulates->add_option("--shares", simulated.shares, "of tokens that auto computes at 8, 6, 4, 3 and 2 bits")
        ->delimiter(',')
        ->expected(kLevels.size());
    simulates->add_option("--acceptance", simulated.acceptance, "of drafts by their place, the last for all later ones")
        ->delimiter(',')
        ->expected(1, 1000);
    simulates->add_option("--draft", simulated.draft, "bits that drafts are made at")
        ->capture_default_str()
        ->check(CLI::IsMember({2, 3, 4, 6}));
    simulates->add_option("--row-ms", simulated.row_ms, "compute of each further row of a verifying pass (default: 0)");
    simulates->add_flag("--json", simulated.json, "one JSON object");
    CLI::App* const checks = with_table("check", "whether a file is a table, and how good", &table);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& success) {
        return app.exit(success);
    } catch (const CLI::ParseError& error) {
        throw UsageError(std::string(error.what()) + " (--help says more)");
    }
    if (shows->parsed()) return show(table, plan_path);
    if (lists->parsed()) return list(table);
    if (plans->parsed()) return plan(options);
    if (fits->parsed()) return fit(fitted);
    if (simulates->parsed()) return simulate(simulated);
    return checks->parsed() ? check(table) : 2;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const int status = run(argc, argv);
        return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? status : 1;
    } catch (const UsageError& error) {
        std::fprintf(stderr, "weir-sched: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "weir-sched: %s\n", error.what());
        return 1;
    }
}
