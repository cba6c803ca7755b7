// What paging policies read, on recorded and on made-up traces: bytes per token for LRU, CLOCK, LFU, aged LFU, ours (the
// code that the pager runs) and Belady's optimum, at several budgets.
//
//   policy_sim                                   the made-up traces at 90, 75, 50 and 25 % of what they touch
//   policy_sim bench/traces/*.trace --json       recorded ones, see paging_trace.h
//   policy_sim --only zipf-1.0 --write t.trace   writes a made-up one
//
// The optimum reads on demand, with every frame to keep things in. Where dense Extents stream, ours sets a ring of frames
// aside for reads in flight, which keep nothing; "ring aside" is the optimum without those frames, the least that can be
// read with as many reads in flight.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/paging_trace.h"
#include "bench/replay.h"

namespace {

using namespace weir::bench;

constexpr Policy kPolicies[] = {Policy::kLru,     Policy::kClock, Policy::kLfu,
                                Policy::kAgedLfu, Policy::kOurs,  Policy::kBelady};

struct Options {
    std::vector<std::string> files;
    std::vector<std::string> only;
    std::vector<unsigned> percents = {90, 75, 50, 25};
    long warm_up = -1;
    bool json = false;
    std::string write;
};

double mb_per_token(const Trace& trace, const Reads& reads) {
    return static_cast<double>(reads.units * trace.unit_bytes) / 1e6 / static_cast<double>(std::max<uint64_t>(1, reads.tokens));
}

struct Row {
    unsigned percent;
    uint64_t units;
    std::vector<double> mb;  // per token, in the order of kPolicies
    double for_hints_mb;
    uint64_t ring;
    double ring_aside_mb;

    double optimum() const { return mb.back(); }
    double ours() const { return mb[mb.size() - 2]; }
};

Row measure(const Trace& trace, unsigned percent, size_t warm_up) {
    Row row;
    row.percent = percent;
    row.units = trace.total_units() * percent / 100;
    for (const Policy p : kPolicies) {
        const Reads reads = replay(trace, p, row.units, warm_up);
        row.mb.push_back(mb_per_token(trace, reads));
        if (p == Policy::kOurs)
            row.for_hints_mb = static_cast<double>(reads.for_hints * trace.unit_bytes) / 1e6 / static_cast<double>(std::max<uint64_t>(1, reads.tokens));
    }
    row.ring = ring_units(trace, row.units);
    row.ring_aside_mb = row.ring < 2 ? row.optimum()
                                     : mb_per_token(trace, replay(trace, Policy::kBelady, row.units - (row.ring - 1), warm_up));
    return row;
}

std::string ratio(double a, double b) {
    if (b == 0) return "-";
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", a / b);
    return text;
}

void print_head(const Trace& trace, size_t warm_up) {
    std::printf("\n%s: %zu tokens (%zu to warm up), %zu items, %.1f MB; MB read per token\n", trace.name.c_str(),
                trace.n_tokens(), warm_up, trace.n_items(),
                static_cast<double>(trace.total_units() * trace.unit_bytes) / 1e6);
    std::printf("%8s", "budget");
    for (const Policy p : kPolicies) std::printf(" %9s", policy_name(p));
    std::printf(" %9s %13s %6s %11s\n", "for hints", "ours/optimum", "ring", "/ring aside");
}

void print(const Row& row) {
    std::printf("%6u %%", row.percent);
    for (const double mb : row.mb) std::printf(" %9.1f", mb);
    std::printf(" %9.1f %13s %6llu %11s\n", row.for_hints_mb, ratio(row.ours(), row.optimum()).c_str(),
                static_cast<unsigned long long>(row.ring), ratio(row.ours(), row.ring_aside_mb).c_str());
}

nlohmann::ordered_json to_json(const Row& row) {
    nlohmann::ordered_json j = {{"percent", row.percent}, {"units", row.units}};
    for (size_t i = 0; i < row.mb.size(); ++i) j["mb_per_token"][policy_name(kPolicies[i])] = row.mb[i];
    j["mb_per_token"]["for hints not used"] = row.for_hints_mb;
    j["ring_units"] = row.ring;
    j["mb_per_token"]["optimum, ring aside"] = row.ring_aside_mb;
    return j;
}

Trace load(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error(path + ": cannot open");
    return read_trace(in, path);
}

void compare(const Trace& trace, const Options& options, nlohmann::ordered_json* all) {
    const size_t tokens = trace.n_tokens();
    const size_t warm_up = options.warm_up < 0 ? tokens / 4 : static_cast<size_t>(options.warm_up);
    if (warm_up >= tokens) throw std::runtime_error(trace.name + ": no token is left after the warm-up");
    nlohmann::ordered_json j = {{"trace", trace.name}, {"tokens", tokens}, {"warm_up", warm_up},
                                {"unit_bytes", trace.unit_bytes}, {"units", trace.total_units()}};
    if (!options.json) print_head(trace, warm_up);
    for (const unsigned percent : options.percents) {
        const Row row = measure(trace, percent, warm_up);
        if (options.json)
            j["budgets"].push_back(to_json(row));
        else
            print(row);
        std::fflush(stdout);
    }
    if (options.json) all->push_back(std::move(j));
}

void run(const Options& options) {
    std::vector<std::string> names = options.only;
    if (names.empty() && options.files.empty()) names = synthetic_names();
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    if (!options.write.empty()) {
        if (names.size() != 1) throw std::runtime_error("--write takes one made-up trace: name it by --only");
        std::ofstream out(options.write);
        write_trace(make_synthetic(names[0]), out);
        if (!out.flush()) throw std::runtime_error(options.write + ": cannot write");
        return;
    }
    for (const std::string& path : options.files) compare(load(path), options, &all);
    for (const std::string& name : names) compare(make_synthetic(name), options, &all);
    if (options.json) std::cout << all.dump(2) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("What paging policies read, on recorded and on made-up traces", "policy_sim");
    app.add_option("traces", options.files, "recorded traces; made-up ones where there is none");
    app.add_option("--only", options.only, "made-up traces by name")
        ->check(CLI::IsMember(synthetic_names()))->delimiter(',')->allow_extra_args(false);
    app.add_option("--budget", options.percents, "percent of what the trace touches")
        ->check(CLI::Range(1, 100))->delimiter(',')->allow_extra_args(false);
    app.add_option("--warm-up", options.warm_up, "tokens that do not count (default: a quarter)")
        ->check(CLI::Range(0L, 1L << 30));
    app.add_flag("--json", options.json, "one array on stdout");
    app.add_option("--write", options.write, "write the one made-up trace to a file and end");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? 0 : 2;
    }
    try {
        run(options);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "policy_sim: %s\n", e.what());
        return 1;
    }
    return 0;
}
