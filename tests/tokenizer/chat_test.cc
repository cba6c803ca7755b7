#include "runtime/model/chat.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(Chat, RecognisesFamiliesByTheirMarkers) {
    EXPECT_EQ(recognise_chat_template("{{'<|im_start|>' + message['role']}}...{{'<|im_end|>'}}"), ChatFamily::kChatMl);
    EXPECT_EQ(recognise_chat_template("{{'<|user|>' + message['content'] + '<|end|>'}}"), std::nullopt);
    EXPECT_EQ(recognise_chat_template("<|im_start|>"), std::nullopt);
    EXPECT_EQ(recognise_chat_template(""), std::nullopt);
}

TEST(Chat, WrapsWithAndWithoutASystemTurn) {
    EXPECT_EQ(wrap_chat(ChatFamily::kChatMl, "Be brief.", "Hi"),
              "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(wrap_chat(ChatFamily::kChatMl, "", "Hi"), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

std::string system_of(const std::string& jinja) { return default_system_prompt(ChatFamily::kChatMl, jinja); }

TEST(Chat, FindsTheDefaultSystemPrompt) {
    EXPECT_EQ(system_of("{{ '<|im_start|>system\nYou are kind.<|im_end|>\n' }}"), "You are kind.");
    EXPECT_EQ(system_of(R"({{ "<|im_start|>system\nYou're \"kind\".<|im_end|>\n" }})"), "You're \"kind\".");
    EXPECT_EQ(system_of(R"({{ '<|im_start|>system\nYou\'re kind.\nAlways.<|im_end|>\n' }})"), "You're kind.\nAlways.");
    // Literals that take the caller's text come first here.
    EXPECT_EQ(system_of("{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + "
                        "messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are "
                        "kind.<|im_end|>\\n' }}{%- endif %}"),
              "You are kind.");
}

TEST(Chat, NoDefaultSystemPromptWhereThereIsNone) {
    EXPECT_EQ(system_of("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"), "");
    EXPECT_EQ(system_of("{{ '<|im_start|>system\n<|im_end|>\n' }}"), "");
    EXPECT_EQ(system_of("{{ '<|im_start|>user\nHello<|im_end|>\n' }}"), "");
    EXPECT_EQ(system_of("<|im_start|>system\nYou are kind.<|im_end|>"), "");
    EXPECT_EQ(system_of("{{ '<|im_start|>system\nYou are"), "");
    EXPECT_EQ(system_of("'<|im_start|>system\\"), "");
    EXPECT_EQ(system_of(""), "");
}

}  // namespace
}  // namespace weir
