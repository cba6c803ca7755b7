// Answers of OpenAI's protocol, as JSON: whole ones, and the chunks of a stream.
//
// Pure; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "runtime/model/chat.h"
#include "runtime/model/tokenizer.h"
#include "runtime/service/answer.h"
#include "runtime/service/api_error.h"

namespace weir {

class AnswerFormat {
  public:
    AnswerFormat(bool chat, std::string model, const Tokenizer& tokenizer, bool logprobs);

    // One JSON object, of a whole answer.
    std::string whole(const std::string& text, std::span<const ToolCall> calls, std::span<const GeneratedToken> tokens,
                      const Answer& answer) const;

    // Events of a stream. usage: the stream ends with it, and every chunk before has a null in its place.
    std::string opening(bool usage) const;
    std::string chunk(const Answer::Piece& piece, bool usage) const;
    // A call, the number `index` of the answer: its name, then its arguments.
    std::string call(const ToolCall& call, size_t index, bool usage) const;
    std::string closing(const Answer& answer, size_t calls, bool usage) const;

  private:
    using Json = nlohmann::ordered_json;
    Json head(const char* kind, bool streams) const;
    Json logprobs_of(std::span<const GeneratedToken> tokens) const;
    std::string event(Json chunk, bool usage) const;

    const bool chat_;
    const std::string model_;
    const Tokenizer& tokenizer_;
    const bool logprobs_;
    const std::string id_;
    const int64_t created_;
};

// The body of an error, in OpenAI's shape.
std::string error_body(const ApiError& error);

// Text that may hold bytes of any kind, as JSON can hold it.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace weir
