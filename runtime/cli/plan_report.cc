#include "runtime/cli/plan_report.h"

#include <nlohmann/json.hpp>

#include "kernels/types.h"
#include "runtime/cli/format.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;
using Lines = std::vector<std::vector<std::string>>;

std::string rate(double bytes_per_s) { return format_fixed(bytes_per_s / 1e9, 2) + " GB/s"; }
std::string milliseconds(double seconds) { return format_fixed(1000 * seconds, 1) + " ms"; }

std::string share(uint64_t part, uint64_t whole) {
    return format_fixed(whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole), 0) + " %";
}

std::string percent(double share) { return format_fixed(100 * share, 0) + " %"; }

const char* form_name(kernels::Activation form) {
    switch (form) {
        case kernels::Activation::kInt8: return "int8";
        case kernels::Activation::kFine: return "fine";
        case kernels::Activation::kWhole: return "int16";
        case kernels::Activation::kF32: return "f32";
    }
    return "?";
}

std::string speed_line(const Plan& p) {
    return format_fixed(p.tokens_per_s, 2) + " tokens/s, bounded by " + bound_name(p.bound) + ": computing " +
           milliseconds(p.compute_s) + ", reading " + milliseconds(p.read_s) + " a token";
}

void add_options(std::string* out, const char* title, const std::vector<PlanOption>& options) {
    if (options.empty()) return;
    Lines lines = {{title, "resident", "read a token", "tokens/s", "bounded by"}};
    for (const PlanOption& o : options) {
        if (!o.plan) {
            lines.push_back({o.name, "-", "-", "-", "does not hold what must be in memory"});
            continue;
        }
        const Plan& p = *o.plan;
        lines.push_back({o.name, share(p.resident_bytes, p.resident_bytes + p.streamed_bytes), format_bytes(p.streamed_bytes),
                         format_fixed(p.tokens_per_s, 2), bound_name(p.bound)});
    }
    *out += '\n';
    *out += format_table(lines, "lrrrl");
}

void add_tiers(std::string* out, const TiersOutcome& t, const Plan& usual) {
    const std::string name = format_fixed(t.tiers.activations, 0) + " % for activations and KV cache, " +
                             format_fixed(t.tiers.weights, 0) + " % for weights";
    *out += "\nWith " + name + " (" + format_bytes(t.activations_bytes) + ", " + format_bytes(t.weights_bytes) + "):\n";
    if (!t.plan) {
        *out += "  does not fit: activations and KV cache need " +
                format_bytes(usual.budget.kv_cache + usual.budget.activations) + ", or the weights' part is too small to walk in\n";
        return;
    }
    *out += "  " + speed_line(*t.plan) + "\n  " +
            format_fixed(usual.tokens_per_s > 0 ? 100 * t.plan->tokens_per_s / usual.tokens_per_s : 0, 0) +
            " % of the speed above; the first part would hold a context of " + std::to_string(t.context) + " tokens\n";
}

Json plan_object(const Plan& p) {
    const Budget& b = p.budget;
    return {{"ram_bytes", b.ram},
            {"program_bytes", b.base},
            {"kv_cache_bytes", b.kv_cache},
            {"activation_bytes", b.activations},
            {"reserve_bytes", b.reserve},
            {"table_bytes", b.tables},
            {"frame_bytes", b.frames},
            {"extent_bytes", p.extent_bytes},
            {"resident_bytes", p.resident_bytes},
            {"ring_bytes", p.ring_bytes},
            {"expert_bytes", p.expert_bytes},
            {"expert_hit_rate", p.hit_rate},
            {"bytes_read_per_token", p.streamed_bytes},
            {"compute_ms", 1000 * p.compute_s},
            {"read_ms", 1000 * p.read_s},
            {"tokens_per_s", p.tokens_per_s},
            {"first_token_ms", 1000 * p.first_token_s},
            {"bounded_by", bound_name(p.bound)}};
}

Json options_array(const std::vector<PlanOption>& options) {
    Json out = Json::array();
    for (const PlanOption& o : options)
        out.push_back({{"name", o.name}, {"plan", o.plan ? plan_object(*o.plan) : Json(nullptr)}});
    return out;
}

}  // namespace

