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
    return {{"bytes", w.rule.bytes},
            {"kl", w.rule.kl},
            {"mixed_kl", w.mixed},
            {"ratio", w.share()},
            {"interval_95", {w.low, w.high}}};
}

Json rules_json(const FitReport::Rules& r) {
    return {{"by_entropy", worth_json(r.entropy)},
            {"by_token", worth_json(r.token)},
            {"entropy_before_kl", r.bounds.before},
            {"entropy_own_kl", r.bounds.own},
            {"oracle_kl", r.bounds.oracle}};
}

FitReport::Rules rules_of(const TokenTrace& trace, const Tuning& tuning, const TokenPlans& by_token) {
    const Worth entropy = worth_of(trace, tuning);
    return {entropy, worth_of(trace, by_token), bounds_of(trace, entropy.rule.bytes)};
}

Json text_json(const FitReport::Text& text) {
    Json plans = Json::array();
    for (const Cost& cost : text.plans) plans.push_back({{"bytes", cost.bytes}, {"kl", cost.kl}});
    return {{"tokens", text.tokens}, {"windows", text.windows}, {"plans", plans}};
}

}  // namespace

FitReport fit_report(const TokenTrace& trace, const TokenTrace* held_out, uint64_t bytes, const std::string& name) {
    if (held_out != nullptr) {
        bool same = trace.model == held_out->model && trace.plans.size() == held_out->plans.size();
        for (size_t p = 0; same && p < trace.plans.size(); ++p)
            same = trace.plans[p].plan == held_out->plans[p].plan && trace.plans[p].bytes == held_out->plans[p].bytes;
        if (!same) throw std::runtime_error(name + ": is of another model, or of other plans than the trace that thresholds are fitted to");
    }
    FitReport report;
    report.held_out_name = name;
    report.fitted = look_at(trace);
    if (held_out != nullptr) report.held_out = look_at(*held_out);
    const auto add = [&](double wanted, const Tuning& tuning) {
        const TokenPlans by_token = fit_token_plans(trace, wanted != 0 ? wanted : cost_of(trace, tuning).bytes);
        const FitReport::Rules held = held_out != nullptr ? rules_of(*held_out, tuning, by_token) : FitReport::Rules{};
        report.rows.push_back({wanted, tuning, rules_of(trace, tuning, by_token), held});
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
        "; mixed: the same plans by chance at the same bytes; share: of its KL. By entropy with the thresholds\n"
        "above, by which token is read, and, at the bytes of the former, of the best plan by entropy before the token, by the\n"
        "token's own, and of an oracle that knows each token's KL\n";
    print(&out, "%12s  %7s  %12s  %10s  %10s  %6s  %14s  %6s  %6s  %6s\n", "wanted", "by", "bytes", "KL, nats", "mixed", "share",
          "95 %", "before", "own", "oracle");
    const auto line = [&](const char* by, const Worth& w) {
        print(&out, "  %7s  %12.0f  %10.6f  %10.6f  %6.3f  %5.3f to %5.3f", by, w.rule.bytes, w.rule.kl, w.mixed,
              w.share(), w.low, w.high);
    };
    for (const FitReport::Row& row : r.rows) {
        const FitReport::Rules& rules = held ? row.held_out : row.fitted;
        if (row.wanted == 0)
            print(&out, "%12s", "as run has");
        else
            print(&out, "%12.0f", row.wanted);
        line("entropy", rules.entropy);
        const double mixed = rules.entropy.mixed;
        print(&out, "  %6.3f  %6.3f  %6.3f\n%12s", ratio(rules.bounds.before, mixed), ratio(rules.bounds.own, mixed),
              ratio(rules.bounds.oracle, mixed), "");
        line("token", rules.token);
        out += "\n";
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
                        {"fitted", rules_json(row.fitted)},
                        {"held_out", held ? rules_json(row.held_out) : Json(nullptr)}});
    }
    const Json out = {
        {"fitted", text_json(r.fitted)}, {"held_out", held ? text_json(r.held_out) : Json(nullptr)}, {"rows", rows}};
    return out.dump(1) + "\n";
}

}  // namespace weir::sched
