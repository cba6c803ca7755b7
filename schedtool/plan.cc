#include "schedtool/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace weir::sched {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& name, const std::string& why) { throw std::runtime_error(name + ": " + why); }

uint8_t read_level(const Json& in, const char* key, const std::string& place, const std::string& name) {
    const auto it = in.find(key);
    if (it == in.end()) fail(name, place + " has no \"" + key + "\"");
    if (it->is_number_integer()) {
        for (const uint8_t level : kLevels)
            if (*it == level) return level;
    }
    fail(name, place + ", \"" + key + "\": levels are 2, 3, 4, 6 and 8");
}

}  // namespace

std::string shard_name(size_t shard, size_t n_layers) {
    if (shard == head_of(n_layers)) return "head";
    return "layer " + std::to_string(shard / kModules) + " " + kModuleNames[shard % kModules];
}

std::optional<int> Plan::uniform() const {
    if (levels.empty() || std::adjacent_find(levels.begin(), levels.end(), std::not_equal_to<>()) != levels.end())
        return std::nullopt;
    return levels.front();
}

Plan uniform_plan(size_t n_layers, int level) {
    return {std::vector<uint8_t>(shards_of(n_layers), static_cast<uint8_t>(level))};
}

Plan capped_plan(Plan plan, int level) {
    for (uint8_t& bits : plan.levels) bits = std::min(bits, static_cast<uint8_t>(level));
    return plan;
}

std::string plan_json(const Plan& plan) {
    Json layers = Json::array();
    for (size_t layer = 0; layer < plan.n_layers(); ++layer) {
        Json one;
        for (size_t m = 0; m < kModules; ++m) one[kModuleNames[m]] = plan.levels[layer * kModules + m];
        layers.push_back(std::move(one));
    }
    return Json{{"layers", std::move(layers)}, {"head", plan.levels.back()}}.dump();
}

std::string precision_json(const Plan& plan) {
    if (plan.levels.empty()) return "null";
    const std::optional<int> level = plan.uniform();
    return level ? std::to_string(*level) : plan_json(plan);
}

Plan read_plan(const std::string& text, size_t n_layers, const std::string& name) {
    const Json in = Json::parse(text, nullptr, false);
    const auto layers = in.is_object() ? in.find("layers") : in.end();
    if (!in.is_object() || layers == in.end() || !layers->is_array()) {
        fail(name,
             "is no precision plan: {\"layers\": [{\"qk\": 8, \"vo\": 8, \"gate_up\": 4, \"down\": 4}, ...], \"head\": "
             "8} is one");
    }
    if (layers->size() != n_layers)
        fail(name, "has " + std::to_string(layers->size()) + " layers and the model has " + std::to_string(n_layers));
    Plan plan;
    for (size_t layer = 0; layer < n_layers; ++layer) {
        const std::string place = "layer " + std::to_string(layer);
        if (!(*layers)[layer].is_object()) fail(name, place + " is no object of levels");
        for (const char* const module : kModuleNames)
            plan.levels.push_back(read_level((*layers)[layer], module, place, name));
    }
    plan.levels.push_back(read_level(in, "head", "the plan", name));
    return plan;
}

}  // namespace weir::sched
