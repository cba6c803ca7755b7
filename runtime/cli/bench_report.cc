// `weir bench paging`: what follows from the runs, as a table and as JSON.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/cli/bench_paging.h"
#include "runtime/cli/format.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

const Arm* find_arm(const LimitRuns& limit, const std::string& name) {
    for (const Arm& arm : limit.arms)
        if (arm.name == name) return &arm;
    return nullptr;
}

// Of the arm's run in this turn, or of all of them where that one failed.
std::optional<double> in_turn(const LimitRuns& limit, const char* name, size_t turn, std::optional<double> Figures::*value) {
    const Arm* const arm = find_arm(limit, name);
    if (arm == nullptr) return std::nullopt;
    for (const ArmRun& run : arm->runs)
        if (run.turn == turn && run.figures.*value) return run.figures.*value;
    const std::optional<Spread> all = spread(arm->runs, value);
    return all ? std::optional(all->median) : std::nullopt;
}

// Hashes go over every step, so that only runs with equally many can be compared.
bool same_logits(const LimitRuns& limit) {
    std::map<size_t, std::set<std::string>> hashes;
    for (const Arm& arm : limit.arms)
        for (const ArmRun& run : arm.runs)
            if (!run.logits_hash.empty()) hashes[run.counts.warmup + run.counts.measured].insert(run.logits_hash);
    return std::all_of(hashes.begin(), hashes.end(), [](const auto& each) { return each.second.size() == 1; });
}

// How much faster `name` is than `than`; nothing where one of them has no figure.
std::optional<double> speed_ratio(const LimitRuns& limit, const std::string& name, const std::string& than) {
    const Arm* const a = find_arm(limit, name);
    const Arm* const b = find_arm(limit, than);
    if (a == nullptr || b == nullptr) return std::nullopt;
    const auto fast = spread(a->runs, &Figures::tokens_per_s);
    const auto slow = spread(b->runs, &Figures::tokens_per_s);
    if (!fast || !slow || slow->median <= 0) return std::nullopt;
    return fast->median / slow->median;
}

std::set<std::string> errors(const Arm& arm) {
    std::set<std::string> out;
    for (const ArmRun& run : arm.runs)
        if (!run.error.empty()) out.insert(run.error);
    return out;
}

Json figures_json(const ArmRun& run) {
    Json out;
    for (const NamedFigure& f : kFigures)
        if (run.figures.*f.value) out[f.name] = *(run.figures.*f.value);
    out["warmup_tokens"] = run.counts.warmup;
    out["measured_tokens"] = run.counts.measured;
    out["oom_kills"] = run.oom_kills;
    if (run.fresh_bytes_per_s) out["fresh_bytes_per_s"] = *run.fresh_bytes_per_s;
    if (run.cached_before) out["cached_bytes_before"] = *run.cached_before;
    if (!run.bounded_by.empty()) out["bounded_by"] = run.bounded_by;
    if (!run.logits_hash.empty()) out["logits_hash"] = run.logits_hash;
    if (!run.error.empty()) out["error"] = run.error;
    return out;
}

Json arm_json(const Arm& arm) {
    Json out = {{"arm", arm.name}};
    for (const NamedFigure& f : kFigures) {
        const std::optional<Spread> s = spread(arm.runs, f.value);
        out[f.name] = s ? Json{{"median", s->median}, {"min", s->least}, {"max", s->most}} : Json(nullptr);
    }
    Json& runs = out["runs"] = Json::array();
    for (const ArmRun& run : arm.runs) runs.push_back(figures_json(run));
    return out;
}

std::string cell(const Arm& arm, std::optional<double> Figures::*value, int decimals, double scale = 1) {
    const std::optional<Spread> s = spread(arm.runs, value);
    return s ? format_fixed(s->median / scale, decimals) : "-";
}

