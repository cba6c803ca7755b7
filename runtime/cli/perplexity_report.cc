#include "runtime/cli/perplexity_report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/cli/format.h"
#include "runtime/cli/run_report.h"
#include "runtime/engine/memory_limits.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

double tokens_per_s(const PerplexityReport& r) {
    return static_cast<double>(r.windows.size() * r.window) / r.seconds;
}

}  // namespace

std::string perplexity_text(const PerplexityReport& r) {
    const bool compared = !r.reference.empty();
    std::vector<std::vector<std::string>> lines = {{"window", "perplexity", "so far"}};
    if (compared) lines[0].push_back("KL, nats");
    double sum = 0;
    for (size_t i = 0; i < r.windows.size(); ++i) {
        const double nll = mean_surprise(r.windows[i]);
        sum += nll;
        lines.push_back({std::to_string(i + 1), format_fixed(std::exp(nll), 4), format_fixed(std::exp(sum / static_cast<double>(i + 1)), 4)});
        if (compared) lines.back().push_back(format_fixed(mean_kl(r.windows[i]), 6));
    }
    const Total total = total_of(r.windows);
    std::string out = format_table(lines, compared ? "rrrr" : "rrr") + "perplexity " + format_fixed(total.perplexity(), 4) + " +- " +
                      format_fixed(total.perplexity_error(), 4) + ", " + format_fixed(total.nll, 6) + " nats per token; " +
                      std::to_string(total.scored) + " predictions, the last " + std::to_string(scored_per_window(r.window)) + " of each of " +
                      std::to_string(r.windows.size()) + " windows of " + std::to_string(r.window) + "; activations " +
                      activations_name(*r.options) + "\n";
    if (!compared) return out;
    const Comparison c = comparison_of(r.windows);
    out += "KL " + format_fixed(c.kl.mean, 6) + " nats from " + printable(r.reference, 200) + " with float activations, 95 % " +
           format_fixed(c.kl.low, 6) + " to " + format_fixed(c.kl.high, 6) + " over windows; median " + format_fixed(c.kl_median, 6) +
           ", 99th percentile " + format_fixed(c.kl_p99, 6) + "\nsame first choice " + format_fixed(100 * c.same_first, 2) +
           " %; its perplexity " + format_fixed(c.reference.perplexity(), 4) + ", ratio " +
           format_fixed(total.perplexity() / c.reference.perplexity(), 5) + "\n";
    return out;
}

std::string perplexity_json(const PerplexityReport& r) {
    const Total total = total_of(r.windows);
    Json out = {{"model", r.options->model},
                {"text", r.options->prompt_file},
                {"tokens", r.tokens},
                {"window", r.window},
                {"windows", r.windows.size()},
                {"scored", total.scored},
                {"nll", total.nll},
                {"nll_standard_error", total.nll_error},
                {"perplexity", total.perplexity()},
                {"perplexity_standard_error", total.perplexity_error()},
                {"activations", activations_name(*r.options)},
                {"cache_type_k", cache_type_name(r.options->kv_type.keys)},
                {"cache_type_v", cache_type_name(r.options->kv_type.values)},
                {"kernels", r.kernels},
                {"threads", r.threads},
                {"batch", r.batch},
                {"tokens_per_s", tokens_per_s(r)}};
    Json& windows = out["per_window"] = Json::array();
    for (const WindowScore& w : r.windows) {
        windows.push_back({{"nll", mean_surprise(w)}});
        if (!w.compared.empty()) windows.back()["kl"] = mean_kl(w);
    }
    out["kl"] = nullptr;
    if (!r.reference.empty()) {
        const Comparison c = comparison_of(r.windows);
        out["kl"] = {{"reference", r.reference},
                     {"mean", c.kl.mean},
                     {"interval_95", {c.kl.low, c.kl.high}},
                     {"median", c.kl_median},
                     {"p99", c.kl_p99},
                     {"same_first", c.same_first},
                     {"reference_perplexity", c.reference.perplexity()}};
    }
    const bool budgeted = pages_by_budget(r.store.mode);
    out["precision"] = Json::parse(sched::precision_json(r.store.plan));
    out["paging"] = {{"mode", paging_mode_name(r.store.mode)},
                     {"rungs", r.store.rungs},
                     {"weights_bytes", r.store.weights_bytes},
                     {"resident_bytes", r.store.resident_bytes},
                     {"bytes_read", r.store.bytes_read}};
    out["memory"] = {{"budget_bytes", budgeted ? Json(r.budget.ram) : Json(nullptr)}, {"peak_rss_bytes", resident_peak()}};
    return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
