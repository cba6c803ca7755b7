#include "runtime/cli/ladder_trace.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/cli/format.h"
#include "runtime/model/partial_file.h"

namespace weir {
namespace {

std::vector<double> follow_kl(const LadderTrace& t) {
    std::vector<double> kl;
    for (const sched::WindowSums& w : t.follow) kl.push_back(w.kl / w.tokens);
    return kl;
}

}  // namespace

bool trace_ladder(const std::string& path, LadderProbe& probe, std::span<const TokenId> ids, size_t window,
                  AutoPrecision* precision, const std::function<bool(size_t)>& go_on, LadderTrace* trace) {
    const size_t n_plans = trace->plans.size();
    trace->kl.assign(n_plans, {});
    std::optional<PartialFile> file;
    if (!path.empty()) file.emplace(path);
    uint64_t end = 0;
    const auto write = [&](const std::string& text) {
        if (file) file->write(end, std::as_bytes(std::span(text)));
        end += text.size();
    };
    write(sched::trace_header(trace->fingerprint, trace->plans));
    for (size_t w = 0; w < ids.size() / window; ++w) {
        if (!go_on(w)) return false;
        const std::span<const sched::TokenAtPlan> scored = probe.score(ids.subspan(w * window, window));
        const size_t n = scored.size() / n_plans;
        std::vector<double> sum(n_plans);
        std::string lines;
        for (size_t t = 0; t < n; ++t) {
            const auto at = scored.subspan(t * n_plans, n_plans);
            lines += sched::trace_line(w, ids[w * window + LadderProbe::first_scored(window) + t], at);
            for (size_t p = 0; p < n_plans; ++p) sum[p] += at[p].kl;
        }
        write(lines);
        for (size_t p = 0; p < n_plans; ++p) trace->kl[p].push_back(sum[p] / static_cast<double>(n));
        if (precision != nullptr) trace->follow.push_back(probe.follow(ids.subspan(w * window, window), precision));
    }
    if (file) file->finish(end);
    return true;
}

std::string ladder_text(const LadderTrace& t) {
    std::vector<std::vector<std::string>> lines = {{"plan", "bytes a token", "predicted KL", "KL, nats", "95 %"}};
    for (size_t p = 0; p < t.plans.size(); ++p) {
        const Interval kl = bootstrap(t.kl[p]);
        lines.push_back({std::to_string(p), std::to_string(t.plans[p].bytes), format_fixed(t.plans[p].kl, 6),
                         format_fixed(kl.mean, 6), format_fixed(kl.low, 6) + " to " + format_fixed(kl.high, 6)});
    }
    if (t.follow.empty()) return format_table(lines, "rrrrr");
    const sched::Worth worth = sched::worth_of(t.plans, t.follow);
    const Interval kl = bootstrap(follow_kl(t));
    lines.push_back({"auto", format_fixed(worth.rule.bytes, 0), "", format_fixed(kl.mean, 6), format_fixed(kl.low, 6) + " to " + format_fixed(kl.high, 6)});
    return format_table(lines, "rrrrr") + "auto has " + format_fixed(worth.share(), 3) + " (" + format_fixed(worth.low, 3) + " to " +
           format_fixed(worth.high, 3) + ") of the KL of these plans mixed by chance at the same bytes, " + format_fixed(worth.mixed, 6) + "\n";
}

std::string ladder_json(const LadderTrace& t, const std::string& model, const std::string& reference) {
    using Json = nlohmann::ordered_json;
    Json plans = Json::array();
    for (size_t p = 0; p < t.plans.size(); ++p) {
        const Interval kl = bootstrap(t.kl[p]);
        plans.push_back({{"bytes", t.plans[p].bytes},
                         {"predicted_kl", t.plans[p].kl},
                         {"kl", kl.mean},
                         {"interval_95", {kl.low, kl.high}},
                         {"per_window", t.kl[p]}});
    }
    Json out = {{"model", model}, {"reference", reference}, {"plans", plans}};
    if (!t.follow.empty()) {
        const sched::Worth worth = sched::worth_of(t.plans, t.follow);
        out["auto"] = {{"bytes", worth.rule.bytes},
                       {"kl", worth.rule.kl},
                       {"per_window", follow_kl(t)},
                       {"mixed_kl", worth.mixed},
                       {"ratio", worth.share()},
                       {"ratio_interval_95", {worth.low, worth.high}}};
    }
    return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
