// What chat templates make of a conversation, family by family. Held to the programs' own output by tests/tokenizer.
#include "runtime/error.h"
#include "runtime/model/chat.h"

namespace weir {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

std::string_view strip_front(std::string_view text, std::string_view what) {
    const size_t first = text.find_first_not_of(what);
    return first == std::string_view::npos ? std::string_view() : text.substr(first);
}
std::string_view strip_back(std::string_view text, std::string_view what) {
    return text.substr(0, text.find_last_not_of(what) + 1);
}
std::string_view strip(std::string_view text, std::string_view what = kBlanks) { return strip_back(strip_front(text, what), what); }

// What follows the last `mark` of the text; all of it where there is none. And what precedes the first.
std::string_view after_last(std::string_view text, std::string_view mark) {
    const size_t at = text.rfind(mark);
    return at == std::string_view::npos ? text : text.substr(at + mark.size());
}
std::string_view before_first(std::string_view text, std::string_view mark) { return text.substr(0, text.find(mark)); }

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class Renderer {
  public:
    Renderer(const ChatTemplate& kind, const Conversation& conversation, const ChatMarks& marks)
        : kind_(kind), conversation_(conversation), messages_(conversation.messages), marks_(marks) {}

    std::string render() {
        if (kind_.begins_with_bos && kind_.family != ChatFamily::kLlama2) out_ += marks_.bos;
        switch (kind_.family) {
            case ChatFamily::kChatMl: chat_ml(); break;
            case ChatFamily::kQwen: qwen(); break;
            case ChatFamily::kLlama2: llama2(); break;
            case ChatFamily::kLlama3:
            case ChatFamily::kLlama31: llama3(); break;
            case ChatFamily::kMistral: mistral(); break;
            case ChatFamily::kGemma: gemma(); break;
            case ChatFamily::kPhi3: phi3(); break;
            case ChatFamily::kDeepSeek2: deepseek2(); break;
            case ChatFamily::kDeepSeekR1: deepseek_r1(); break;
            case ChatFamily::kGranite: granite(); break;
            case ChatFamily::kZephyr: zephyr(); break;
        }
        return std::move(out_);
    }

  private:
    template <typename... Parts>
    void put(const Parts&... parts) { (out_.append(parts), ...); }

    std::string_view text_of(const ChatMessage& message) const {
        return kind_.trims ? strip(message.content) : std::string_view(message.content);
    }
    bool begins_with_system() const { return messages_.front().role == "system"; }

    // Turns after the system's must be the user's and the assistant's in turn; returns where they begin.
    size_t alternating() const {
        const bool system = begins_with_system();
        if (system && !kind_.takes_system) throw Error("this model's chat template has no system role");
        const size_t first = system ? 1 : 0;
        for (size_t i = first; i < messages_.size(); ++i) {
            if (messages_[i].role != ((i - first) % 2 == 0 ? "user" : "assistant")) {
                throw Error("this model's chat template wants the roles user and assistant in turn" +
                            std::string(kind_.takes_system ? ", after a system message if there is one" : "") + "; message " +
                            std::to_string(i + 1) + " is of the role " + messages_[i].role);
            }
        }
        return first;
    }

    void chat_ml() {
        if (!begins_with_system() && !kind_.default_system.empty()) im_turn("system", kind_.default_system);
        for (const ChatMessage& message : messages_) im_turn(message.role, text_of(message));
        if (conversation_.begin_answer) put("<|im_start|>assistant\n", kind_.answer_begin);
    }
    void im_turn(std::string_view role, std::string_view text) { put("<|im_start|>", role, "\n", text, "<|im_end|>\n"); }

    void qwen() {
        const std::string& system = begins_with_system() ? messages_.front().content : kind_.default_system;
        if (!conversation_.tools.empty()) {
            put("<|im_start|>system\n", system);
            if (begins_with_system() || !system.empty()) put("\n\n");
            put("# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
                "function signatures within <tools></tools> XML tags:\n<tools>");
            for (const std::string& tool : conversation_.tools) put("\n", tool);
            put("\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
                "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
                "<args-json-object>}\n</tool_call><|im_end|>\n");
        } else if (begins_with_system() || !system.empty()) {
            im_turn("system", system);
        }
        const size_t last_query = last_question();
        for (size_t i = 0; i < messages_.size(); ++i) {
            const ChatMessage& message = messages_[i];
            if (message.role == "user" || (message.role == "system" && i != 0)) im_turn(message.role, message.content);
            if (message.role == "assistant") qwen_answer(message, i, last_query);
            if (message.role == "tool") {
                if (i == 0 || messages_[i - 1].role != "tool") put("<|im_start|>user");
                put("\n<tool_response>\n", message.content, "\n</tool_response>");
                if (i + 1 == messages_.size() || messages_[i + 1].role != "tool") put("<|im_end|>\n");
            }
        }
        if (!conversation_.begin_answer) return;
        put("<|im_start|>assistant\n", kind_.answer_begin);
        if (kind_.can_skip_thoughts && !conversation_.thinking) put("<think>\n\n</think>\n\n");
    }

    // The last turn of the user that is no answer of a tool.
    size_t last_question() const {
        for (size_t i = messages_.size(); i-- > 0;) {
            const std::string& text = messages_[i].content;
            if (messages_[i].role == "user" && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))) return i;
        }
        return messages_.size() - 1;
    }

    // Thoughts of the answers to earlier questions are left out.
    void qwen_answer(const ChatMessage& message, size_t index, size_t last_query) {
        std::string_view content = message.content, thoughts;
        if (kind_.drops_thoughts && contains(content, "</think>")) {
            thoughts = strip_front(after_last(strip_back(before_first(content, "</think>"), "\n"), "<think>"), "\n");
            content = strip_front(after_last(content, "</think>"), "\n");
        }
        put("<|im_start|>assistant\n");
        if (kind_.drops_thoughts && index > last_query && (index + 1 == messages_.size() || !thoughts.empty())) {
            put("<think>\n", strip(thoughts, "\n"), "\n</think>\n\n", strip_front(content, "\n"));
        } else {
            put(content);
        }
        bool first = true;
        for (const ToolCall& call : message.tool_calls) {
            if (!first || !content.empty()) put("\n");
            put("<tool_call>\n{\"name\": \"", call.name, "\", \"arguments\": ", call.arguments, "}\n</tool_call>");
            first = false;
        }
        put("<|im_end|>\n");
    }

    void llama2() {
        const size_t first = alternating();
        for (size_t i = first; i < messages_.size(); ++i) {
            if (messages_[i].role == "assistant") {
                put(" ", strip(messages_[i].content), " ", marks_.eos);
                continue;
            }
            std::string content = messages_[i].content;
            if (i == 1 && first == 1) content = "<<SYS>>\n" + messages_[0].content + "\n<</SYS>>\n\n" + content;
            put(marks_.bos, "[INST] ", strip(content), " [/INST]");
        }
    }

    void llama3() {
        const auto turn = [this](std::string_view role, std::string_view text) {
            put("<|start_header_id|>", role, "<|end_header_id|>\n\n", text, "<|eot_id|>");
        };
        size_t first = 0;
        if (kind_.family == ChatFamily::kLlama31) {
            const std::string date = kind_.dated_today ? today("%d %b %Y") : "26 Jul 2024";
            first = begins_with_system() ? 1 : 0;
            turn("system", "Cutting Knowledge Date: December 2023\nToday Date: " + date + "\n\n" +
                               std::string(first == 1 ? strip(messages_[0].content) : ""));
        }
        for (size_t i = first; i < messages_.size(); ++i) turn(messages_[i].role, text_of(messages_[i]));
        if (conversation_.begin_answer) put("<|start_header_id|>assistant<|end_header_id|>\n\n");
    }

    void mistral() {
        const size_t first = alternating();
        for (size_t i = first; i < messages_.size(); ++i) {
            if (messages_[i].role == "assistant") {
                put(kind_.answer_open, messages_[i].content, kind_.answer_close, marks_.eos);
                continue;
            }
            put(kind_.user_open);
            if (i == 1 && first == 1) put(messages_[0].content, "\n\n");
            put(messages_[i].content, kind_.user_close);
        }
    }

    void gemma() {
        const size_t first = alternating();
        for (size_t i = first; i < messages_.size(); ++i) {
            put("<start_of_turn>", messages_[i].role == "assistant" ? "model" : "user", "\n");
            if (i == 1 && first == 1) put(messages_[0].content, "\n\n");
            put(text_of(messages_[i]), "<end_of_turn>\n");
        }
        if (conversation_.begin_answer) put("<start_of_turn>model\n");
    }

    void phi3() {
        for (const ChatMessage& message : messages_) put("<|", message.role, "|>\n", message.content, "<|end|>\n");
        put(conversation_.begin_answer ? "<|assistant|>\n" : marks_.eos);
    }

    void deepseek2() {
        for (const ChatMessage& message : messages_) {
            if (message.role == "user") put("User: ", message.content, "\n\n");
            if (message.role == "assistant") put("Assistant: ", message.content, marks_.eos);
            if (message.role == "system") put(message.content, "\n\n");
        }
        if (conversation_.begin_answer) put("Assistant:");
    }

    void deepseek_r1() {
        std::string_view system;  // the last one counts, wherever it stands
        for (const ChatMessage& message : messages_) {
            if (message.role == "system") system = message.content;
        }
        put(system);
        for (const ChatMessage& message : messages_) {
            if (message.role == "user") put("<\uFF5CUser\uFF5C>", message.content);
            if (message.role != "assistant") continue;
            const std::string_view content = message.content;
            put("<\uFF5CAssistant\uFF5C>", kind_.drops_thoughts ? after_last(content, "</think>") : content,
                "<\uFF5Cend\u2581of\u2581sentence\uFF5C>");
        }
        if (conversation_.begin_answer) put("<\uFF5CAssistant\uFF5C>", kind_.answer_begin);
    }

    void granite() {
        const auto turn = [this](std::string_view role, std::string_view text) {
            put("<|start_of_role|>", role, "<|end_of_role|>", text, "<|end_of_text|>\n");
        };
        if (kind_.dated_today && !begins_with_system()) {
            turn("system", "Knowledge Cutoff Date: April 2024.\nToday's Date: " + today("%B %d, %Y") +
                               ".\nYou are Granite, developed by IBM. You are a helpful AI assistant.");
        }
        for (const ChatMessage& message : messages_) turn(message.role, message.content);
        if (conversation_.begin_answer) put("<|start_of_role|>assistant<|end_of_role|>");
    }

    void zephyr() {
        for (const ChatMessage& message : messages_) put("<|", message.role, "|>\n", message.content, marks_.eos, "\n");
        if (conversation_.begin_answer) put("<|assistant|>\n");
    }

    std::string today(const char* form) const {
        char text[64];
        return {text, std::strftime(text, sizeof text, form, &marks_.today)};
    }

    const ChatTemplate& kind_;
    const Conversation& conversation_;
    const std::vector<ChatMessage>& messages_;
    const ChatMarks& marks_;
    std::string out_;
};

}  // namespace

std::string ChatTemplate::render(const Conversation& conversation, const ChatMarks& marks) const {
    if (conversation.messages.empty()) throw Error("a conversation without messages has no answer");
    for (const ChatMessage& message : conversation.messages) {
        const std::string& role = message.role;
        if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
            throw Error("the role \"" + role + "\" is none that chat templates know");
        }
        if ((role == "tool" || !message.tool_calls.empty()) && !takes_tools()) {
            throw Error("this model's chat template (" + std::string(name()) + ") has no tools that are known here");
        }
    }
    if (!conversation.tools.empty() && !takes_tools()) {
        throw Error("this model's chat template (" + std::string(name()) + ") has no tools that are known here");
    }
    return Renderer(*this, conversation, marks).render();
}

}  // namespace weir
