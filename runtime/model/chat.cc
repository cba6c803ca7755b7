// Recognises chat templates. What they make of a conversation is in chat_render.cc.
#include "runtime/model/chat.h"

#include <fstream>
#include <iterator>

#include "runtime/error.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

struct NamedFamily {
    const char* name;
    ChatFamily family;
};
constexpr NamedFamily kFamilies[] = {
    {"chatml", ChatFamily::kChatMl},     {"qwen", ChatFamily::kQwen},          {"llama2", ChatFamily::kLlama2},
    {"llama3", ChatFamily::kLlama3},     {"llama3.1", ChatFamily::kLlama31},   {"mistral", ChatFamily::kMistral},
    {"gemma", ChatFamily::kGemma},       {"phi3", ChatFamily::kPhi3},          {"deepseek2", ChatFamily::kDeepSeek2},
    {"deepseek-r1", ChatFamily::kDeepSeekR1}, {"granite", ChatFamily::kGranite}, {"zephyr", ChatFamily::kZephyr},
};

// No template is a megabyte; a file of weights given by mistake is.
constexpr size_t kMostTemplateBytes = 1 << 20;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The string literals of a Jinja program, without their escapes. A literal may hold line feeds as they are. Text outside of
// {{ }} and {% %} counts as a literal too: it is printed as it is.
std::vector<std::string> literals_of(std::string_view jinja) {
    std::vector<std::string> found;
    std::string plain;
    bool code = false;
    for (size_t i = 0; i < jinja.size(); ++i) {
        const std::string_view two = jinja.substr(i, 2);
        if (!code) {
            if (two == "{#") {
                const size_t end = jinja.find("#}", i);
                if (end == std::string_view::npos) break;
                i = end + 1;
            } else if (two == "{{" || two == "{%") {
                if (!plain.empty()) found.push_back(std::move(plain));
                plain.clear();
                code = true;
                ++i;
            } else {
                plain += jinja[i];
            }
            continue;
        }
        if (two == "}}" || two == "%}") {
            code = false;
            ++i;
            continue;
        }
        if (jinja[i] != '\'' && jinja[i] != '"') continue;
        const char quote = jinja[i];
        std::string text;
        for (++i; i < jinja.size() && jinja[i] != quote; ++i) {
            if (jinja[i] != '\\' || i + 1 == jinja.size()) {
                text += jinja[i];
                continue;
            }
            const char escaped = jinja[++i];
            text += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
        }
        found.push_back(std::move(text));
    }
    if (!plain.empty()) found.push_back(std::move(plain));
    return found;
}

// What the first literal that begins with `opening` has between it and `end`; nothing where that is empty.
std::string between(const std::vector<std::string>& literals, std::string_view opening, std::string_view end) {
    for (const std::string& literal : literals) {
        if (literal.compare(0, opening.size(), opening) != 0) continue;
        const size_t at = literal.find(end, opening.size());
        if (at != std::string::npos && at > opening.size()) return literal.substr(opening.size(), at - opening.size());
    }
    return {};
}

// The rest of the last literal that begins with `opening`.
std::string after(const std::vector<std::string>& literals, std::string_view opening) {
    for (auto literal = literals.rbegin(); literal != literals.rend(); ++literal) {
        if (literal->compare(0, opening.size(), opening) == 0) return literal->substr(opening.size());
    }
    return {};
}

bool is_one_of(const std::vector<std::string>& literals, std::string_view wanted) {
    for (const std::string& literal : literals) {
        if (literal == wanted) return true;
    }
    return false;
}

