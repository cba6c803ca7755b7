// Requests of OpenAI's protocol, checked: bodies of /v1/completions and /v1/chat/completions as structs. What is asked for
// and cannot be had is an error, never silently something else.
//
// Pure; any thread. Throws ApiError, which names the field.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/engine/sampler.h"
#include "runtime/model/chat.h"
#include "runtime/model/tokenizer.h"
#include "runtime/service/grammar.h"
#include "runtime/service/openai_tools.h"

namespace weir {

struct AnswerOptions {
    std::string model;              // as the client calls it
    SamplerOptions sampler;         // the seed is set
    size_t max_tokens = SIZE_MAX;
    bool ignore_end = false;
    bool stream = false;
    bool include_usage = false;     // a last chunk with it
    std::vector<std::string> stops;
    bool logprobs = false;
    size_t top_logprobs = 0;
    std::shared_ptr<const Grammar> grammar;  // what the answer may be; none: anything
};

struct ChatRequest {
    AnswerOptions options;
    Conversation conversation;
    ToolUse tools;
};

struct CompletionRequest {
    AnswerOptions options;
    std::variant<std::string, std::vector<TokenId>> prompt;
};

struct EmbeddingRequest {
    std::vector<std::variant<std::string, std::vector<TokenId>>> inputs;  // at least one
    bool base64 = false;
};

// The body as JSON. Throws ApiError where it is none, or no object.
nlohmann::ordered_json parse_body(std::string_view body);

// defaults: of what the request does not say.
ChatRequest parse_chat_request(const nlohmann::ordered_json& body, const SamplerOptions& defaults);
CompletionRequest parse_completion_request(const nlohmann::ordered_json& body, const SamplerOptions& defaults);
EmbeddingRequest parse_embedding_request(const nlohmann::ordered_json& body);
// Messages and tools alone.
Conversation parse_conversation(const nlohmann::ordered_json& body);

// As json.dumps of Python writes it, which is what chat templates put in their text.
std::string python_json(const nlohmann::ordered_json& value);

}  // namespace weir
