#include "runtime/cli/run_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/kernels.h"
#include "runtime/engine/memory_limits.h"

namespace weir {
namespace {

// From this share of the decode time on, waiting for bytes is what bounds a run.
constexpr double kBoundShare = 0.3;

double in_mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

double per_token(uint64_t n, const GenerateResult::Steady& s) {
    return static_cast<double>(n) / static_cast<double>(s.tokens);
}

// Share of the steady time in which the team waited for weights: at gates and in faults where we page; where the kernel
// does, the time in which its threads did not run, if anything was read at all.
double wait_share(const RunReport& r) {
    const GenerateResult::Steady& s = *r.result.steady;
    if (s.seconds <= 0) return 0;
    if (pages_by_budget(r.store.mode)) return static_cast<double>(s.stall_us) / 1e6 / s.seconds;
    if (s.storage_bytes == 0) return 0;
    return std::max(0.0, 1 - s.cpu_seconds / (s.seconds * static_cast<double>(r.threads)));
}

const char* bounded_by(const RunReport& r) {
    if (!r.result.steady) return "unknown";
    return wait_share(r) >= kBoundShare ? "disk" : "compute";
}

double decode_tokens_per_s(const GenerateResult& g) {
    return g.ids.size() < 2 || g.decode_s <= 0 ? 0 : static_cast<double>(g.ids.size() - 1) / g.decode_s;
}

double prompt_tokens_per_s(const RunReport& r) {
    return r.result.prompt_s <= 0 ? 0 : static_cast<double>(r.prompt->size()) / r.result.prompt_s;
}

}  // namespace

const char* activations_name(const RunOptions& o) {
    return o.activations == kernels::Activation::kF32 ? "f32" : o.activations == kernels::Activation::kWhole ? "int16" : "int8";
}

std::string known_kernel_sets() {
    std::string text;
    for (const char* const* name = kernels::kernel_set_names(); *name != nullptr; ++name)
        text += std::string(text.empty() ? "" : ", ") + *name;
    return text;
}

uint64_t ram_with(const Budget& budget, uint64_t frame_bytes) {
    const uint64_t tables = budget.frames == 0 ? 0 : frame_bytes * budget.tables / budget.frames;
    return budget.ram - budget.frames - budget.tables + frame_bytes + tables;
}

void print_budget_change(const Budget& budget, uint64_t frames_before, uint64_t frames_now, const std::string& reason) {
    std::fprintf(stderr, "weir: budget=%.1fMiB frames=%.1fMiB (before: %.1fMiB): %s\n", in_mib(ram_with(budget, frames_now)),
                 in_mib(frames_now), in_mib(frames_before), reason.c_str());
}

void print_configuration(const RunReport& r) {
    const StoreStats& s = r.store;
    std::fprintf(stderr, "weir: model=%s layers=%zu dim=%zu weights=%.1fMiB threads=%zu kernels=%s activations=%s context=%zu kv=%s\n",
                 r.options->model.c_str(), r.config->n_layers, r.config->dim, in_mib(s.weights_bytes), r.threads, r.kernels,
                 activations_name(*r.options), r.context, kv_type_name(r.options->kv_type).c_str());
    std::fprintf(stderr, "weir: ");
    if (r.options->precision == kAutoPrecision) std::fprintf(stderr, "precision=auto ");
    else if (const std::optional<int> level = s.plan.uniform()) std::fprintf(stderr, "precision=%d ", *level);
    else if (!s.plan.levels.empty()) std::fprintf(stderr, "precision=plan ");
    for (size_t i = 0; i < r.options->drafts.size(); ++i) std::fprintf(stderr, "%s%s", i == 0 ? "draft=" : ",", r.options->drafts[i].c_str());
    std::fprintf(stderr, "%spaging=%s%s%s", r.options->drafts.empty() ? "" : " ", paging_mode_name(s.mode), s.rungs.empty() ? "" : " ", s.rungs.c_str());
    if (pages_by_budget(s.mode)) {
        std::fprintf(stderr, " gates=%s budget=%.1fMiB frames=%.1fMiB resident=%.1fMiB ring=%.1fMiB extent=%lluKiB",
                     r.options->store.gates ? "on" : "off", in_mib(r.budget.ram), in_mib(s.frame_bytes), in_mib(s.resident_bytes),
                     in_mib(s.ring_bytes), static_cast<unsigned long long>(s.extent_bytes >> 10));
        std::fprintf(stderr, " pressure=%s%s%s", r.pressure ? "on" : "off", r.pressure ? " " : "", r.pressure_source.c_str());
    }
    std::fprintf(stderr, "\n");
}

namespace {

double share(uint64_t part, uint64_t whole) { return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole); }

nlohmann::ordered_json experts_json(const ExpertStats& e) {
    return {{"slots", e.slots},
            {"slot_bytes", e.slot_bytes},
            {"slot_waste", e.slot_waste},
            {"read_amplification", e.read_amplification},
            {"uses", e.uses},
            {"hit_rate", share(e.here, e.uses)},
            {"foreseen_rate", share(e.foreseen, e.uses)},
            {"predictions", e.predictions},
            {"prediction_rate", share(e.right_predictions, e.predictions)},
            {"predictions_read", e.predictions_read},
            {"absent_bytes", e.absent_bytes},
            {"reading_s", static_cast<double>(e.busy_us) / 1e6}};
}

nlohmann::ordered_json auto_json(const AutoReport& a) {
    nlohmann::ordered_json rungs = nlohmann::ordered_json::array();
    for (const AutoReport::Rung& rung : a.rungs) rungs.push_back({{"bytes", rung.bytes}, {"predicted_kl", rung.predicted_kl}, {"tokens", rung.tokens}});
    return {{"auto", std::move(rungs)}, {"switches", a.switches}, {"remembered", a.remembered > 0}, {"mean_bytes", a.mean_bytes()}};
}

nlohmann::ordered_json drafts_json(const DraftReport& d) {
    using nlohmann::ordered_json;
    ordered_json sources = ordered_json::array();
    for (const DraftTally& t : d.sources) {
        ordered_json places = ordered_json::array();  // of a token in its draft
        for (size_t i = 0; i < kMostDrafts && t.judged[i] > 0; ++i) places.push_back({{"judged", t.judged[i]}, {"right", t.right[i]}});
        sources.push_back({{"source", t.source},
                           {"drafts", t.drafts},
                           {"drafted", t.drafted},
                           {"accepted", t.accepted},
                           {"mean_length", share(t.drafted, t.drafts)},
                           {"places", std::move(places)},
                           {"seconds", t.seconds},
                           {"bytes_read", t.bytes_read}});
    }
    return {{"sources", std::move(sources)}, {"passes", d.passes}, {"rows", d.rows}, {"verify_s", d.verify_s}, {"verify_bytes_read", d.verify_bytes_read}};
}

void print_drafts(const GenerateResult& g) {
    if (!g.drafts || g.drafts->passes == 0) return;
    const DraftReport& d = *g.drafts;
    std::fprintf(stderr, "weir: drafts: %.2f tokens a pass (%llu passes of %.1f ms, %.1f MiB read)", share(g.ids.size() - 1, d.passes),
                 static_cast<unsigned long long>(d.passes), 1000 * d.verify_s / static_cast<double>(d.passes), in_mib(d.verify_bytes_read));
    for (const DraftTally& t : d.sources) {
        std::fprintf(stderr, "; by %s %llu of %llu right, %.1f at a time, %.1f ms each, %.1f MiB read", t.source.c_str(),
                     static_cast<unsigned long long>(t.accepted), static_cast<unsigned long long>(t.drafted), share(t.drafted, t.drafts),
                     t.drafted == 0 ? 0 : 1000 * t.seconds / static_cast<double>(t.drafted), in_mib(t.bytes_read));
    }
    std::fprintf(stderr, "\n");
}

}  // namespace

