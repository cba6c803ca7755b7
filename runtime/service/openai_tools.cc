#include "runtime/service/openai_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/service/api_error.h"
#include "runtime/service/json_schema.h"
#include "runtime/service/tool_calls.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostTools = 128;
constexpr size_t kLongestName = 64;

[[noreturn]] void refuse(const std::string& field, const std::string& what) {
    throw ApiError(400, "'" + field + "' " + what, field, "invalid_value");
}

const Json* find(const Json& body, const char* field) {
    const auto it = body.find(field);
    return it == body.end() || it->is_null() ? nullptr : &*it;
}

// Letters, digits, _ and -: templates write names into JSON as they are.
std::string function_name(const Json& function, const std::string& field) {
    const Json* const name = function.is_object() ? find(function, "name") : nullptr;
    if (name == nullptr || !name->is_string()) refuse(field, "must have a \"name\"");
    const std::string text = name->get<std::string>();
    const bool plain =
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string::npos;
    if (text.empty() || text.size() > kLongestName || !plain) {
        refuse(field + ".name", "must have 1 to " + std::to_string(kLongestName) + " letters, digits, _ or -");
    }
    return text;
}

const Json& function_of(const Json& tool, const std::string& field) {
    const Json* const type = tool.is_object() ? find(tool, "type") : nullptr;
    if (type == nullptr || *type != "function" || find(tool, "function") == nullptr) {
        refuse(field, "must be an object of the type \"function\" with a \"function\"");
    }
    return tool["function"];
}

// The text of one call, then of more; as tool_calls.h reads them.
Grammar::NodeId calls(SchemaCompiler& compiler, Grammar& grammar, const Json& body, const ToolUse& tools) {
    static const Json kNoParameters{{"type", "object"}, {"properties", Json::object()}};
    std::vector<Grammar::NodeId> ways;
    for (size_t i = 0; i < body["tools"].size(); ++i) {
        const Json& function = body["tools"][i]["function"];
        const std::string name = function["name"].get<std::string>();
        if (std::find(tools.names.begin(), tools.names.end(), name) == tools.names.end()) continue;
        const Json* const parameters = find(function, "parameters");
        const std::string where = "tools[" + std::to_string(i) + "].function.parameters";
        const Grammar::NodeId close = grammar.literal("}\n" + std::string(kToolCallEnd), grammar.end());
        const Grammar::NodeId arguments =
            compiler.value(parameters != nullptr ? *parameters : kNoParameters, where, close);
        ways.push_back(
            grammar.literal(std::string(kToolCallBegin) + "\n{\"name\": \"" + name + "\", \"arguments\": ", arguments));
    }
    const Grammar::RuleId one = grammar.add_rule(), another = grammar.add_rule();
    grammar.set_rule(one, grammar.either(ways));
    grammar.set_rule(another, grammar.literal("\n", grammar.call(one, grammar.end())));
    return grammar.call(one, grammar.repeat(another, 0, tools.several ? kMostToolCalls - 1 : 0, grammar.end()));
}

// A blank may stand before the value: some vocabularies begin each text with one.
Grammar::NodeId formatted(SchemaCompiler& compiler, Grammar& grammar, const Json& format) {
    const Json* const type = format.is_object() ? find(format, "type") : nullptr;
    Grammar::NodeId value = grammar.nothing();
    if (type != nullptr && *type == "json_object") {
        value = compiler.any_object(grammar.end());
    } else if (type != nullptr && *type == "json_schema") {
        const Json* const named = find(format, "json_schema");
        const Json* const schema = named != nullptr && named->is_object() ? find(*named, "schema") : nullptr;
        if (schema == nullptr) refuse("response_format.json_schema.schema", "is missing");
        value = compiler.value(*schema, "response_format.json_schema.schema", grammar.end());
    } else {
        refuse("response_format", "must be of the type \"text\", \"json_object\" or \"json_schema\"");
    }
    return grammar.either(value, grammar.bytes(' ', ' ', value));
}

}  // namespace

ToolUse parse_tool_use(const Json& body) {
    ToolUse made;
    const Json* const tools = find(body, "tools");
    const Json* const choice = find(body, "tool_choice");
    if (tools != nullptr && !tools->is_array()) refuse("tools", "must be an array");
    if (tools != nullptr && tools->size() > kMostTools)
        refuse("tools", "may hold " + std::to_string(kMostTools) + " at most");
    for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
        const std::string field = "tools[" + std::to_string(i) + "]";
        const std::string name = function_name(function_of((*tools)[i], field), field + ".function");
        if (std::find(made.names.begin(), made.names.end(), name) != made.names.end())
            refuse(field, "has the name of another: " + name);
        made.names.push_back(name);
    }
    if (const Json* const several = find(body, "parallel_tool_calls")) {
        if (!several->is_boolean()) refuse("parallel_tool_calls", "must be true or false");
        made.several = several->get<bool>();
    }
    if (choice == nullptr || *choice == "auto") return made;
    if (*choice == "none") return {};
    made.required = true;
    if (choice->is_object()) {
        const std::string wanted = function_name(function_of(*choice, "tool_choice"), "tool_choice.function");
        if (std::find(made.names.begin(), made.names.end(), wanted) == made.names.end())
            refuse("tool_choice", "names no tool of the request: " + wanted);
        made.names = {wanted};
        made.several = false;
    } else if (*choice != "required") {
        refuse("tool_choice", "must be \"none\", \"auto\", \"required\" or name a function");
    }
    if (made.names.empty()) refuse("tool_choice", "asks for a call, and there are no tools");
    return made;
}

std::shared_ptr<const Grammar> asked_grammar(const Json& body, const ToolUse& tools) {
    const Json* const format = find(body, "response_format");
    const bool is_text =
        format == nullptr || (format->is_object() && format->contains("type") && (*format)["type"] == "text");
    if (is_text && !tools.required) return nullptr;
    const auto grammar = std::make_shared<Grammar>();
    try {
        SchemaCompiler compiler(*grammar);
        Grammar::NodeId root = grammar->nothing();
        if (!is_text && !tools.required) root = formatted(compiler, *grammar, *format);
        if (!tools.names.empty()) root = grammar->either(root, calls(compiler, *grammar, body, tools));
        compiler.finish(root, tools.required ? "tools" : "response_format");
    } catch (const GrammarError& error) {
        refuse(tools.required ? "tools" : "response_format", std::string("cannot be used: ") + error.what());
    }
    return grammar;
}

}  // namespace weir
