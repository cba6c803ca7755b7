#include "runtime/model/chat.h"

#include <string_view>

namespace weir {

namespace {

constexpr std::string_view kTurn = "<|im_start|>";
constexpr std::string_view kEndOfTurn = "<|im_end|>";

// The Jinja string literal that the opening quote at `quote` begins, without its escapes. A template may hold line
// feeds in its literals as they are.
std::string read_literal(std::string_view jinja, size_t quote) {
    std::string text;
    for (size_t i = quote + 1; i < jinja.size() && jinja[i] != jinja[quote]; ++i) {
        if (jinja[i] != '\\' || i + 1 == jinja.size()) {
            text += jinja[i];
            continue;
        }
        const char escaped = jinja[++i];
        text += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
    }
    return text;
}

}  // namespace

std::optional<ChatFamily> recognise_chat_template(const std::string& jinja) {
    const bool chat_ml = jinja.find(kTurn) != std::string::npos && jinja.find(kEndOfTurn) != std::string::npos;
    if (chat_ml) return ChatFamily::kChatMl;
    return std::nullopt;
}

// A template with a default has a literal with the whole turn in it: '<|im_start|>system\nYou are ...<|im_end|>\n'.
// Literals that open a system turn for the caller's text close before the end of the turn.
std::string default_system_prompt(ChatFamily, const std::string& jinja) {
    const std::string opening = std::string(kTurn) + "system\n";
    for (size_t at = 0; (at = jinja.find(kTurn, at)) != std::string::npos; ++at) {
        if (at == 0 || (jinja[at - 1] != '\'' && jinja[at - 1] != '"')) continue;
        const std::string literal = read_literal(jinja, at - 1);
        const size_t end = literal.find(kEndOfTurn);
        if (literal.compare(0, opening.size(), opening) != 0 || end == std::string::npos) continue;
        if (end > opening.size()) return literal.substr(opening.size(), end - opening.size());
    }
    return {};
}

std::string wrap_chat(ChatFamily, const std::string& system, const std::string& user) {
    std::string text;
    const auto add_turn = [&text](std::string_view role, std::string_view content) {
        text.append(kTurn).append(role).append("\n").append(content).append(kEndOfTurn).append("\n");
    };
    if (!system.empty()) add_turn("system", system);
    add_turn("user", user);
    return text.append(kTurn).append("assistant\n");
}

}  // namespace weir
