// The tools of a request: which may be called, whether one must be; and the form that its answer is held to, by them
// or by response_format.
//
// Pure; any thread. Throws ApiError, which names the field.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/service/grammar.h"

namespace weir {

// Calls that an answer may hold where it must hold one.
constexpr uint32_t kMostToolCalls = 8;

struct ToolUse {
    std::vector<std::string> names;  // that may be called; none: there are no tools
    bool required = false;
    bool several = true;             // calls in one answer
};

ToolUse parse_tool_use(const nlohmann::ordered_json& body);

// What the answer may be, by "response_format" and by tools that must be called; nullptr: anything.
std::shared_ptr<const Grammar> asked_grammar(const nlohmann::ordered_json& body, const ToolUse& tools);

}  // namespace weir
