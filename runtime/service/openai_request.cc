#include "runtime/service/openai_request.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/service/api_error.h"

namespace weir {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostStops = 16;
constexpr size_t kLongestStop = 1 << 10;
constexpr double kMostTopLogprobs = 20;
constexpr size_t kMostInputs = 2048;

// No request nests deeper; what walks a value may then recurse.
constexpr int kDeepest = 64;

// Discarded where the text is no JSON.
ordered_json parse_json(std::string_view text) {
    const auto watch_depth = [](int depth, ordered_json::parse_event_t, ordered_json&) {
        if (depth > kDeepest) throw ApiError(400, "the JSON is nested too deeply", {}, "invalid_json");
        return true;
    };
    return ordered_json::parse(text, watch_depth, false);
}

[[noreturn]] void refuse(const std::string& field, const std::string& what) {
    throw ApiError(400, "'" + field + "' " + what, field, "invalid_value");
}

// The field, or nullptr where it is not there or null.
const ordered_json* find(const ordered_json& body, const char* field) {
    const auto it = body.find(field);
    return it == body.end() || it->is_null() ? nullptr : &*it;
}

double number(const ordered_json& body, const char* field, double fallback, double least, double most) {
    const ordered_json* const value = find(body, field);
    if (value == nullptr) return fallback;
    if (!value->is_number()) refuse(field, "must be a number");
    const double found = value->get<double>();
    if (!(found >= least && found <= most)) {
        refuse(field, "must be from " + ordered_json(least).dump() + " to " + ordered_json(most).dump());
    }
    return found;
}

double whole_number(const ordered_json& body, const char* field, double fallback, double least, double most) {
    const double found = number(body, field, fallback, least, most);
    if (found != std::floor(found)) refuse(field, "must be a whole number");
    return found;
}

bool flag(const ordered_json& body, const char* field) {
    const ordered_json* const value = find(body, field);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(field, "must be true or false");
    return value->get<bool>();
}

std::string text(const ordered_json& value, const std::string& field) {
    if (!value.is_string()) refuse(field, "must be a string");
    return value.get<std::string>();
}

// What other servers can and this one cannot yet: only the value that changes nothing is taken.
void refuse_unless_neutral(const ordered_json& body) {
    for (const char* const field : {"frequency_penalty", "presence_penalty"}) {
        if (number(body, field, 0, -2, 2) != 0) refuse(field, "is not supported: use repeat_penalty");
    }
    for (const char* const field : {"n", "best_of"}) {
        if (whole_number(body, field, 1, 1, 128) != 1) refuse(field, "must be 1: send several requests, they share the work");
    }
    if (const ordered_json* const bias = find(body, "logit_bias"); bias != nullptr && !bias->empty()) refuse("logit_bias", "is not supported");
}

std::vector<std::string> parse_stops(const ordered_json& body) {
    std::vector<std::string> stops;
    const ordered_json* const value = find(body, "stop");
    if (value == nullptr) return stops;
    if (value->is_array()) {
        for (const ordered_json& item : *value) stops.push_back(text(item, "stop"));
    } else {
        stops.push_back(text(*value, "stop"));
    }
    if (stops.size() > kMostStops) refuse("stop", "may hold " + std::to_string(kMostStops) + " strings at most");
    for (const std::string& stop : stops) {
        if (stop.empty() || stop.size() > kLongestStop) refuse("stop", "must hold strings of 1 to " + std::to_string(kLongestStop) + " bytes");
    }
    return stops;
}

AnswerOptions parse_options(const ordered_json& body, const SamplerOptions& defaults) {
    refuse_unless_neutral(body);
    AnswerOptions o;
    if (const ordered_json* const model = find(body, "model")) o.model = text(*model, "model");
    o.sampler = defaults;
    o.sampler.temperature = static_cast<float>(number(body, "temperature", defaults.temperature, 0, 100));
    o.sampler.top_p = static_cast<float>(number(body, "top_p", defaults.top_p, 0, 1));
    o.sampler.min_p = static_cast<float>(number(body, "min_p", defaults.min_p, 0, 1));
    o.sampler.top_k = static_cast<size_t>(whole_number(body, "top_k", static_cast<double>(defaults.top_k), 0, 1e9));
    o.sampler.repeat_penalty = static_cast<float>(number(body, "repeat_penalty", defaults.repeat_penalty, 0.01, 100));
    if (const ordered_json* const seed = find(body, "seed")) {
        if (!seed->is_number_integer()) refuse("seed", "must be a whole number");
        o.sampler.seed = seed->get<uint64_t>();
    } else {
        std::random_device random;
        o.sampler.seed = static_cast<uint64_t>(random()) << 32 | random();
    }
    const char* const limit = find(body, "max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
    if (find(body, limit) != nullptr) o.max_tokens = static_cast<size_t>(whole_number(body, limit, 0, 1, 1e9));
    o.ignore_end = flag(body, "ignore_eos");
    o.stream = flag(body, "stream");
    if (const ordered_json* const stream = find(body, "stream_options")) {
        if (!stream->is_object()) refuse("stream_options", "must be an object");
        if (!o.stream) refuse("stream_options", "has no meaning without \"stream\": true");
        o.include_usage = flag(*stream, "include_usage");
    }
    o.stops = parse_stops(body);
    return o;
}

std::vector<TokenId> token_ids(const ordered_json& array, const char* field, const char* forms) {
    std::vector<TokenId> ids;
    for (const ordered_json& id : array) {
        if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) refuse(field, forms);
        ids.push_back(id.get<TokenId>());
    }
    return ids;
}

// A string, null, or an array of parts of the type "text".
std::string parse_content(const ordered_json& message, const std::string& where) {
    const auto content = message.find("content");
    const bool calls = message.contains("tool_calls");
    if (content == message.end() || content->is_null()) {
        if (!calls) refuse(where + ".content", "is missing");
        return {};
    }
    if (content->is_string()) return content->get<std::string>();
    if (!content->is_array()) refuse(where + ".content", "must be a string or an array of parts");
    std::string whole;
    for (const ordered_json& part : *content) {
        const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" && part.contains("text");
        if (!is_text) refuse(where + ".content", "may hold parts of the type \"text\" only: this model reads text");
        whole += text(part["text"], where + ".content");
    }
    return whole;
}

ToolCall parse_tool_call(const ordered_json& call, const std::string& where) {
    const bool usable = call.is_object() && call.contains("function") && call["function"].is_object() && call["function"].contains("name");
    if (!usable) refuse(where + ".tool_calls", "must hold objects with a \"function\" that has a \"name\"");
    const ordered_json& function = call["function"];
    ToolCall made{text(function["name"], where + ".tool_calls"), "{}"};
    if (const ordered_json* const arguments = find(function, "arguments")) {
        // The protocol sends JSON in a string; templates take the object.
        ordered_json parsed = arguments->is_string() ? parse_json(arguments->get<std::string>()) : *arguments;
        if (!parsed.is_object()) refuse(where + ".tool_calls", "must have a JSON object for their \"arguments\"");
        made.arguments = python_json(parsed);
    }
    return made;
}

}  // namespace