void print_late(const RunReport& r) {
    const StoreStats& s = r.store;
    if (s.late_units == 0) return;
    std::fprintf(stderr, "weir: warning: %llu of %llu parts of matrices, in %llu tokens, had not come after %u ms (--deadline-ms) and were computed at %d bits: "
                         "the answer is not reproducible\n",
                 static_cast<unsigned long long>(s.late_units), static_cast<unsigned long long>(s.refined_units), static_cast<unsigned long long>(s.late_passes),
                 r.options->deadline_ms, static_cast<int>(WeightStore::kBaseLevel));
}

void print_precision(const AutoReport& a) {
    std::fprintf(stderr, "weir: precision: %llu switches among %zu plans%s, %.2f MiB of weights a token; tokens by plan, finest first:",
                 static_cast<unsigned long long>(a.switches), a.rungs.size(), a.remembered > 0 ? ", begun as the last prompt of its kind ended" : "",
                 a.mean_bytes() / (1 << 20));
    for (const AutoReport::Rung& rung : a.rungs) std::fprintf(stderr, " %llu", static_cast<unsigned long long>(rung.tokens));
    std::fprintf(stderr, "\n");
}

void print_statistics(const RunReport& r) {
    const GenerateResult& g = r.result;
    std::fprintf(stderr, "weir: %zu prompt tokens at %.1f tokens/s, %zu tokens at %.2f tokens/s, first after %.0f ms (loading %.0f ms), ended by %s\n",
                 r.prompt->size(), prompt_tokens_per_s(r), g.ids.size(), decode_tokens_per_s(g), 1000 * (r.load_s + g.prompt_s),
                 1000 * r.load_s, finish_reason_name(g.finish));
    if (g.finish == FinishReason::kContext)
        std::fprintf(stderr, "weir: the context of %zu tokens is full; a larger one (-c) lets the answer go on\n", r.context);
    const double peak = in_mib(resident_peak());
    if (pages_by_budget(r.store.mode)) {
        std::fprintf(stderr, "weir: memory %.1f MiB at most, budget %.1f MiB; weights resident %.1f of %.1f MiB, read %.1f MiB\n", peak,
                     in_mib(r.budget.ram), in_mib(r.store.resident_bytes), in_mib(r.store.weights_bytes), in_mib(r.store.bytes_read));
        if (r.store.budget_changes > 0) {
            std::fprintf(stderr, "weir: the budget changed %llu times and is %.1f MiB at the end\n",
                         static_cast<unsigned long long>(r.store.budget_changes), in_mib(ram_with(r.budget, r.store.frame_bytes)));
        }
        if (r.store.read_retries + r.store.copied_moves > 0) {
            std::fprintf(stderr, "weir: %llu reads were tried again, %llu of them through the page cache; %llu Extents were copied instead of moved\n",
                         static_cast<unsigned long long>(r.store.read_retries), static_cast<unsigned long long>(r.store.buffered_rereads),
                         static_cast<unsigned long long>(r.store.copied_moves));
        }
    } else {
        std::fprintf(stderr, "weir: memory %.1f MiB at most, no budget of our own with --paging %s\n", peak,
                     paging_mode_name(r.store.mode));
    }
    if (g.steady) {
        std::fprintf(stderr, "weir: per token after %zu: %.2f MiB read, %.2f faults; %.0f %% of the time waiting; bounded by %s\n",
                     r.options->warmup_tokens,
                     per_token(r.store.mode == PagingMode::kUffd ? g.steady->bytes_read : g.steady->storage_bytes, *g.steady) / (1 << 20),
                     per_token(g.steady->faults, *g.steady), 100 * wait_share(r), bounded_by(r));
    }
    if (r.precision != nullptr) print_precision(*r.precision);
    print_drafts(g);
    if (const ExpertStats& e = r.store.experts; e.uses > 0) {
        std::fprintf(stderr, "weir: experts: %zu slots of %.2f MiB; %.1f %% were here when chosen, %.1f %% foreseen; %.1f %% of predictions right\n",
                     e.slots, in_mib(e.slot_bytes), 100 * share(e.here, e.uses), 100 * share(e.foreseen, e.uses),
                     100 * share(e.right_predictions, e.predictions));
    }
    if (g.mean_workers > 0 && g.mean_workers < 0.95 * static_cast<double>(r.threads)) {
        std::fprintf(stderr, "weir: %.1f of %zu threads decoded a token, as reads bound and fewer were faster (--adapt-threads off: always all)\n",
                     g.mean_workers, r.threads);
    }
}

