#include "runtime/model/chat.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "runtime/error.h"

namespace weir {
namespace {

using nlohmann::ordered_json;

std::string read_file(const std::string& name) {
    std::ifstream in(std::string(WEIR_CHAT_TESTS) + "/" + name);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

// As Python's json.dumps writes it.
std::string python_json(const ordered_json& value) {
    if (value.is_object()) {
        std::string text = "{";
        for (const auto& [key, of] : value.items()) {
            text += (text.size() > 1 ? ", " : "") + ordered_json(key).dump() + ": " + python_json(of);
        }
        return text + "}";
    }
    if (value.is_array()) {
        std::string text = "[";
        for (const auto& item : value) text += (text.size() > 1 ? ", " : "") + python_json(item);
        return text + "]";
    }
    return value.dump();
}

Conversation conversation_of(const ordered_json& from) {
    Conversation made;
    for (const auto& message : from["messages"]) {
        ChatMessage to{message["role"], message["content"]};
        for (const auto& call : message.value("tool_calls", ordered_json::array())) {
            to.tool_calls.push_back({call["function"]["name"], python_json(call["function"]["arguments"])});
        }
        made.messages.push_back(std::move(to));
    }
    for (const auto& tool : from.value("tools", ordered_json::array())) made.tools.push_back(python_json(tool));
    made.begin_answer = from.value("generate", true);
    made.thinking = from.value("thinking", true);
    return made;
}

ChatMarks fixed_marks() {
    ChatMarks marks{"<BOS>", "<EOS>", {}};
    marks.today.tm_year = 126;
    marks.today.tm_mon = 11;
    marks.today.tm_mday = 5;
    return marks;
}

TEST(Chat, SaysWhatTheTemplatesThemselvesSay) {
    const auto golden = ordered_json::parse(read_file("chat_golden.json"));
    const auto conversations = ordered_json::parse(read_file("chat_conversations.json"));
    std::set<std::string> templates;
    for (const auto& wanted : golden) {
        const std::string name = wanted["template"], about = name + ", " + std::string(wanted["conversation"]);
        templates.insert(name);
        const auto found = ChatTemplate::recognise(read_file("chat_templates/" + name + ".jinja"));
        ASSERT_TRUE(found) << name;
        for (const auto& conversation : conversations) {
            if (conversation["name"] != wanted["conversation"]) continue;
            if (wanted.contains("refused")) {
                EXPECT_THROW(found->render(conversation_of(conversation), fixed_marks()), Error) << about;
            } else {
                EXPECT_EQ(found->render(conversation_of(conversation), fixed_marks()), wanted["text"]) << about;
            }
        }
    }
    EXPECT_EQ(templates.size(), 17u);
}

TEST(Chat, NamesGiveWhatTheFamiliesUsuallyHave) {
    const Conversation conversation{{{"user", "Hi"}, {"assistant", "Hello."}, {"user", " Bye "}}};
    for (const auto& [name, file] : {std::pair{"chatml", "chatml"}, {"llama2", "llama2"}, {"llama3", "llama3"},
                                     {"llama3.1", "llama3.1"}, {"mistral", "mistral"}, {"gemma", "gemma3"}, {"phi3", "phi3"},
                                     {"deepseek2", "deepseek2"}, {"deepseek-r1", "deepseek-r1"}, {"granite", "granite3.0"},
                                     {"zephyr", "zephyr"}}) {
        const auto by_file = ChatTemplate::recognise(read_file("chat_templates/" + std::string(file) + ".jinja"));
        const auto by_name = ChatTemplate::named(name);
        ASSERT_TRUE(by_file && by_name) << name;
        EXPECT_EQ(by_name->render(conversation, fixed_marks()), by_file->render(conversation, fixed_marks())) << name;
        EXPECT_STREQ(by_name->name(), name);
        EXPECT_STREQ(by_file->name(), name);
        EXPECT_NE(ChatTemplate::known_names().find(name), std::string::npos);
    }
    EXPECT_FALSE(ChatTemplate::named("alpaca"));
    EXPECT_FALSE(ChatTemplate::named(""));
}

TEST(Chat, WhatIsNotKnownIsNotGuessed) {
    for (const char* const jinja :
         {"", "{{ messages }}", "{{'<|im_start|>' + message['role']}}", "<|im_start|>{{ x }}<|im_end|>",
          "{{ '### Instruction:\\n' + message['content'] }}", "{{ '<|user|>' + message['content'] + '<|end|>' }}",
          "{{ '[INST]' }}", "{{ '[INST] <<SYS>>' }}", "{{ '<|start_header_id|>' }}", "{{ '<start_of_turn>user' }}",
          "{{ '<|im_start|>system\\", "{{ \"unterminated <|im_end|>", "{# comment", "{{ 'User: ' }}"}) {
        EXPECT_FALSE(ChatTemplate::recognise(jinja)) << jinja;
    }
    // Later Granites word their default differently, Mistrals with tools put the system's words elsewhere.
    EXPECT_FALSE(ChatTemplate::recognise("{{ '<|start_of_role|>' + \"Knowledge Cutoff Date: May 2025\" }}"));
    EXPECT_FALSE(ChatTemplate::recognise("{{ '[INST] ' + '[/INST]' + '[AVAILABLE_TOOLS]' }}"));
}

std::string default_of(const std::string& jinja) {
    const auto found = ChatTemplate::recognise(jinja + "{{'<|im_start|>' + m + '<|im_end|>\\n'}}");
    return found ? found->default_system : "(not recognised)";
}

TEST(Chat, FindsTheDefaultSystemPrompt) {
    EXPECT_EQ(default_of("{{ '<|im_start|>system\nYou are kind.<|im_end|>\n' }}"), "You are kind.");
    EXPECT_EQ(default_of(R"({{ "<|im_start|>system\nYou're \"kind\".<|im_end|>\n" }})"), "You're \"kind\".");
    EXPECT_EQ(default_of(R"({{ '<|im_start|>system\nYou\'re kind.\nAlways.<|im_end|>\n' }})"), "You're kind.\nAlways.");
    // Literals that take the caller's text come first here.
    EXPECT_EQ(default_of("{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + "
                         "messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are "
                         "kind.<|im_end|>\\n' }}{%- endif %}"),
              "You are kind.");
    EXPECT_EQ(default_of(""), "");
    EXPECT_EQ(default_of("{{ '<|im_start|>system\n<|im_end|>\n' }}"), "");
    EXPECT_EQ(default_of("{{ '<|im_start|>user\nHello<|im_end|>\n' }}"), "");
}

TEST(Chat, RefusesWhatNoTemplateTakes) {
    const ChatTemplate chat_ml = *ChatTemplate::named("chatml");
    EXPECT_THROW(chat_ml.render({}, fixed_marks()), Error);
    EXPECT_THROW(chat_ml.render({{{"wizard", "Hi"}}}, fixed_marks()), Error);
    EXPECT_THROW(chat_ml.render({{{"tool", "Hi"}}}, fixed_marks()), Error);
    EXPECT_THROW(chat_ml.render({{{"user", "Hi"}}, {"{}"}}, fixed_marks()), Error);
    EXPECT_NO_THROW(ChatTemplate::named("qwen")->render({{{"user", "Hi"}}, {"{}"}}, fixed_marks()));
}

TEST(Chat, TodayIsTodaysWhereTheTemplateAsksForIt) {
    const std::string jinja = read_file("chat_templates/llama3.1.jinja") + "{{ strftime_now('%d %b %Y') }}";
    const auto found = ChatTemplate::recognise(jinja);
    ASSERT_TRUE(found);
    EXPECT_NE(found->render({{{"user", "Hi"}}}, fixed_marks()).find("Today Date: 05 Dec 2026\n"), std::string::npos);
}

}  // namespace
}  // namespace weir
