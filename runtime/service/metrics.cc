#include "runtime/service/metrics.h"

#include <prometheus/text_serializer.h>

#include <sstream>
#include <vector>

#include "runtime/engine/memory_limits.h"

namespace weir {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Families {
  public:
    void counter(const char* name, const char* help, double value) { add(name, help, MetricType::Counter, value, {}); }
    void gauge(const char* name, const char* help, double value) { add(name, help, MetricType::Gauge, value, {}); }
    void labelled_counter(const char* name, const char* help, const char* label, const char* label_value, double value) {
        add(name, help, MetricType::Counter, value, {{label, label_value}});
    }
    const std::vector<MetricFamily>& all() const { return families_; }

  private:
    void add(const char* name, const char* help, MetricType type, double value, std::vector<ClientMetric::Label> labels) {
        if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
        ClientMetric metric;
        metric.label = std::move(labels);
        (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
        families_.back().metric.push_back(std::move(metric));
    }
    std::vector<MetricFamily> families_;
};

double number(uint64_t n) { return static_cast<double>(n); }

}  // namespace

std::string metrics_text(const ModelService& service) {
    const SchedulerStats s = service.scheduler.stats();
    Families f;
    f.counter("weir_generated_tokens_total", "Tokens generated.", number(s.generated_tokens));
    f.counter("weir_prompt_tokens_total", "Tokens of prompts that were computed.", number(s.prompt_tokens));
    f.counter("weir_prompt_tokens_cached_total", "Tokens of prompts that were taken over from an earlier request.", number(s.cached_tokens));
    constexpr const char* kRequests = "weir_requests_total";
    constexpr const char* kRequestsHelp = "Requests by what became of them.";
    f.labelled_counter(kRequests, kRequestsHelp, "result", "finished", number(s.finished));
    f.labelled_counter(kRequests, kRequestsHelp, "result", "cancelled", number(s.cancelled));
    f.labelled_counter(kRequests, kRequestsHelp, "result", "failed", number(s.failed));
    f.labelled_counter(kRequests, kRequestsHelp, "result", "refused", number(s.refused));
    f.gauge("weir_requests_waiting", "Requests that wait for a slot.", number(s.queued));
    f.gauge("weir_slots", "Requests that are served at once at most.", number(s.slots.size()));
    f.gauge("weir_slots_busy", "Slots that serve a request.", number(s.busy_slots()));
    f.counter("weir_passes_total", "Walks over the weights.", number(s.passes));
    f.counter("weir_pass_seconds_total", "Time in them.", s.busy_s);
    f.counter("weir_weights_read_bytes_total", "Bytes of weights read from storage.", number(s.store.bytes_read));
    f.counter("weir_weights_must_read_bytes_total", "Of them, what no reader could have spared.", number(s.store.must_read_bytes));
    f.counter("weir_stall_seconds_total", "Time in which the computation waited for weights.", number(s.store.stall_us) / 1e6);
    f.counter("weir_gate_waits_total", "How often it waited.", number(s.store.waits));
    f.counter("weir_faults_total", "Touches of weights that nobody had announced.", number(s.store.faults));
    f.counter("weir_read_retries_total", "Reads that failed and were tried again.", number(s.store.read_retries));
    f.gauge("weir_weights_bytes", "Weights of the model.", number(s.store.weights_bytes));
    f.gauge("weir_weights_resident_bytes", "Of them, what stays in memory.", number(s.store.resident_bytes));
    f.gauge("weir_frame_bytes", "What the weights may take.", number(s.store.frame_bytes));
    f.gauge("weir_memory_budget_bytes", "Budget of the whole process.", number(service.ram_budget));
    f.gauge("weir_memory_resident_bytes", "Memory of the process.", number(resident_now()));
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, f.all());
    return out.str();
}

}  // namespace weir
