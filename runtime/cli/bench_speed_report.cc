// `weir bench speed`: what follows from the runs, as a table and as JSON.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/cli/bench_speed.h"
#include "runtime/cli/format.h"
#include "runtime/cli/run_report.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

// From this share of the time on, waiting for weights is what bounds.
constexpr double kStallShare = 0.3;

std::vector<double> values_of(const SpeedArm& arm, double SpeedRun::*value) {
    std::vector<double> values;
    for (const SpeedRun& run : arm.runs)
        if (run.error.empty()) values.push_back(run.*value);
    return values;
}

// bytes, ops: of one token.
SpeedFigure figure(const SpeedTest& test, const SpeedArm& arm, double SpeedRun::*speed, double bytes, double ops, double stall) {
    SpeedFigure f;
    f.tokens_per_s = spread_of(values_of(arm, speed));
    if (!f.tokens_per_s) return f;
    f.bytes_per_s = bytes * f.tokens_per_s->median;
    f.ops_per_s = ops * f.tokens_per_s->median;
    f.read_share = f.bytes_per_s / median(test.read_bytes_per_s);
    f.dot_share = f.ops_per_s / median(test.dots_per_s);
    f.bound = stall >= kStallShare ? "disk" : f.read_share > f.dot_share ? "memory" : "compute";
    return f;
}

std::set<std::string> errors_of(const SpeedArm& arm) {
    std::set<std::string> out;
    for (const SpeedRun& run : arm.runs)
        if (!run.error.empty()) out.insert(run.error);
    return out;
}

// How much faster ours is; nothing where one has no figure.
std::optional<double> ratio(const SpeedFigure& ours, const SpeedFigure& other) {
    if (!ours.tokens_per_s || !other.tokens_per_s || other.tokens_per_s->median <= 0) return std::nullopt;
    return ours.tokens_per_s->median / other.tokens_per_s->median;
}

using FigureOf = SpeedFigure (*)(const SpeedReport&, const SpeedTest&, const SpeedArm&);

void add_lines(const SpeedReport& r, const SpeedTest& test, const std::string& name, FigureOf of, std::vector<std::vector<std::string>>* lines) {
    const SpeedFigure ours = of(r, test, test.arms.front());
    for (const SpeedArm& arm : test.arms) {
        const SpeedFigure f = of(r, test, arm);
        if (!f.tokens_per_s) {
            lines->push_back({std::to_string(test.threads), name, printable(arm.name, 24), "-", "-", "-", "-", "-", "-", "-", "-"});
            continue;
        }
        const bool is_ours = &arm == &test.arms.front();
        const auto times = is_ours ? std::nullopt : ratio(ours, f);
        lines->push_back({std::to_string(test.threads), name, printable(arm.name, 24), format_fixed(f.tokens_per_s->median, 2),
                          format_fixed(f.tokens_per_s->least, 2) + "-" + format_fixed(f.tokens_per_s->most, 2),
                          format_fixed(f.bytes_per_s / 1e9, 2), format_fixed(100 * f.read_share, 0), format_fixed(f.ops_per_s / 1e9, 1),
                          format_fixed(100 * f.dot_share, 0), is_ours ? f.bound : "", times ? format_fixed(*times, 2) : ""});
    }
}

Json figure_json(const SpeedFigure& f, const SpeedFigure& ours, const SpeedArm& arm, double SpeedRun::*speed) {
    if (!f.tokens_per_s) return nullptr;
    Json out = {{"tokens_per_s", {{"median", f.tokens_per_s->median}, {"min", f.tokens_per_s->least}, {"max", f.tokens_per_s->most}}},
                {"runs", values_of(arm, speed)},
                {"bytes_per_s", f.bytes_per_s},
                {"read_share", f.read_share},
                {"ops_per_s", f.ops_per_s},
                {"dot_share", f.dot_share},
                {"bound", f.bound}};
    const auto times = ratio(ours, f);
    out["weir_speed_over"] = times ? Json(*times) : Json(nullptr);
    return out;
}

}  // namespace

