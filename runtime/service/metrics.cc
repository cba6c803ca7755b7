#include "runtime/service/metrics.h"

#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <string>
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
    void labelled_gauge(const char* name, const char* help, std::vector<ClientMetric::Label> labels, double value) {
        add(name, help, MetricType::Gauge, value, std::move(labels));
    }
    void histogram(const char* name, const char* help, const LatencyCounts& latencies) {
        families_.push_back({name, help, MetricType::Histogram, {}});
        ClientMetric metric;
        uint64_t so_far = 0;
        for (size_t i = 0; i < latencies.counts.size(); ++i) {
            so_far += latencies.counts[i];
            const double bound = i < LatencyCounts::kBounds.size() ? LatencyCounts::kBounds[i] : std::numeric_limits<double>::infinity();
            metric.histogram.bucket.push_back({so_far, bound});
        }
        metric.histogram.sample_count = so_far;
        metric.histogram.sample_sum = latencies.sum_s;
        families_.back().metric.push_back(std::move(metric));
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

void add_warnings(const sched::MonitorState& m, Families* f) {
    for (size_t i = 0; i < sched::kWarnings; ++i) {
        f->labelled_gauge("weir_warning", "1 while a warning holds: perplexity (recalibration is wanted), memory, device, bytes_per_token.",
                          {{"kind", sched::kWarningNames[i]}}, m.warned[i] ? 1 : 0);
    }
    for (size_t i = 0; i < sched::kWarnings; ++i) {
        f->labelled_counter("weir_warnings_total", "How often a warning was raised.", "kind", sched::kWarningNames[i], number(m.raised[i]));
    }
    f->counter("weir_scored_tokens_total", "Tokens of prompts whose probability was looked at.", number(m.scored_tokens));
    // What is not known yet is not there, rather than 0.
    if (m.baseline_perplexity > 0) f->gauge("weir_perplexity_baseline", "Perplexity of prompts that drift is measured from.", m.baseline_perplexity);
    if (m.recent_perplexity > 0) f->gauge("weir_perplexity_recent", "Perplexity of the last windows of prompts.", m.recent_perplexity);
    if (m.device_share > 0) f->gauge("weir_device_share", "Share of the storage's probed speed, when reads last bound.", m.device_share);
    if (m.bytes_ratio > 0) f->gauge("weir_bytes_ratio", "Bytes read over those that must be, lately.", m.bytes_ratio);
    if (m.memory_share > 0) f->gauge("weir_machine_memory_share", "Share in use of the machine's memory beside the budget.", m.memory_share);
}

// Bits by layer and module, of a native file.
void add_precision(const sched::Plan& plan, Families* f) {
    constexpr const char* kName = "weir_layer_bits";
    constexpr const char* kHelp = "Bits that are read of each weight, by layer and module.";
    for (size_t shard = 0; shard < plan.levels.size(); ++shard) {
        const bool head = shard == sched::head_of(plan.n_layers());
        f->labelled_gauge(kName, kHelp,
                          {{"layer", head ? "" : std::to_string(shard / sched::kModules)},
                           {"module", head ? "head" : sched::kModuleNames[shard % sched::kModules]}},
                          plan.levels[shard]);
    }
}

// Tokens of answers by the plan that computed them, where the precision is automatic: plan 0 is the finest.
void add_plans(const AutoReport& report, Families* f) {
    for (size_t r = 0; r < report.rungs.size(); ++r)
        f->labelled_gauge("weir_plan_bytes", "Bytes of weights that a token reads, by plan, 0 the finest.", {{"plan", std::to_string(r)}}, number(report.rungs[r].bytes));
    for (size_t r = 0; r < report.rungs.size(); ++r) {
        f->labelled_counter("weir_plan_tokens_total", "Tokens of answers by the plan that computed them.", "plan", std::to_string(r).c_str(),
                            number(report.rungs[r].tokens));
    }
    f->counter("weir_plan_changes_total", "Passes at another plan than the one before.", number(report.plan_changes));
    f->counter("weir_plan_switches_total", "Tokens of answers that wanted another plan than the one before.", number(report.switches));
    f->counter("weir_plans_remembered_total", "Answers that began with the plan that a prompt of their kind had ended with.", number(report.remembered));
}

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
    f.histogram("weir_time_to_first_token_seconds", "From a request's coming to its first token.", s.first_token);
    add_warnings(s.monitor, &f);
    add_precision(s.store.plan, &f);
    if (s.precision) add_plans(*s.precision, &f);
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, f.all());
    return out.str();
}

}  // namespace weir
