#include "runtime/service/openai_answer.h"

#include <ctime>
#include <random>

namespace weir {
namespace {

std::string random_id(const char* prefix) {
    constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    std::random_device random;
    std::string id = prefix;
    for (int i = 0; i < 24; ++i) id += kLetters[random() % (sizeof kLetters - 1)];
    return id;
}

nlohmann::ordered_json usage_of(const Answer& answer) {
    const Generation::Outcome& o = answer.outcome();
    return {{"prompt_tokens", o.prompt_tokens},
            {"completion_tokens", answer.tokens()},
            {"total_tokens", o.prompt_tokens + answer.tokens()},
            {"prompt_tokens_details", {{"cached_tokens", o.cached_tokens}}}};
}

nlohmann::ordered_json timings_of(const Answer& answer) {
    const Generation::Outcome& o = answer.outcome();
    const double n = static_cast<double>(o.tokens);
    nlohmann::ordered_json timings = {{"queued_ms", o.queued_s * 1e3},
                                      {"prompt_ms", o.prompt_s * 1e3},
                                      {"predicted_ms", o.decode_s * 1e3},
                                      {"predicted_per_second", o.decode_s > 0 && o.tokens > 1 ? (n - 1) / o.decode_s : 0}};
    if (!o.tokens_at.empty()) timings["precision"] = {{"tokens", o.tokens_at}, {"remembered", o.remembered}};
    return timings;
}

const char* finish_reason(const Answer& answer, size_t calls) {
    if (!answer.stopped()) return "length";
    return calls > 0 ? "tool_calls" : "stop";
}

const char* type_of(int status) {
    switch (status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 503: return "unavailable_error";
        default: return status < 500 ? "invalid_request_error" : "server_error";
    }
}

}  // namespace

std::string dump(const nlohmann::ordered_json& json) {
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string error_body(const ApiError& error) {
    const auto text_or_null = [](const std::string& text) { return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text); };
    return dump({{"error", {{"message", error.what()},
                            {"type", type_of(error.status)},
                            {"param", text_or_null(error.param)},
                            {"code", text_or_null(error.code)}}}});
}

AnswerFormat::AnswerFormat(bool chat, std::string model, const Tokenizer& tokenizer, bool logprobs)
    : chat_(chat), model_(std::move(model)), tokenizer_(tokenizer), logprobs_(logprobs),
      id_(random_id(chat ? "chatcmpl-" : "cmpl-")), created_(static_cast<int64_t>(std::time(nullptr))) {}

AnswerFormat::Json AnswerFormat::head(const char* kind, bool streams) const {
    const std::string object = chat_ ? std::string("chat.completion") + (streams ? ".chunk" : "") : "text_completion";
    Json made{{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}, {"system_fingerprint", "weir"}};
    made["choices"] = Json::array();
    if (kind == nullptr) return made;
    Json choice{{"index", 0}};
    choice[kind] = Json::object();
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = nullptr;
    made["choices"].push_back(std::move(choice));
    return made;
}

AnswerFormat::Json AnswerFormat::logprobs_of(std::span<const GeneratedToken> tokens) const {
    if (!logprobs_) return nullptr;
    const auto text_of = [this](TokenId id) { return valid_utf8(tokenizer_.piece(id, true)); };
    if (!chat_) {
        Json made{{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}, {"text_offset", Json::array()}};
        size_t offset = 0;
        for (const GeneratedToken& token : tokens) {
            Json top = Json::object();
            for (const TokenLogprob& other : token.top) top[text_of(other.id)] = other.logprob;
            made["tokens"].push_back(text_of(token.id));
            made["token_logprobs"].push_back(token.logprob);
            made["top_logprobs"].push_back(std::move(top));
            made["text_offset"].push_back(offset);
            offset += tokenizer_.piece(token.id).size();
        }
        return made;
    }
    const auto entry = [&](TokenId id, float logprob) {
        Json bytes = Json::array();
        for (const char byte : tokenizer_.piece(id, true)) bytes.push_back(static_cast<unsigned char>(byte));
        return Json{{"token", text_of(id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
    };
    Json content = Json::array();
    for (const GeneratedToken& token : tokens) {
        Json one = entry(token.id, token.logprob);
        one["top_logprobs"] = Json::array();
        for (const TokenLogprob& other : token.top) one["top_logprobs"].push_back(entry(other.id, other.logprob));
        content.push_back(std::move(one));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
}

std::string AnswerFormat::whole(const std::string& text, std::span<const ToolCall> calls, std::span<const GeneratedToken> tokens,
                                const Answer& answer) const {
    Json made = head(chat_ ? "message" : "text", false);
    Json& choice = made["choices"][0];
    if (chat_) {
        choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
        if (!calls.empty() && text.empty()) choice["message"]["content"] = nullptr;
        for (const ToolCall& call : calls) {
            choice["message"]["tool_calls"].push_back(
                {{"id", random_id("call_")}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
        }
    } else {
        choice["text"] = text;
    }
    choice["logprobs"] = logprobs_of(tokens);
    choice["finish_reason"] = finish_reason(answer, calls.size());
    made["usage"] = usage_of(answer);
    made["timings"] = timings_of(answer);
    return dump(made);
}

std::string AnswerFormat::event(Json chunk, bool usage) const {
    if (usage && !chunk.contains("usage")) chunk["usage"] = nullptr;
    return "data: " + dump(chunk) + "\n\n";
}

std::string AnswerFormat::opening(bool usage) const {
    if (!chat_) return {};
    Json made = head("delta", true);
    made["choices"][0]["delta"] = {{"role", "assistant"}, {"content", ""}};
    return event(std::move(made), usage);
}

std::string AnswerFormat::chunk(const Answer::Piece& piece, bool usage) const {
    Json made = head(chat_ ? "delta" : "text", true);
    Json& choice = made["choices"][0];
    if (chat_) {
        choice["delta"] = {{"content", piece.text}};
    } else {
        choice["text"] = piece.text;
    }
    choice["logprobs"] = logprobs_of(piece.tokens);
    return event(std::move(made), usage);
}

std::string AnswerFormat::call(const ToolCall& call, size_t index, bool usage) const {
    Json name = head("delta", true), arguments = name;
    name["choices"][0]["delta"]["tool_calls"] = Json::array({{{"index", index},
                                                              {"id", random_id("call_")},
                                                              {"type", "function"},
                                                              {"function", {{"name", call.name}, {"arguments", ""}}}}});
    arguments["choices"][0]["delta"]["tool_calls"] = Json::array({{{"index", index}, {"function", {{"arguments", call.arguments}}}}});
    return event(std::move(name), usage) + event(std::move(arguments), usage);
}

std::string AnswerFormat::closing(const Answer& answer, size_t calls, bool usage) const {
    Json made = head(chat_ ? "delta" : "text", true);
    if (!chat_) made["choices"][0]["text"] = "";
    made["choices"][0]["finish_reason"] = finish_reason(answer, calls);
    std::string events = event(std::move(made), usage);
    if (usage) {
        Json last = head(nullptr, true);
        last["usage"] = usage_of(answer);
        last["timings"] = timings_of(answer);
        events += event(std::move(last), usage);
    }
    return events + "data: [DONE]\n\n";
}

}  // namespace weir