ordered_json parse_body(std::string_view body) {
    ordered_json parsed = parse_json(body);
    if (parsed.is_discarded()) throw ApiError(400, "the body is not valid JSON", {}, "invalid_json");
    if (!parsed.is_object()) throw ApiError(400, "the body must be a JSON object", {}, "invalid_json");
    return parsed;
}

Conversation parse_conversation(const ordered_json& body) {
    Conversation made;
    const ordered_json* const messages = find(body, "messages");
    if (messages == nullptr) refuse("messages", "is missing");
    if (!messages->is_array() || messages->empty()) refuse("messages", "must be an array of at least one message");
    for (size_t i = 0; i < messages->size(); ++i) {
        const ordered_json& message = (*messages)[i];
        const std::string where = "messages[" + std::to_string(i) + "]";
        if (!message.is_object()) refuse(where, "must be an object");
        const auto role = message.find("role");
        if (role == message.end()) refuse(where + ".role", "is missing");
        ChatMessage to{text(*role, where + ".role"), parse_content(message, where)};
        if (to.role == "developer") to.role = "system";  // the protocol's newer word
        if (const ordered_json* const calls = find(message, "tool_calls")) {
            if (!calls->is_array()) refuse(where + ".tool_calls", "must be an array");
            for (const ordered_json& call : *calls) to.tool_calls.push_back(parse_tool_call(call, where));
        }
        made.messages.push_back(std::move(to));
    }
    if (const ordered_json* const tools = find(body, "tools")) {
        if (!tools->is_array()) refuse("tools", "must be an array");
        const ordered_json* const choice = find(body, "tool_choice");
        const bool none = choice != nullptr && *choice == "none";
        for (const ordered_json& tool : *tools) {
            if (!tool.is_object()) refuse("tools", "must hold objects");
            if (!none) made.tools.push_back(python_json(tool));
        }
    }
    if (const ordered_json* const extra = find(body, "chat_template_kwargs")) {
        if (!extra->is_object()) refuse("chat_template_kwargs", "must be an object");
        if (find(*extra, "enable_thinking") != nullptr) made.thinking = flag(*extra, "enable_thinking");
    }
    return made;
}

