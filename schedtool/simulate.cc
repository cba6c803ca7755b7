#include "schedtool/simulate.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

namespace weir::sched {
namespace {

constexpr size_t kMostDrafts = 16;

double read_s(const SimulatedPlan& plan, const Device& device) {
    return static_cast<double>(plan.bytes - std::min(plan.bytes, device.frames)) / device.bytes_per_s;
}

double cycle_s(const SimulatedPlan& verify, const SimulatedPlan& draft, size_t k, const Device& device) {
    const auto drafts = static_cast<double>(k);
    return drafts * seconds_per_token(draft, device) +
           std::max(verify.compute_s + drafts * device.row_s, read_s(verify, device));
}

template <typename... Values>
std::string line(const char* format, Values... values) {
    char text[160];
    std::snprintf(text, sizeof text, format, values...);
    return text;
}

}  // namespace

double seconds_per_token(const SimulatedPlan& plan, const Device& device) {
    return std::max(plan.compute_s, read_s(plan, device));
}

double auto_tokens_per_s(std::span<const SimulatedPlan> plans, std::span<const double> shares, const Device& device) {
    double seconds = 0;
    for (size_t p = 0; p < plans.size(); ++p) seconds += shares[p] * seconds_per_token(plans[p], device);
    return std::accumulate(shares.begin(), shares.end(), 0.0) / seconds;
}

double tokens_per_pass(std::span<const double> acceptance, size_t k) {
    double tokens = 1, right = 1;
    for (size_t i = 0; i < k; ++i) {
        right *= acceptance[std::min(i, acceptance.size() - 1)];
        tokens += right;
    }
    return tokens;
}

double exact_tokens_per_s(const SimulatedPlan& verify, const SimulatedPlan& draft, std::span<const double> acceptance,
                          size_t k, const Device& device) {
    return tokens_per_pass(acceptance, k) / cycle_s(verify, draft, k, device);
}

std::string simulation_text(const Simulation& s) {
    const double finest = 1 / seconds_per_token(s.plans.front(), s.device);
    std::string out = line("%-16s  %10s  %10s  %9s  %8s\n", "", "bytes", "read", "tokens/s", "x finest");
    for (const SimulatedPlan& plan : s.plans) {
        const double rate = 1 / seconds_per_token(plan, s.device);
        out += line(
            "%-16s  %10llu  %10llu  %9.3f  %8.3f\n", plan.name.c_str(), static_cast<unsigned long long>(plan.bytes),
            static_cast<unsigned long long>(plan.bytes - std::min(plan.bytes, s.device.frames)), rate, rate / finest);
    }
    if (!s.shares.empty()) {
        const double rate = auto_tokens_per_s(s.plans, s.shares, s.device);
        out += line("%-16s  %10s  %10s  %9.3f  %8.3f\n", "auto", "", "", rate, rate / finest);
    }
    if (s.acceptance.empty()) return out;
    const SimulatedPlan& draft = s.plans[s.draft];
    out += "\nauto-exact, drafted at " + draft.name + "\n" +
           line("%6s  %15s  %9s  %9s  %8s\n", "drafts", "tokens a pass", "cycle, ms", "tokens/s", "x finest");
    for (size_t k = 1; k <= kMostDrafts; ++k) {
        const double rate = exact_tokens_per_s(s.plans.front(), draft, s.acceptance, k, s.device);
        out += line("%6zu  %15.3f  %9.2f  %9.3f  %8.3f\n", k, tokens_per_pass(s.acceptance, k),
                    1e3 * cycle_s(s.plans.front(), draft, k, s.device), rate, rate / finest);
    }
    return out;
}

std::string simulation_json(const Simulation& s) {
    using Json = nlohmann::ordered_json;
    Json plans = Json::array(), exact = Json::array();
    for (const SimulatedPlan& plan : s.plans)
        plans.push_back({{"plan", plan.name},
                         {"bytes", plan.bytes},
                         {"read_bytes", plan.bytes - std::min(plan.bytes, s.device.frames)},
                         {"tokens_per_s", 1 / seconds_per_token(plan, s.device)}});
    for (size_t k = 1; k <= kMostDrafts && !s.acceptance.empty(); ++k)
        exact.push_back(
            {{"drafts", k},
             {"tokens_per_pass", tokens_per_pass(s.acceptance, k)},
             {"cycle_s", cycle_s(s.plans.front(), s.plans[s.draft], k, s.device)},
             {"tokens_per_s", exact_tokens_per_s(s.plans.front(), s.plans[s.draft], s.acceptance, k, s.device)}});
    Json out = {{"plans", plans}};
    out["auto"] =
        s.shares.empty() ? Json(nullptr) : Json{{"tokens_per_s", auto_tokens_per_s(s.plans, s.shares, s.device)}};
    out["auto_exact"] = exact.empty() ? Json(nullptr) : Json{{"draft", s.plans[s.draft].name}, {"lengths", exact}};
    return out.dump(1) + "\n";
}

}  // namespace weir::sched