std::vector<std::string> arm_line(const Arm& arm, const std::string& limit) {
    const std::optional<Spread> speed = spread(arm.runs, &Figures::tokens_per_s);
    uint64_t kills = 0;
    for (const ArmRun& run : arm.runs) kills += run.oom_kills;
    constexpr double kMiB = 1 << 20;
    return {limit,
            printable(arm.name, 24),
            cell(arm, &Figures::tokens_per_s, 2),
            speed ? format_fixed(speed->least, 2) + "-" + format_fixed(speed->most, 2) : "-",
            cell(arm, &Figures::bytes_per_token, 1, 1e6),
            cell(arm, &Figures::device_share, 0, 0.01),
            cell(arm, &Figures::formula_s, 0, 1e-3),
            cell(arm, &Figures::formula_ratio, 2),
            cell(arm, &Figures::first_token_ms, 0),
            cell(arm, &Figures::first_ratio, 2),
            cell(arm, &Figures::cpu_s_per_token, 2),
            cell(arm, &Figures::stall_ms_per_token, 0),
            cell(arm, arm.name == "uffd" ? &Figures::faults_per_token : &Figures::major_faults_per_token, 1),
            cell(arm, &Figures::peak_rss_bytes, 0, kMiB),
            cell(arm, &Figures::cgroup_peak_bytes, 0, kMiB),
            std::to_string(kills)};
}

// A frame's first bytes land in memory that nothing has touched, all others in frames that are used again.
void compare_first_token(std::optional<double> compute_ms, double device, ArmRun* run) {
    Figures& f = run->figures;
    if (!compute_ms || !run->fresh_bytes_per_s || !f.first_token_ms || !f.first_token_bytes || !f.frame_bytes) return;
    const double fresh = std::min(*f.first_token_bytes, *f.frame_bytes);
    const double reading_s = fresh / *run->fresh_bytes_per_s + (*f.first_token_bytes - fresh) / device;
    f.first_formula_ms = std::max(*compute_ms, 1000 * reading_s);
    f.first_ratio = *f.first_token_ms / *f.first_formula_ms;
}

}  // namespace

std::optional<Spread> spread(const std::vector<ArmRun>& runs, std::optional<double> Figures::*value) {
    std::vector<double> values;
    for (const ArmRun& run : runs)
        if (run.error.empty() && run.figures.*value) values.push_back(*(run.figures.*value));
    return spread_of(values);
}

void compare_arms(LimitRuns* limit) {
    for (Arm& arm : limit->arms) {
        for (ArmRun& run : arm.runs) {
            Figures& f = run.figures;
            if (!f.tokens_per_s || run.turn >= limit->device_bytes_per_s.size()) continue;
            const double device = limit->device_bytes_per_s[run.turn];
            if (f.bytes_per_token) f.device_share = *f.bytes_per_token * *f.tokens_per_s / device;
            if (f.expert_bytes_per_s) f.expert_device_share = *f.expert_bytes_per_s / device;
            if (arm.name == "resident") continue;
            // What cannot stay, where the arm has no set of its own that does: by the pager, under the same limit.
            const auto must_read = f.must_read_bytes ? f.must_read_bytes : in_turn(*limit, "uffd", run.turn, &Figures::must_read_bytes);
            const auto resident = in_turn(*limit, "resident", run.turn, &Figures::tokens_per_s);
            compare_first_token(in_turn(*limit, "resident", run.turn, &Figures::prefill_ms), device, &run);
            if (!must_read || !resident) continue;
            f.formula_s = std::max(1 / *resident, *must_read / device);
            f.formula_ratio = 1 / *f.tokens_per_s / *f.formula_s;
        }
    }
}

bool all_well(const BenchReport& report) {
    for (const LimitRuns& limit : report.limits) {
        if (!same_logits(limit)) return false;
        for (const Arm& arm : limit.arms)
            if (!errors(arm).empty()) return false;
    }
    return true;
}

