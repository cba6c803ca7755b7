#include "schedtool/token_plans.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace weir::sched {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr double kMostCost = 1e6, kMostPrice = 1e6;

bool within(const Json& number, double most) {
    return number.is_number() && number.get<double>() >= 0 && number.get<double>() <= most;
}

}  // namespace

double TokenPlans::cost(int32_t id) const {
    const auto found = costs.find(id);
    return found == costs.end() ? 1 : found->second;
}

size_t TokenPlans::rung(int32_t id) const {
    const double expected = cost(id);
    const auto sum = [&](size_t p) { return expected * plans[p].kl + price * static_cast<double>(plans[p].bytes); };
    size_t best = plans.size() - 1;
    for (size_t p = plans.size() - 1; p-- > 0;)
        if (sum(p) < sum(best)) best = p;
    return best;
}

std::string token_plans_json(const TokenPlans& t) {
    Json costs = Json::array();
    for (const auto& [id, cost] : t.costs) costs.push_back({id, cost});
    const Json out = {{"weir_token_plans", kVersion},
                      {"model", t.model},
                      {"price", t.price},
                      {"plans", Json::parse(rated_plans_json(t.plans))},
                      {"costs", std::move(costs)}};
    return out.dump() + "\n";
}

TokenPlans read_token_plans(const std::string& text, const std::string& name) {
    const Json in = Json::parse(text, nullptr, false);
    const auto refuse = [&](const std::string& why) { throw std::runtime_error(name + ": " + why); };
    if (!in.is_object() || !in.contains("weir_token_plans")) refuse("is no plans by token; weir-sched fit -o makes them");
    if (in["weir_token_plans"] != kVersion) refuse("is of another version; make it anew");
    const auto has = [&](const char* key, auto&& right) { return in.contains(key) && right(in[key]); };
    if (!has("model", [](const Json& j) { return j.is_string(); })) refuse("has no \"model\"");
    if (!has("price", [](const Json& j) { return within(j, kMostPrice); })) refuse("has no \"price\"");
    if (!has("plans", [](const Json& j) { return j.is_array(); })) refuse("has no \"plans\"");
    if (!has("costs", [](const Json& j) { return j.is_array(); })) refuse("has no \"costs\"");
    TokenPlans read;
    read.model = in["model"].get<std::string>();
    read.price = in["price"].get<double>();
    read.plans = read_rated_plans(in["plans"].dump(), name);
    for (const Json& one : in["costs"]) {
        if (!one.is_array() || one.size() != 2 || !one[0].is_number_unsigned() || one[0] > INT32_MAX || !within(one[1], kMostCost))
            refuse("has a cost that is no token's");
        read.costs[one[0].get<int32_t>()] = one[1].get<double>();
    }
    return read;
}

}  // namespace weir::sched
