// Conversations in the format that a chat model was trained on. The file's template (tokenizer.chat_template) is a Jinja
// program, which is not run: its family is recognised by what is in it, the details that differ within a family are read
// from its literals, and the text is then made here, byte for byte what the program would make. A template of no family
// that is known is reported, never guessed.
//
// Pure; any thread. Throws Error where the template would refuse the conversation.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"

namespace weir {

enum class ChatFamily : uint8_t {
    kChatMl,
    kQwen,
    kLlama2,
    kLlama3,
    kLlama31,
    kMistral,
    kGemma,
    kPhi3,
    kDeepSeek2,
    kDeepSeekR1,
    kGranite,
    kZephyr,
};

// JSON below is what json.dumps of Python writes with ensure_ascii=False: ", " and ": " between things, keys as they came.
struct ToolCall {
    std::string name;
    std::string arguments;  // a JSON object
};

struct ChatMessage {
    std::string role;  // "system", "user", "assistant", "tool"
    std::string content;
    std::vector<ToolCall> tool_calls = {};  // of the assistant
};

struct Conversation {
    std::vector<ChatMessage> messages;
    std::vector<std::string> tools = {};  // each as JSON
    bool begin_answer = true;             // ends with the opening of the assistant's turn
    bool thinking = true;                 // false: a model that thinks first is told not to, where its template can
};

// What a template takes from outside of the conversation.
struct ChatMarks {
    std::string bos;
    std::string eos;
    std::tm today = {};
};

struct ChatTemplate {
    ChatFamily family = ChatFamily::kChatMl;
    bool begins_with_bos = false;
    bool takes_system = true;     // a first turn of the role "system"
    bool trims = false;           // blanks around contents go
    bool dated_today = false;     // the date in the text is today's
    bool drops_thoughts = false;  // of earlier answers
    bool can_skip_thoughts = false;
    std::string default_system;   // put before a conversation that has none
    std::string answer_begin;     // after the mark that opens the answer which is asked for
    // Mistral's kinds differ in blanks.
    std::string user_open, user_close, answer_open, answer_close;

    // nullopt where the template is of no family that is known.
    static std::optional<ChatTemplate> recognise(std::string_view jinja);
    // A family's usual template by its name; nullopt where there is none of that name.
    static std::optional<ChatTemplate> named(std::string_view name);
    static std::string known_names();

    const char* name() const;
    bool takes_tools() const { return family == ChatFamily::kQwen; }
    std::string render(const Conversation& conversation, const ChatMarks& marks) const;
};

// The template to use for a model: `wanted` is a family's name, or a file with a template in it; empty: the model file's own.
// Throws Error, saying what can be done, where there is none or none that is known.
ChatTemplate find_chat_template(const GgufFile& file, const std::string& wanted);

// BOS and EOS as the vocabulary spells them, and today.
ChatMarks chat_marks(const Tokenizer& tokenizer);

// Ids of a rendered conversation: marks become control tokens; BOS once, whether or not the template wrote it.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const std::string& text);

}  // namespace weir
