// What the dashboard shows: the page, the map of the weights, which stays the same, and the figures, which the page
// asks for once a second while somebody looks at it.
#include <chrono>

#include "runtime/engine/memory_limits.h"
#include "runtime/service/dashboard/page.h"
#include "runtime/service/http_handlers.h"
#include "runtime/service/openai_answer.h"

namespace weir {
namespace {

using nlohmann::ordered_json;

constexpr const char* kNotKept = "no-store";

void send(httplib::Response& response, const ordered_json& body) {
    response.set_header("Cache-Control", kNotKept);
    response.set_content(dump(body), "application/json");
}

// Of the last windows of prompts to the baseline; null where there have been too few.
ordered_json drift_of(const sched::MonitorState& state) {
    if (state.baseline_perplexity <= 0 || state.recent_perplexity <= 0) return nullptr;
    return state.recent_perplexity / state.baseline_perplexity;
}

ordered_json warnings_of(const sched::MonitorState& state) {
    ordered_json names = ordered_json::array();
    for (size_t w = 0; w < sched::kWarnings; ++w)
        if (state.warned[w]) names.push_back(sched::kWarningNames[w]);
    return names;
}

double bits_per_weight(uint64_t bytes, uint64_t weights) {
    return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

}  // namespace

void serve_dashboard_page(const httplib::Request&, httplib::Response& response) {
    response.set_header("Content-Security-Policy", std::string(kDashboardPolicy));
    response.set_header("Cache-Control", "no-cache");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cross-Origin-Opener-Policy", "same-origin");
    response.set_header("Cross-Origin-Resource-Policy", "same-origin");
    response.set_content(kDashboardPage.data(), kDashboardPage.size(), "text/html; charset=utf-8");
}

// Bits: of a native file, the level in force; of plain GGUF what a weight takes in the file.
void serve_dashboard_map(const ModelService& service, const httplib::Request&, httplib::Response& response) {
    const StoreStats store = service.scheduler.stats().store;
    ordered_json cells = ordered_json::array();
    uint64_t weights = 0;
    for (const MapCell& cell : service.scheduler.store().map_cells()) {
        weights += cell.weights;
        const bool planned = cell.shard < store.plan.levels.size();
        const double bits = planned ? store.plan.levels[cell.shard] : bits_per_weight(cell.bytes, cell.weights);
        cells.push_back({{"layer", cell.layer},
                         {"module", cell.module},
                         {"first", cell.first_unit},
                         {"units", cell.units},
                         {"weights", cell.weights},
                         {"bits", bits}});
    }
    ordered_json body = service.properties;
    body["name"] = service.name;
    body["rungs"] = store.rungs;
    body["chat"] = service.chat.has_value();
    body["slots"] = service.scheduler.stats().slots.size();
    body["context"] = service.scheduler.context();
    body["unit_bytes"] = store.extent_bytes;
    body["weights_bytes"] = store.weights_bytes;
    body["pass_bytes"] = store.pass_bytes;
    body["mean_bits"] = bits_per_weight(store.weights_bytes, weights);
    body["device_bytes_per_s"] = service.scheduler.device_bytes_per_s();
    body["planned"] = !store.plan.levels.empty();
    body["cells"] = std::move(cells);
    send(response, body);
}

void serve_dashboard_data(const ModelService& service, const httplib::Request&, httplib::Response& response) {
    const SchedulerStats stats = service.scheduler.stats();
    const StoreView store = service.scheduler.store().look();
    const RecentEntropies entropies = service.scheduler.recent_entropies();
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    ordered_json slots = ordered_json::array();
    for (const SlotInfo& slot : stats.slots) {
        const bool idle = slot.state == SlotState::kIdle, prompt = slot.state == SlotState::kPrompt;
        slots.push_back({{"state", idle ? "idle" : prompt ? "prompt" : "decode"},
                         {"cached", slot.cached_tokens},
                         {"prompt", slot.prompt_tokens},
                         {"generated", slot.generated}});
    }
    const bool busy = stats.busy_slots() > 0;
    send(response, {{"time_s", now.count()},
                    {"units", store.units},
                    {"layer", busy ? ordered_json(service.scheduler.layer_under_way()) : ordered_json()},
                    {"tokens", stats.generated_tokens},
                    {"prompt_tokens", stats.prompt_tokens},
                    {"cached_tokens", stats.cached_tokens},
                    {"passes", stats.passes},
                    {"read_bytes", store.bytes_read},
                    {"read_s", static_cast<double>(store.read_us) / 1e6},
                    {"stall_s", static_cast<double>(store.stall_us) / 1e6},
                    {"waits", store.waits},
                    {"faults", store.faults},
                    {"memory_bytes", resident_now()},
                    {"budget_bytes", service.ram_budget},
                    {"frame_bytes", store.frame_bytes},
                    {"entropies_end", entropies.end},
                    {"entropies", entropies.nats},
                    {"perplexity_drift", drift_of(stats.monitor)},
                    {"scored_tokens", stats.monitor.scored_tokens},
                    {"warnings", warnings_of(stats.monitor)},
                    {"slots", std::move(slots)},
                    {"waiting", stats.queued},
                    {"finished", stats.finished},
                    {"cancelled", stats.cancelled},
                    {"failed", stats.failed},
                    {"refused", stats.refused}});
}

}  // namespace weir