// ChatML's kinds print every turn as <|im_start|>ROLE\nTEXT<|im_end|>\n; Qwen's have tools besides.
std::optional<ChatTemplate> recognise_chat_ml(std::string_view jinja, const std::vector<std::string>& literals) {
    bool line_feed = false;
    for (size_t i = 0; i < literals.size(); ++i) {
        const std::string& literal = literals[i];
        const size_t end = literal.rfind("<|im_end|>");
        if (end == std::string::npos) continue;
        const std::string_view rest = std::string_view(literal).substr(end + 10);
        line_feed |= rest == "\n" || (rest.empty() && i + 1 < literals.size() && literals[i + 1] == "\n");
    }
    if (!line_feed) return std::nullopt;
    ChatTemplate made;
    made.default_system = between(literals, "<|im_start|>system\n", "<|im_end|>");
    made.begins_with_bos = has(jinja, "bos_token");
    made.trims = has(jinja, "| trim") || has(jinja, "|trim") || has(jinja, ".strip()");
    made.answer_begin = after(literals, "<|im_start|>assistant\n");
    if (has(jinja, "You may call one or more functions to assist with the user query.") && has(jinja, "<tool_response>")) {
        made.family = ChatFamily::kQwen;
        made.drops_thoughts = has(jinja, "reasoning_content");
        made.can_skip_thoughts = has(jinja, "enable_thinking");
    }
    return made;
}

std::optional<ChatTemplate> recognise_inst(std::string_view jinja, const std::vector<std::string>& literals) {
    if (has(jinja, "<<SYS>>")) {
        ChatTemplate made = *ChatTemplate::named("llama2");
        const bool usual = is_one_of(literals, "[INST] ") && is_one_of(literals, " [/INST]") && is_one_of(literals, " ");
        return usual ? std::optional(made) : std::nullopt;
    }
    ChatTemplate made = *ChatTemplate::named("mistral");
    made.takes_system = has(jinja, "system_message");
    made.user_open.clear();
    made.user_close.clear();
    made.answer_open.clear();
    made.answer_close.clear();
    for (const char* const open : {" [INST] ", "[INST] ", "[INST]"}) {
        if (made.user_open.empty() && is_one_of(literals, open)) made.user_open = open;
    }
    for (const char* const close : {" [/INST]", "[/INST]"}) {
        if (made.user_close.empty() && is_one_of(literals, close)) made.user_close = close;
    }
    if (is_one_of(literals, " ")) made.answer_open.assign(1, ' ');
    if (has(jinja, "' ' + eos_token") || has(jinja, "' '+ eos_token")) made.answer_close.assign(1, ' ');
    const bool tools = has(jinja, "[AVAILABLE_TOOLS]");  // their templates put the system's words elsewhere
    if (made.user_open.empty() || made.user_close.empty() || tools) return std::nullopt;
    return made;
}

std::optional<ChatTemplate> recognise_gemma(std::string_view jinja) {
    ChatTemplate made = *ChatTemplate::named("gemma");
    made.takes_system = has(jinja, "first_user_prefix");
    return has(jinja, "<end_of_turn>") ? std::optional(made) : std::nullopt;
}

std::optional<ChatTemplate> recognise_granite(std::string_view jinja) {
    ChatTemplate made = *ChatTemplate::named("granite");
    if (has(jinja, "Knowledge Cutoff Date")) {
        // Later ones word it differently: only what is known to the letter.
        const bool known = has(jinja, "\"Knowledge Cutoff Date: April 2024.\\nToday's Date: \"") &&
                           has(jinja, "\".\\nYou are Granite, developed by IBM.\"") && has(jinja, "\" You are a helpful AI assistant.\"") &&
                           !has(jinja, "thinking");
        if (!known) return std::nullopt;
        made.dated_today = true;
    }
    return made;
}

}  // namespace

const char* ChatTemplate::name() const {
    for (const NamedFamily& known : kFamilies) {
        if (known.family == family) return known.name;
    }
    return "?";
}

std::string ChatTemplate::known_names() {
    std::string names;
    for (const NamedFamily& known : kFamilies) names += (names.empty() ? "" : ", ") + std::string(known.name);
    return names;
}

std::optional<ChatTemplate> ChatTemplate::named(std::string_view name) {
    for (const NamedFamily& known : kFamilies) {
        if (name != known.name) continue;
        ChatTemplate made;
        made.family = known.family;
        switch (known.family) {
            case ChatFamily::kLlama2:
            case ChatFamily::kLlama3:
            case ChatFamily::kLlama31:
            case ChatFamily::kGemma:
                made.begins_with_bos = true;
                made.trims = true;
                break;
            case ChatFamily::kMistral:
                made.begins_with_bos = true;
                made.user_open = " [INST] ";
                made.user_close = " [/INST]";
                made.answer_open.assign(1, ' ');
                break;
            case ChatFamily::kPhi3:
            case ChatFamily::kDeepSeek2:
                made.begins_with_bos = true;
                break;
            case ChatFamily::kDeepSeekR1:
                made.begins_with_bos = true;
                made.drops_thoughts = true;
                made.answer_begin = "<think>\n";
                break;
            default: break;
        }
        return made;
    }
    return std::nullopt;
}

