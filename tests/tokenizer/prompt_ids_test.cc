// The prompts of the expected answers give the ids that are recorded with them, and the chat format gives the prompts.
#include <nlohmann/json.hpp>

#include "runtime/model/chat.h"
#include "tests/tokenizer/vocab_material.h"

namespace weir {
namespace {

using nlohmann::json;

void check_prompts(const std::filesystem::path& gguf, const json& cases) {
    const Tokenizer& tokenizer = test::load_tokenizer(gguf);
    ASSERT_FALSE(cases.empty());
    for (const json& expected : cases) {
        const auto prompt = expected.at("prompt").get<std::string>();
        const auto ids = expected.at("prompt_ids").get<std::vector<TokenId>>();
        EXPECT_EQ(tokenizer.encode(prompt, true, true), ids) << prompt;
        EXPECT_EQ(tokenizer.decode(ids, true), (tokenizer.adds_bos() ? tokenizer.piece(*tokenizer.bos(), true) : "") + prompt);
    }
}

TEST(PromptIds, Smollm2) {
    const auto expected = test::shared_file("models/expected/smollm2-q4_1.json");
    if (!test::require_material(expected) || !test::require_material(test::smollm2_file())) return;
    check_prompts(test::smollm2_file(), json::parse(test::read_file(expected)).at("cases"));
}

TEST(PromptIds, Gemma3) {
    const auto expected = test::shared_file("models/expected/gemma3-270m-q4_k_m.json");
    const auto gguf = test::cached_file("gemma-3-270m.Q4_K_M.gguf");
    if (!test::require_material(expected) || !test::require_material(gguf)) return;
    check_prompts(gguf, json::parse(test::read_file(expected)).at("cases"));
}

TEST(PromptIds, WeirDemo8m) {
    const auto expected = test::shared_file("models/expected/weir-demo-8m-f16.json");
    const auto gguf = test::shared_file("models/weir-demo-8m-f16.gguf");
    if (!test::require_material(expected) || !test::require_material(gguf)) return;
    check_prompts(gguf, json::parse(test::read_file(expected)));
}

TEST(PromptIds, Stories260K) {
    const auto expected = test::shared_file("models/expected/stories260K-F32.json");
    const auto gguf = test::shared_file("models/stories260K-F32.gguf");
    if (!test::require_material(expected) || !test::require_material(gguf)) return;
    json one = json::parse(test::read_file(expected));
    one["prompt"] = "Once upon a time";
    check_prompts(gguf, json::array({one}));
}

TEST(PromptIds, Smollm2sChatFormat) {
    const auto expected = test::shared_file("models/expected/smollm2-q4_1.json");
    if (!test::require_material(expected) || !test::require_material(test::smollm2_file())) return;
    const GgufFile file = GgufFile::open(test::smollm2_file().string());
    const std::string* jinja = file.get_string("tokenizer.chat_template");
    ASSERT_NE(jinja, nullptr);
    const auto chat = ChatTemplate::recognise(*jinja);
    ASSERT_TRUE(chat && chat->family == ChatFamily::kChatMl);
    EXPECT_EQ(chat->default_system, "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
    const Tokenizer& tokenizer = test::load_tokenizer(test::smollm2_file());

    const json cases = json::parse(test::read_file(expected)).at("cases");
    const std::vector<std::string> questions = {"What is the capital of France?",
                                                "Write a short story about a lighthouse keeper.",
                                                "Explain what virtual memory is, in two sentences."};
    for (size_t i = 0; i < questions.size(); ++i) {
        const std::string prompt = chat->render({{{"user", questions[i]}}}, chat_marks(tokenizer));
        EXPECT_EQ(prompt, cases.at(i).at("prompt").get<std::string>());
        EXPECT_EQ(encode_chat(tokenizer, prompt), cases.at(i).at("prompt_ids").get<std::vector<TokenId>>());
    }
}

}  // namespace
}  // namespace weir
