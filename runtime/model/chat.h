// Wraps a prompt in the format that a chat model was trained on. The file's template (tokenizer.chat_template) is a
// Jinja program, which is not run: its family is recognised by the markers in it, and one that is not known is the
// caller's to report.
#pragma once

#include <optional>
#include <string>

namespace weir {

enum class ChatFamily { kChatMl };

// nullopt where the template is of no family that we know.
std::optional<ChatFamily> recognise_chat_template(const std::string& jinja);

// The system prompt that the template itself puts before a conversation that has none; empty where it puts none.
std::string default_system_prompt(ChatFamily family, const std::string& jinja);

// One user turn and the start of the answer; no system turn where system is empty. The markers are control tokens:
// encode with parse_special.
std::string wrap_chat(ChatFamily family, const std::string& system, const std::string& user);

}  // namespace weir