std::optional<ChatTemplate> ChatTemplate::recognise(std::string_view jinja) {
    const std::vector<std::string> literals = literals_of(jinja);
    if (has(jinja, "<|im_start|>")) return recognise_chat_ml(jinja, literals);
    if (has(jinja, "<|start_header_id|>")) {
        if (!has(jinja, "<|eot_id|>")) return std::nullopt;
        ChatTemplate made = *named(has(jinja, "Cutting Knowledge Date: December 2023") ? "llama3.1" : "llama3");
        made.dated_today = has(jinja, "strftime_now");
        return made;
    }
    if (has(jinja, "[INST]")) return recognise_inst(jinja, literals);
    if (has(jinja, "<start_of_turn>")) return recognise_gemma(jinja);
    if (has(jinja, "<|start_of_role|>")) return recognise_granite(jinja);
    if (has(jinja, "<\uFF5CUser\uFF5C>")) {
        ChatTemplate made = *named("deepseek-r1");
        made.answer_begin = after(literals, "<\uFF5CAssistant\uFF5C>");
        made.drops_thoughts = has(jinja, "</think>");
        return made;
    }
    if (is_one_of(literals, "User: ") && is_one_of(literals, "Assistant:")) return named("deepseek2");
    if (has(jinja, "<|end|>") && has(jinja, "|>")) {
        ChatTemplate made = *named("phi3");
        made.begins_with_bos = has(jinja, "bos_token");
        return is_one_of(literals, "<|end|>\n") && is_one_of(literals, "<|assistant|>\n") ? std::optional(made) : std::nullopt;
    }
    if (is_one_of(literals, "<|user|>\n") && is_one_of(literals, "<|assistant|>") && has(jinja, "eos_token")) return named("zephyr");
    return std::nullopt;
}

ChatTemplate find_chat_template(const GgufFile& file, const std::string& wanted) {
    const std::string how = "; name its kind or give a file with a known one (--chat-template NAME|FILE; known are " +
                            ChatTemplate::known_names() + ")";
    if (wanted.empty()) {
        const std::string* const jinja = file.get_string("tokenizer.chat_template");
        if (jinja == nullptr) throw Error(file.path() + ": the file has no chat template: it may be no chat model" + how);
        if (auto found = ChatTemplate::recognise(*jinja)) return *found;
        throw Error(file.path() + ": the file's chat template is none that is known here" + how);
    }
    if (auto found = ChatTemplate::named(wanted)) return *found;
    std::ifstream in(wanted, std::ios::binary);
    if (!in) throw UsageError("--chat-template " + quoted(wanted) + " is neither a file that can be read nor a name; known are " + ChatTemplate::known_names());
    std::string jinja(kMostTemplateBytes + 1, '\0');
    in.read(jinja.data(), static_cast<std::streamsize>(jinja.size()));
    jinja.resize(static_cast<size_t>(in.gcount()));
    if (jinja.size() > kMostTemplateBytes) throw UsageError("--chat-template " + quoted(wanted) + ": larger than any template");
    if (auto found = ChatTemplate::recognise(jinja)) return *found;
    throw UsageError("--chat-template " + quoted(wanted) + ": the template in it is none that is known here; known are " + ChatTemplate::known_names());
}

ChatMarks chat_marks(const Tokenizer& tokenizer) {
    ChatMarks marks;
    if (const auto bos = tokenizer.bos()) marks.bos = tokenizer.piece(*bos, true);
    if (const auto eos = tokenizer.eos()) marks.eos = tokenizer.piece(*eos, true);
    const std::time_t now = std::time(nullptr);
    ::localtime_r(&now, &marks.today);
    return marks;
}

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const std::string& text) {
    std::vector<TokenId> ids = tokenizer.encode(text, false, true);
    const std::optional<TokenId> bos = tokenizer.bos();
    if (tokenizer.adds_bos() && bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
    return ids;
}

}  // namespace weir