std::string plan_text(const PlanReport& r) {
    const Plan& p = r.plan;
    const Budget& b = p.budget;
    std::string out = printable(r.model, SIZE_MAX) + ": " + r.shape + ", " + format_bytes(r.weights_bytes) + " of weights a token; " +
                      std::to_string(r.threads) + " threads, context " + std::to_string(r.context) + "\n\n";
    Lines lines = {{"budget", format_bytes(b.ram)},
                   {"  program, tables, reserve", format_bytes(b.base + b.tables + b.reserve)},
                   {"  KV cache and activations", format_bytes(b.kv_cache + b.activations)},
                   {"  weights that stay", format_bytes(p.resident_bytes), share(p.resident_bytes, p.resident_bytes + p.streamed_bytes) + " of them"},
                   {"  ring that the rest streams through", format_bytes(p.ring_bytes)},
                   {"flash, read for every token", format_bytes(p.streamed_bytes)}};
    if (!r.experts.empty()) {
        lines.insert(lines.begin() + 4, {"    of them, slots of experts", format_bytes(p.expert_bytes),
                                         format_fixed(100 * p.hit_rate, 0) + " % of those chosen are here"});
    }
    out += format_table(lines, "lrl") + "\n";
    if (!r.experts.empty()) out += "experts: " + r.experts + "\n\n";
    lines = {{"device", rate(r.device_bytes_per_s), r.device}, {"kernels", rate(r.compute_bytes_per_s), r.kernels}};
    out += format_table(lines, "lrl");
    out += "at once: kernels at " + percent(r.together.compute) + ", device at " + percent(r.together.read) + " of that\n\n";
    out += "Expected: " + speed_line(p) + "\n";
    out += "First token of a short prompt: after " + format_fixed(p.first_token_s, 1) + " s at least\n";
    if (p.streamed_bytes > 0 && p.bound == Bound::kDevice)
        out += "Everything stays in memory from --ram " + format_bytes(r.ram_for_all) + " on\n";
    if (!r.note.empty()) out += "Note: " + r.note + "\n";
    add_options(&out, "--ram", r.more_ram);
    add_options(&out, "quantised to", r.fewer_bits);
    if (r.tiers) add_tiers(&out, *r.tiers, p);
    return out;
}

std::string plan_json(const PlanReport& r) {
    Json parts = Json::array();
    for (const ComputePart& part : r.parts) {
        parts.push_back({{"type", part.level != 0 ? "level " + std::to_string(part.level) : kernels::traits(part.type).name},
                         {"activations", form_name(part.form)},
                         {"bytes", part.bytes},
                         {"bytes_per_s", part.bytes_per_s}});
    }
    Json out = {{"model", r.model},
                {"weights_bytes", r.weights_bytes},
                {"threads", r.threads},
                {"context", r.context},
                {"batch", r.batch},
                {"device", {{"bytes_per_s", r.device_bytes_per_s}, {"source", r.device}}},
                {"kernels", {{"bytes_per_s", r.compute_bytes_per_s}, {"set", r.kernels}, {"parts", std::move(parts)}}},
                {"together", {{"compute_share", r.together.compute}, {"read_share", r.together.read}}},
                {"note", r.note.empty() ? Json(nullptr) : Json(r.note)},
                {"plan", plan_object(r.plan)},
                {"ram_for_all_bytes", r.ram_for_all},
                {"more_ram", options_array(r.more_ram)},
                {"fewer_bits", options_array(r.fewer_bits)},
                {"tiers", nullptr}};
    if (r.tiers) {
        const TiersOutcome& t = *r.tiers;
        out["tiers"] = {{"activations_percent", t.tiers.activations},
                        {"weights_percent", t.tiers.weights},
                        {"activations_bytes", t.activations_bytes},
                        {"weights_bytes", t.weights_bytes},
                        {"context", t.context},
                        {"plan", t.plan ? plan_object(*t.plan) : Json(nullptr)}};
    }
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