std::string bench_text(const BenchReport& r) {
    const BenchOptions& o = *r.options;
    std::string out = printable(std::filesystem::path(o.model).filename().string(), 80) +
                      (o.precision == 0 ? ", " : ", level " + std::to_string(o.precision) + "; at level 8 ") + format_bytes(r.model_bytes) + ", " +
                      std::to_string(o.threads) + " threads, " + std::to_string(o.counts.measured) + " tokens after " +
                      std::to_string(o.counts.warmup) + " (" + std::to_string(slow_counts(o.counts).measured) + " after " +
                      std::to_string(slow_counts(o.counts).warmup) + " below one a second), medians of " + std::to_string(o.runs) +
                      " runs in turn\nhard limits of the whole process: " + r.place.name() + "; read-ahead " +
                      (r.read_ahead_kib ? std::to_string(*r.read_ahead_kib) + " KiB" : "unknown") +
                      (o.read_ahead_kib && r.read_ahead_note.empty() ? "" : " (the machine's)") + "; device: " + r.device + "\n";
    for (const std::string& note : r.notes) out += "note: " + note + "\n";
    std::vector<std::vector<std::string>> lines = {{"limit", "arm", "tokens/s", "min-max", "MB/token", "device %", "formula ms",
                                                    "ratio", "first ms", "ratio", "CPU s", "stall ms", "faults", "peak MiB", "cgroup MiB", "kills"}};
    std::string below;
    for (const LimitRuns& limit : r.limits) {
        std::vector<std::string> first = {std::to_string(limit.percent) + " % " + std::to_string(limit.limit_bytes >> 20) + " MiB"};
        if (!limit.device_bytes_per_s.empty()) first.push_back("device " + format_fixed(median(limit.device_bytes_per_s) / 1e9, 2) + " GB/s");
        for (size_t i = 0; i < limit.arms.size(); ++i) {
            lines.push_back(arm_line(limit.arms[i], i < first.size() ? first[i] : ""));
            for (const std::string& error : errors(limit.arms[i]))
                below += std::to_string(limit.percent) + " %, " + printable(limit.arms[i].name, 24) + ": " + error + "\n";
        }
        std::string ratios;
        for (const Arm& arm : limit.arms) {
            const auto ratio = arm.name == "uffd" || arm.name == "resident" ? std::nullopt : speed_ratio(limit, "uffd", arm.name);
            if (ratio) ratios += (ratios.empty() ? "" : ", ") + format_fixed(*ratio, 2) + " times " + printable(arm.name, 24);
        }
        if (!ratios.empty()) below += std::to_string(limit.percent) + " %: uffd is " + ratios + "\n";
        if (!same_logits(limit)) below += std::to_string(limit.percent) + " %: the logits are NOT THE SAME\n";
    }
    out += format_table(lines, "llrrrrrrrrrrrrrr") + below;
    out += "formula: the larger of a token's compute with all weights resident and its bytes that cannot stay at the device's own "
           "speed; ratio: the measured time to it. First: until the first token, loading included, and its ratio to the larger of its "
           "compute and the time its bytes take, a frame's first ones into memory as fresh. CPU, stall and faults (uffd: userfaultfd's; else major ones) are per token.\n";
    return out;
}

std::string bench_json(const BenchReport& r) {
    const BenchOptions& o = *r.options;
    Json out = {{"model", std::filesystem::absolute(o.model).string()},
                {"model_bytes", r.model_bytes},
                {"precision", o.precision == 0 ? Json(nullptr) : Json(o.precision)},
                {"threads", o.threads},
                {"context", o.context},
                {"runs", o.runs},
                {"warmup_tokens", o.counts.warmup},
                {"measured_tokens", o.counts.measured},
                {"hard_limit", r.place.name()},
                {"read_ahead_kib", r.read_ahead_kib ? Json(*r.read_ahead_kib) : Json(nullptr)},
                {"read_ahead_set", o.read_ahead_kib.has_value() && r.read_ahead_note.empty()},
                {"device", r.device},
                {"notes", r.notes}};
    Json& limits = out["limits"] = Json::array();
    for (const LimitRuns& limit : r.limits) {
        Json arms = Json::array();
        for (const Arm& arm : limit.arms) arms.push_back(arm_json(arm));
        Json ratios = Json::object();
        for (const Arm& arm : limit.arms)
            if (const auto ratio = speed_ratio(limit, "uffd", arm.name); ratio && arm.name != "uffd") ratios[arm.name] = *ratio;
        limits.push_back({{"percent", limit.percent},
                          {"limit_bytes", limit.limit_bytes},
                          {"device_bytes_per_s", limit.device_bytes_per_s},
                          {"same_logits", same_logits(limit)},
                          {"uffd_speed_over", std::move(ratios)},
                          {"arms", std::move(arms)}});
    }
    return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