bool print_json(const RunReport& r) {
    using nlohmann::ordered_json;
    const GenerateResult& g = r.result;
    const StoreStats& s = r.store;
    const bool ours = s.mode == PagingMode::kUffd;  // else only /proc/self/io knows what was read
    ordered_json j;
    j["text"] = *r.text;
    j["prompt_ids"] = *r.prompt;
    j["ids"] = g.ids;
    j["finish_reason"] = finish_reason_name(g.finish);
    j["timings"] = {{"load_ms", 1000 * r.load_s},
                    {"first_token_ms", 1000 * (r.load_s + g.prompt_s)},
                    {"prompt_tokens_per_s", prompt_tokens_per_s(r)},
                    {"decode_tokens_per_s", decode_tokens_per_s(g)}};
    j["precision"] = r.precision != nullptr ? auto_json(*r.precision) : ordered_json::parse(sched::precision_json(s.plan));
    if (g.drafts) j["drafts"] = drafts_json(*g.drafts);
    ordered_json paging = {{"mode", paging_mode_name(s.mode)},
                           {"fallback", r.fallback.empty() ? ordered_json(nullptr) : ordered_json(r.fallback)},
                           {"rungs", s.rungs},
                           {"gates", r.options->store.gates},
                           {"weights_bytes", s.weights_bytes},
                           {"pass_bytes", s.pass_bytes},
                           {"resident_bytes", s.resident_bytes},
                           {"ring_bytes", s.ring_bytes},
                           {"frame_bytes", s.frame_bytes},
                           {"extent_bytes", s.extent_bytes},
                           {"bytes_read", s.bytes_read},
                           {"first_token_bytes_read", ours ? ordered_json(g.first_token_bytes) : ordered_json(nullptr)},
                           {"bytes_read_per_token", nullptr},
                           {"must_read_bytes_per_token", nullptr},
                           {"io_read_bytes_per_token", nullptr},
                           {"faults", s.faults},
                           {"faults_per_token", nullptr},
                           {"waits", s.waits},
                           {"read_retries", s.read_retries},
                           {"buffered_rereads", s.buffered_rereads},
                           {"copied_moves", s.copied_moves},
                           {"stall_ms", static_cast<double>(s.stall_us) / 1000},
                           {"wait_share", nullptr},
                           {"cpu_ms_per_token", nullptr},
                           {"pager_cpu_share", nullptr},
                           {"extents_in_flight", s.extents_in_flight},
                           {"bounded_by", bounded_by(r)}};
    j["steady"] = nullptr;
    if (g.steady) {
        const GenerateResult::Steady& t = *g.steady;
        j["steady"] = {{"warmup_tokens", r.options->warmup_tokens},
                       {"tokens", t.tokens},
                       {"seconds", t.seconds},
                       {"cpu_seconds", t.cpu_seconds},
                       {"io_read_bytes", t.storage_bytes},
                       {"faults", t.faults},
                       {"major_faults", t.major_faults},
                       {"waits", t.waits},
                       {"stall_ms", static_cast<double>(t.stall_us) / 1000}};
        paging["bytes_read_per_token"] = per_token(ours ? g.steady->bytes_read : g.steady->storage_bytes, *g.steady);
        if (s.mode == PagingMode::kUffd || (pages_by_budget(s.mode) && r.config->n_experts == 0))
            paging["must_read_bytes_per_token"] = per_token(g.steady->must_read_bytes, *g.steady);
        paging["io_read_bytes_per_token"] = per_token(g.steady->storage_bytes, *g.steady);
        paging["faults_per_token"] = per_token(g.steady->faults, *g.steady);
        paging["wait_share"] = wait_share(r);
        paging["cpu_ms_per_token"] = 1000 * g.steady->cpu_seconds / static_cast<double>(g.steady->tokens);
        if (ours) paging["pager_cpu_share"] = g.steady->pager_cpu_seconds / g.steady->seconds;
    }
    if (r.options->deadline_ms != 0)
        paging["late"] = {{"deadline_ms", r.options->deadline_ms}, {"parts", s.refined_units}, {"late_parts", s.late_units}, {"late_tokens", s.late_passes}};
    j["reproducible"] = s.late_units == 0;
    j["paging"] = std::move(paging);
    if (s.experts.slots > 0) j["experts"] = experts_json(s.experts);
    j["memory"] = {{"budget_bytes", pages_by_budget(s.mode) ? ordered_json(r.budget.ram) : ordered_json(nullptr)},
                   {"budget_at_end_bytes", ours ? ordered_json(s.budget_changes == 0 ? r.budget.ram : ram_with(r.budget, s.frame_bytes)) : ordered_json(nullptr)},
                   {"budget_changes", s.budget_changes},
                   {"pressure", r.pressure ? ordered_json(r.pressure_source) : ordered_json(nullptr)},
                   {"peak_rss_bytes", resident_peak()},
                   {"kv_cache_bytes", r.budget.kv_cache},
                   {"activation_bytes", r.budget.activations}};
    j["logits_hash"] = g.logits_hash;
    j["mean_entropy_nats"] = g.mean_entropy;
    j["mean_decode_threads"] = g.mean_workers;
    j["seed"] = r.seed;
    j["threads"] = r.threads;
    j["kernels"] = r.kernels;
    j["activations"] = activations_name(*r.options);
    // A piece of text may end inside a UTF-8 character: replaced, never an exception.
    const std::string out = j.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
    return std::fwrite(out.data(), 1, out.size(), stdout) == out.size() && std::fflush(stdout) == 0;
}

}  // namespace weir
