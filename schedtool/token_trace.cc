#include "schedtool/token_trace.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace weir::sched {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 2;
constexpr double kMostNats = 1e6;

[[noreturn]] void refuse(const std::string& name, size_t line, const std::string& why) {
    throw std::runtime_error(name + ": line " + std::to_string(line) + " " + why);
}

void read_header(const Json& in, const std::string& name, TokenTrace* trace) {
    if (!in.is_object() || !in.contains("weir_token_trace"))
        throw std::runtime_error(name + ": is no trace of tokens; weir perplexity --kl REF --trace-tokens makes one");
    if (in["weir_token_trace"] != kVersion) refuse(name, 1, "is of another version; make it anew");
    if (!in.contains("model") || !in["model"].is_string()) refuse(name, 1, "has no \"model\"");
    trace->model = in["model"].get<std::string>();
    trace->plans = read_rated_plans(in.value("plans", Json()).dump(), name + ": line 1");
}

}  // namespace

std::string trace_header(const std::string& model, std::span<const RatedPlan> plans) {
    return Json{{"weir_token_trace", kVersion}, {"model", model}, {"plans", Json::parse(rated_plans_json(plans))}}.dump() + "\n";
}

// By hand: there are many, and six digits are enough.
std::string trace_line(size_t window, int32_t input, std::span<const TokenAtPlan> plans) {
    std::string text = "{\"window\":" + std::to_string(window) + ",\"input\":" + std::to_string(input);
    const auto add = [&](const char* key, auto&& value) {
        text += std::string(",\"") + key + "\":";
        for (size_t p = 0; p < plans.size(); ++p) {
            char number[32];
            std::snprintf(number, sizeof number, "%c%.6g", p == 0 ? '[' : ',', value(plans[p]));
            text += number;
        }
        text += "]";
    };
    add("entropy", [](const TokenAtPlan& t) { return t.signal.entropy; });
    add("margin", [](const TokenAtPlan& t) { return t.signal.margin; });
    add("kl", [](const TokenAtPlan& t) { return t.kl; });
    return text + "}\n";
}

TokenTrace read_trace(const std::string& text, const std::string& name) {
    TokenTrace trace;
    for (size_t at = 0, line = 1; at < text.size(); ++line) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const Json in = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                                    text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
        at = end + 1;
        if (line == 1) {
            read_header(in, name, &trace);
            continue;
        }
        if (!in.is_object() || !in.contains("window") || !in["window"].is_number_unsigned())
            refuse(name, line, "is no token's");
        trace.windows.push_back(in["window"].get<size_t>());
        if (trace.n_tokens() > 1 && trace.windows.back() < trace.windows[trace.n_tokens() - 2])
            refuse(name, line, "is of an earlier window than the line before");
        if (!in.contains("input") || !in["input"].is_number_unsigned() || in["input"] > INT32_MAX)
            refuse(name, line, "has no \"input\"");
        trace.inputs.push_back(in["input"].get<int32_t>());
        const auto number = [&](const char* key, size_t plan) {
            const auto list = in.find(key);
            if (list == in.end() || !list->is_array() || list->size() != trace.plans.size() ||
                !(*list)[plan].is_number() ||
                !((*list)[plan].get<double>() >= 0 && (*list)[plan].get<double>() <= kMostNats))
                refuse(name, line, std::string("has no \"") + key + "\" for each plan");
            return (*list)[plan].get<double>();
        };
        for (size_t p = 0; p < trace.plans.size(); ++p)
            trace.tokens.push_back({{number("entropy", p), number("margin", p)}, number("kl", p)});
    }
    if (trace.n_tokens() == 0) throw std::runtime_error(name + ": is no trace of tokens, or holds none");
    return trace;
}

}  // namespace weir::sched
