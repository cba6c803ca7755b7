#include "runtime/cli/ladder_trace.h"

#include <nlohmann/json.hpp>

#include "runtime/cli/format.h"
#include "runtime/model/partial_file.h"

namespace weir {

bool trace_ladder(const std::string& path, LadderProbe& probe, std::span<const TokenId> ids, size_t window,
                  const std::function<bool(size_t)>& go_on, LadderTrace* trace) {
    const size_t n_plans = trace->plans.size();
    trace->kl.assign(n_plans, {});
    PartialFile file(path);
    uint64_t end = 0;
    const auto write = [&](const std::string& text) {
        file.write(end, std::as_bytes(std::span(text)));
        end += text.size();
    };
    write(sched::trace_header(trace->plans));
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
    }
    file.finish(end);
    return true;
}

std::string ladder_text(const LadderTrace& t) {
    std::vector<std::vector<std::string>> lines = {{"plan", "bytes a token", "predicted KL", "KL, nats", "95 %"}};
    for (size_t p = 0; p < t.plans.size(); ++p) {
        const Interval kl = bootstrap(t.kl[p]);
        lines.push_back({std::to_string(p), std::to_string(t.plans[p].bytes), format_fixed(t.plans[p].kl, 6),
                         format_fixed(kl.mean, 6), format_fixed(kl.low, 6) + " to " + format_fixed(kl.high, 6)});
    }
    return format_table(lines, "rrrrr");
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
    const Json out = {{"model", model}, {"reference", reference}, {"plans", plans}};
    return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
