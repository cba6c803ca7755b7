#include "schedtool/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace weir::sched {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr size_t kMostShards = 1u << 20;
constexpr size_t kMostPlans = 1000;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;

// Fields of an object, of the type and in the range that they must have.
class Fields {
  public:
    Fields(const Json& in, const std::string& place, const std::string& name) : in_(in), place_(place), name_(name) {
        if (!in.is_object()) fail("is no object");
    }

    [[noreturn]] void fail(const std::string& why) const {
        throw std::runtime_error(name_ + ": " + place_ + " " + why);
    }

    const Json& at(const char* key) const {
        const auto it = in_.find(key);
        if (it == in_.end()) fail(std::string("has no \"") + key + "\"");
        return *it;
    }
    uint64_t number(const Json& value, const char* key, uint64_t most) const {
        if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
            fail(std::string("\"") + key + "\" is no number from 0 to " + std::to_string(most));
        return value.get<uint64_t>();
    }
    uint64_t number(const char* key, uint64_t most) const { return number(at(key), key, most); }
    std::string text(const char* key) const {
        if (!at(key).is_string()) fail(std::string("\"") + key + "\" is no text");
        return at(key).get<std::string>();
    }
    const Json& list(const char* key, size_t n) const {
        const Json& value = at(key);
        if (!value.is_array() || (n != 0 && value.size() != n))
            fail(std::string("\"") + key + "\" is no list" + (n == 0 ? "" : " of " + std::to_string(n)));
        return value;
    }

  private:
    const Json& in_;
    const std::string place_;
    const std::string& name_;
};

}  // namespace

std::string sensitivity_json(const Sensitivity& t) {
    Json shards = Json::array();
    for (size_t s = 0; s < t.shards.size(); ++s)
        shards.push_back({{"name", shard_name(s, t.n_layers())}, {"bytes", t.shards[s].bytes}, {"kl", t.shards[s].kl}});
    Json out = {{"weir_sensitivity", kVersion},
                {"model", t.model},
                {"text", t.text},
                {"activations", t.activations},
                {"windows", t.windows},
                {"window_tokens", t.window_tokens},
                {"scored_tokens", t.scored_tokens},
                {"levels", kLevels},
                {"fixed_bytes", t.fixed_bytes}};
    std::string text = out.dump(1);
    text.resize(text.size() - 2);  // without its end: shards follow, one a line
    text += ",\n \"shards\": [";
    for (size_t s = 0; s < shards.size(); ++s) text += (s == 0 ? "\n  " : ",\n  ") + shards[s].dump();
    return text + "\n ]\n}\n";
}

Sensitivity read_sensitivity(const std::string& text, const std::string& name) {
    const Json in = Json::parse(text, nullptr, false);
    if (!in.is_object() || !in.contains("weir_sensitivity"))
        throw std::runtime_error(name + ": is no table of sensitivities; weir calibrate makes one");
    const Fields all(in, "the table", name);
    if (all.number("weir_sensitivity", kVersion) != kVersion)
        all.fail("is of another version; make it anew by weir calibrate");
    Sensitivity t;
    t.model = all.text("model");
    t.text = all.text("text");
    if (in.contains("activations")) t.activations = all.text("activations");
    t.windows = all.number("windows", UINT32_MAX);
    t.window_tokens = all.number("window_tokens", UINT32_MAX);
    t.scored_tokens = all.number("scored_tokens", UINT32_MAX);
    t.fixed_bytes = all.number("fixed_bytes", kMostBytes);
    if (all.list("levels", kLevels.size()) != Json(kLevels)) all.fail("is of other levels than 2, 3, 4, 6 and 8");
    const Json& shards = all.list("shards", 0);
    if (shards.size() % kModules != 1 || shards.size() > kMostShards)
        all.fail("has " + std::to_string(shards.size()) + " shards, four a layer and the head are wanted");
    for (const Json& one : shards) {
        const Fields shard(one, "shard " + std::to_string(t.shards.size()), name);
        const Json &bytes = shard.list("bytes", kLevels.size()), &kl = shard.list("kl", kLevels.size());
        ShardCost cost;
        for (size_t l = 0; l < kLevels.size(); ++l) {
            cost.bytes[l] = shard.number(bytes[l], "bytes", kMostBytes);
            if (!kl[l].is_number() || !std::isfinite(kl[l].get<double>())) shard.fail("\"kl\" is no list of numbers");
            cost.kl[l] = kl[l].get<double>();
            if (l > 0 && cost.bytes[l] < cost.bytes[l - 1]) shard.fail("has fewer bytes at a higher level");
        }
        t.shards.push_back(cost);
    }
    return t;
}

void make_monotone(Sensitivity* table) {
    for (ShardCost& s : table->shards) {
        s.kl[kHighest] = 0;
        for (size_t l = kHighest; l-- > 0;) s.kl[l] = std::max(s.kl[l], s.kl[l + 1]);
    }
}

RatedPlan rate(const Sensitivity& table, const Plan& plan) {
    RatedPlan out{plan, table.fixed_bytes, 0};
    for (size_t s = 0; s < table.shards.size(); ++s) {
        const auto l =
            static_cast<size_t>(std::find(kLevels.begin(), kLevels.end(), plan.levels.at(s)) - kLevels.begin());
        out.bytes += table.shards[s].bytes.at(l);
        out.kl += table.shards[s].kl.at(l);
    }
    return out;
}

std::string rated_plans_json(std::span<const RatedPlan> plans) {
    Json list = Json::array();
    for (const RatedPlan& p : plans)
        list.push_back({{"bytes", p.bytes}, {"predicted_kl", p.kl}, {"plan", Json::parse(plan_json(p.plan))}});
    return list.dump();
}

std::vector<RatedPlan> read_rated_plans(const std::string& text, const std::string& name) {
    const Json list = Json::parse(text, nullptr, false);
    const auto refuse = [&](const char* why) { throw std::runtime_error(name + ": " + why); };
    if (!list.is_array() || list.empty() || list.size() > kMostPlans) refuse("has no list of plans");
    std::vector<RatedPlan> read;
    for (const Json& one : list) {
        const bool whole = one.is_object() && one.contains("bytes") && one["bytes"].is_number_unsigned() &&
                           one["bytes"] <= kMostBytes && one.contains("predicted_kl") &&
                           one["predicted_kl"].is_number() && one.contains("plan") && one["plan"].contains("layers") &&
                           one["plan"]["layers"].is_array();
        if (!whole) refuse("has a plan without bytes, predicted_kl or plan");
        read.push_back({read_plan(one["plan"].dump(), one["plan"]["layers"].size(), name), one["bytes"].get<uint64_t>(),
                        one["predicted_kl"].get<double>()});
        if (read.size() > 1 && read.back().bytes >= read[read.size() - 2].bytes)
            refuse("has plans that are not in order, finest first");
        if (read.back().plan.n_layers() != read.front().plan.n_layers()) refuse("has plans of several models");
    }
    return read;
}

}  // namespace weir::sched