SpeedFigure prefill_figure(const SpeedReport& r, const SpeedTest& test, const SpeedArm& arm) {
    const auto tokens = static_cast<double>(test.prompt);
    const double passes = static_cast<double>((test.prompt + r.batch - 1) / r.batch);
    return figure(test, arm, &SpeedRun::prefill, static_cast<double>(r.weights_bytes) * passes / tokens,
                  2 * (static_cast<double>(r.body_elements) + static_cast<double>(r.head_elements) / tokens), 0);
}

SpeedFigure decode_figure(const SpeedReport& r, const SpeedTest& test, const SpeedArm& arm) {
    const std::vector<double> stalls = values_of(arm, &SpeedRun::stall_share);
    return figure(test, arm, &SpeedRun::decode, static_cast<double>(r.token_bytes), 2 * static_cast<double>(r.body_elements + r.head_elements),
                  stalls.empty() ? 0 : median(stalls));
}

bool all_well(const SpeedReport& r) {
    for (const SpeedTest& test : r.tests)
        for (const SpeedArm& arm : test.arms)
            if (!errors_of(arm).empty()) return false;
    return true;
}

std::string speed_text(const SpeedReport& r) {
    const SpeedOptions& o = *r.options;
    std::string out = printable(std::filesystem::path(o.run.model).filename().string(), 80) + ", " + format_bytes(r.model_bytes) + ", kernels " +
                      r.kernels + ", activations " + activations_name(o.run) + ", paging " + r.paging + ", medians of " + std::to_string(o.runs) +
                      " runs in turn\n";
    std::vector<std::vector<std::string>> lines = {
        {"threads", "test", "arm", "tokens/s", "min-max", "GB/s", "of reads %", "Gop/s", "of dots %", "bound", "weir is"}};
    std::string below;
    for (const SpeedTest& test : r.tests) {
        const std::string prefill = "pp" + std::to_string(test.prompt), decode = "tg" + std::to_string(o.new_tokens) + " after " + prefill;
        add_lines(r, test, prefill, &prefill_figure, &lines);
        add_lines(r, test, decode, &decode_figure, &lines);
        below += std::to_string(test.threads) + (test.threads == 1 ? " thread, " : " threads, ") + prefill + ": the machine reads " +
                 format_fixed(median(test.read_bytes_per_s) / 1e9, 2) + " GB/s, int8 dots give " +
                 format_fixed(median(test.dots_per_s) / 1e9, 1) + " Gop/s\n";
        for (const SpeedArm& arm : test.arms)
            for (const std::string& error : errors_of(arm)) below += prefill + ", " + printable(arm.name, 24) + ": " + error + "\n";
    }
    out += format_table(lines, "rllrrrrrrlr") + below;
    return out + "GB/s: of weights, once for each pass; Gop/s: two for each weight that a token meets; beside both the share of what the machine "
                 "gave in the same minute. weir is: so many times as fast as that arm.\n";
}

std::string speed_json(const SpeedReport& r) {
    const SpeedOptions& o = *r.options;
    Json out = {{"model", std::filesystem::absolute(o.run.model).string()},
                {"model_bytes", r.model_bytes},
                {"kernels", r.kernels},
                {"activations", activations_name(o.run)},
                {"paging", r.paging},
                {"batch", r.batch},
                {"runs", o.runs},
                {"new_tokens", o.new_tokens},
                {"weights_bytes", r.weights_bytes},
                {"token_bytes", r.token_bytes},
                {"body_elements", r.body_elements},
                {"head_elements", r.head_elements}};
    Json& tests = out["tests"] = Json::array();
    for (const SpeedTest& test : r.tests) {
        Json arms = Json::array();
        for (const SpeedArm& arm : test.arms) {
            const SpeedArm& ours = test.arms.front();
            arms.push_back({{"arm", arm.name},
                            {"prefill", figure_json(prefill_figure(r, test, arm), prefill_figure(r, test, ours), arm, &SpeedRun::prefill)},
                            {"decode", figure_json(decode_figure(r, test, arm), decode_figure(r, test, ours), arm, &SpeedRun::decode)},
                            {"errors", errors_of(arm)}});
        }
        tests.push_back({{"threads", test.threads},
                         {"prompt_tokens", test.prompt},
                         {"read_bytes_per_s", test.read_bytes_per_s},
                         {"dots_per_s", test.dots_per_s},
                         {"arms", std::move(arms)}});
    }
    return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