ChatRequest parse_chat_request(const ordered_json& body, const SamplerOptions& defaults) {
    ChatRequest request{parse_options(body, defaults), parse_conversation(body), parse_tool_use(body)};
    request.options.grammar = asked_grammar(body, request.tools);
    if (request.options.grammar != nullptr && request.options.ignore_end) refuse("ignore_eos", "has no meaning where the answer's form is given");
    request.options.logprobs = flag(body, "logprobs");
    request.options.top_logprobs = static_cast<size_t>(whole_number(body, "top_logprobs", 0, 0, kMostTopLogprobs));
    if (request.options.top_logprobs > 0 && !request.options.logprobs) refuse("top_logprobs", "has no meaning without \"logprobs\": true");
    return request;
}

CompletionRequest parse_completion_request(const ordered_json& body, const SamplerOptions& defaults) {
    CompletionRequest request{parse_options(body, defaults), {}};
    request.options.grammar = asked_grammar(body, {});
    constexpr size_t kProtocolsDefault = 16;
    if (request.options.max_tokens == SIZE_MAX) request.options.max_tokens = kProtocolsDefault;
    if (find(body, "logprobs") != nullptr) {
        request.options.logprobs = true;
        request.options.top_logprobs = static_cast<size_t>(whole_number(body, "logprobs", 0, 0, kMostTopLogprobs));
    }
    if (flag(body, "echo")) refuse("echo", "is not supported");
    if (const ordered_json* const suffix = find(body, "suffix"); suffix != nullptr && *suffix != "") refuse("suffix", "is not supported");
    const ordered_json* prompt = find(body, "prompt");
    if (prompt == nullptr) refuse("prompt", "is missing");
    if (prompt->is_array() && prompt->size() == 1 && !(*prompt)[0].is_number()) prompt = &(*prompt)[0];
    if (prompt->is_string()) {
        request.prompt = prompt->get<std::string>();
        return request;
    }
    if (!prompt->is_array()) refuse("prompt", "must be a string or an array of token ids");
    request.prompt = token_ids(*prompt, "prompt", "must be one string or an array of token ids: send several requests for several prompts");
    return request;
}

EmbeddingRequest parse_embedding_request(const ordered_json& body) {
    EmbeddingRequest made;
    const ordered_json* const input = find(body, "input");
    if (input == nullptr) refuse("input", "is missing");
    constexpr const char* kForms = "must be a string, an array of token ids, or an array of these";
    const auto add = [&](const ordered_json& one) {
        if (one.is_string()) {
            made.inputs.emplace_back(one.get<std::string>());
        } else {
            if (!one.is_array()) refuse("input", kForms);
            made.inputs.emplace_back(token_ids(one, "input", kForms));
        }
    };
    if (!input->is_array() || (!input->empty() && (*input)[0].is_number())) {
        add(*input);
    } else {
        for (const ordered_json& one : *input) add(one);
    }
    if (made.inputs.empty() || made.inputs.size() > kMostInputs) refuse("input", "must hold 1 to " + std::to_string(kMostInputs) + " texts");
    if (const ordered_json* const format = find(body, "encoding_format")) {
        if (*format != "float" && *format != "base64") refuse("encoding_format", "must be \"float\" or \"base64\"");
        made.base64 = *format == "base64";
    }
    if (find(body, "dimensions") != nullptr) refuse("dimensions", "is not supported: embeddings have the model's own");
    return made;
}

std::string python_json(const ordered_json& value) {
    if (value.is_object()) {
        std::string out = "{";
        for (const auto& [key, of] : value.items()) out += (out.size() > 1 ? ", " : "") + ordered_json(key).dump() + ": " + python_json(of);
        return out + "}";
    }
    if (value.is_array()) {
        std::string out = "[";
        for (const ordered_json& item : value) out += (out.size() > 1 ? ", " : "") + python_json(item);
        return out + "]";
    }
    return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace weir
