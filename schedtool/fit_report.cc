#include "schedtool/fit_report.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace weir::sched {
namespace {

using Json = nlohmann::ordered_json;

FitReport::Text look_at(const TokenTrace& trace) {
    FitReport::Text text;
    text.tokens = trace.n_tokens();
    for (size_t t = 0; t < trace.n_tokens(); ++t) text.windows += t == 0 || trace.windows[t] != trace.windows[t - 1];
    for (size_t p = 0; p < trace.plans.size(); ++p) text.plans.push_back(cost_of_plan(trace, p));
    return text;
}

[[gnu::format(printf, 2, 3)]] void print(std::string* to, const char* format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    *to += line;
}

double ratio(double kl, double mixed) { return mixed > 0 ? kl / mixed : 1; }

// Never: a threshold that no entropy is above or below.
std::string threshold(double nats) {
    if (std::isinf(nats)) return "never";
    std::string text;
    print(&text, "%.3f", nats);
    return text;
}

Json worth_json(const Worth& w) {
    return {{"bytes", w.scheduler.bytes},
            {"kl", w.scheduler.kl},
            {"mixed_kl", w.mixed},
            {"ratio", ratio(w.scheduler.kl, w.mixed)},
            {"interval_95", {w.low, w.high}},
            {"entropy_before_kl", w.before},
            {"entropy_own_kl", w.own},
            {"input_kl", w.input},
            {"oracle_kl", w.oracle}};
}

Json text_json(const FitReport::Text& text) {
    Json plans = Json::array();
    for (const Cost& cost : text.plans) plans.push_back({{"bytes", cost.bytes}, {"kl", cost.kl}});
    return {{"tokens", text.tokens}, {"windows", text.windows}, {"plans", plans}};
}

}  // namespace

FitReport fit_report(const TokenTrace& trace, const TokenTrace* held_out, uint64_t bytes, const std::string& name) {
    if (held_out != nullptr) {
        bool same = trace.plans.size() == held_out->plans.size();
        for (size_t p = 0; same && p < trace.plans.size(); ++p)
            same = trace.plans[p].plan == held_out->plans[p].plan && trace.plans[p].bytes == held_out->plans[p].bytes;
        if (!same) throw std::runtime_error(name + ": is of other plans than the trace that thresholds are fitted to");
    }
    FitReport report;
    report.held_out_name = name;
    report.fitted = look_at(trace);
    if (held_out != nullptr) report.held_out = look_at(*held_out);
    const TokenCosts costs(trace);
    const auto add = [&](double wanted, const Tuning& tuning) {
        const Worth held = held_out != nullptr ? worth_of(*held_out, tuning, costs) : Worth{};
        report.rows.push_back({wanted, tuning, worth_of(trace, tuning, costs), held});
    };
    add(0, {{}, 0, trace.plans.size() - 1});
    const auto fit = [&](double wanted) { add(wanted, fit_scheduler(trace, wanted)); };
    if (bytes != 0) fit(static_cast<double>(bytes));
    for (size_t p = 1; bytes == 0 && p < trace.plans.size(); ++p)
        fit(static_cast<double>(trace.plans[p - 1].bytes + trace.plans[p].bytes) / 2);
    return report;
}

std::string fit_text(const FitReport& r) {
    const bool held = !r.held_out_name.empty();
    std::string out;
    print(&out, "each plan alone: fitted on %zu tokens of %zu windows", r.fitted.tokens, r.fitted.windows);
    if (held) print(&out, ", held out %zu of %zu", r.held_out.tokens, r.held_out.windows);
    print(&out, "\n%4s  %12s  %11s", "plan", "bytes", "KL, nats");
    if (held) print(&out, "  %11s", "held out");
    for (size_t p = 0; p < r.fitted.plans.size(); ++p) {
        print(&out, "\n%4zu  %12.0f  %11.6f", p, r.fitted.plans[p].bytes, r.fitted.plans[p].kl);
        if (held) print(&out, "  %11.6f", r.held_out.plans[p].kl);
    }
    out +=
        "\n\nfitted: between which plans to move, raise above and lower below an entropy, unsure below a margin, sure "
        "tokens in a row\n";
    print(&out, "%12s  %7s  %7s  %7s  %6s  %4s\n", "wanted", "plans", "raise", "lower", "margin", "sure");
    for (const FitReport::Row& row : r.rows) {
        if (row.wanted == 0)
            print(&out, "%12s", "as run has");
        else
            print(&out, "%12.0f", row.wanted);
        const SchedulerOptions& o = row.tuning.options;
        const std::string plans = std::to_string(row.tuning.first) + "-" + std::to_string(row.tuning.last);
        print(&out, "  %7s  %7s  %7s  %6.3f  %4zu\n", plans.c_str(), threshold(o.raise_above).c_str(),
              threshold(o.lower_below).c_str(), o.unsure_margin, o.sure_tokens);
    }
    out += held ? "\nwhat they are worth, held out"
                : "\nwhat they are worth on the very text that they were fitted to (--held-out has another)";
    out +=
        "; mixed: the same plans by chance at the same bytes; in shares of its KL: the scheduler's,\n"
        "the best plan by entropy before the token, by the token's own, by which token is read (its mean KL in the text that was\n"
        "fitted to), and by an oracle that knows each token's KL\n";
    print(&out, "%12s  %12s  %10s  %10s  %6s  %14s  %6s  %6s  %6s  %6s\n", "wanted", "bytes", "KL, nats", "mixed", "share",
          "95 %", "before", "own", "input", "oracle");
    for (const FitReport::Row& row : r.rows) {
        const Worth& w = held ? row.held_out : row.fitted;
        if (row.wanted == 0)
            print(&out, "%12s", "as run has");
        else
            print(&out, "%12.0f", row.wanted);
        print(&out, "  %12.0f  %10.6f  %10.6f  %6.3f  %5.3f to %5.3f  %6.3f  %6.3f  %6.3f  %6.3f\n", w.scheduler.bytes,
              w.scheduler.kl, w.mixed, ratio(w.scheduler.kl, w.mixed), w.low, w.high, ratio(w.before, w.mixed),
              ratio(w.own, w.mixed), ratio(w.input, w.mixed), ratio(w.oracle, w.mixed));
    }
    return out;
}

std::string fit_json(const FitReport& r) {
    const bool held = !r.held_out_name.empty();
    Json rows = Json::array();
    for (const FitReport::Row& row : r.rows) {
        const SchedulerOptions& o = row.tuning.options;
        rows.push_back({{"wanted_bytes", row.wanted == 0 ? Json(nullptr) : Json(row.wanted)},
                        {"plans", {row.tuning.first, row.tuning.last}},
                        // null: never
                        {"thresholds",
                         {{"raise_above", std::isinf(o.raise_above) ? Json(nullptr) : Json(o.raise_above)},
                          {"lower_below", std::isinf(o.lower_below) ? Json(nullptr) : Json(o.lower_below)},
                          {"unsure_margin", o.unsure_margin},
                          {"sure_tokens", o.sure_tokens}}},
                        {"fitted", worth_json(row.fitted)},
                        {"held_out", held ? worth_json(row.held_out) : Json(nullptr)}});
    }
    const Json out = {
        {"fitted", text_json(r.fitted)}, {"held_out", held ? text_json(r.held_out) : Json(nullptr)}, {"rows", rows}};
    return out.dump(1) + "\n";
}

}  // namespace weir::sched
