// What requests are taken for, and who may send them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/service/api_error.h"
#include "runtime/service/grammar_matcher.h"
#include "runtime/service/http_guard.h"
#include "runtime/service/openai_request.h"
#include "runtime/service/tool_calls.h"

namespace weir {
namespace {

ChatRequest chat(const std::string& more) {
    return parse_chat_request(parse_body("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]" + more + "}"), {});
}

TEST(Request, SaysWhatIsAskedFor) {
    const ChatRequest r = chat(R"(, "model": "m", "temperature": 0, "top_p": 0.5, "seed": 9, "max_completion_tokens": 7, "max_tokens": 3,
        "stop": "END", "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2, "top_k": null)");
    EXPECT_EQ(r.options.sampler.temperature, 0);
    EXPECT_EQ(r.options.sampler.top_p, 0.5f);
    EXPECT_EQ(r.options.sampler.top_k, SamplerOptions{}.top_k);
    EXPECT_EQ(r.options.sampler.seed, 9u);
    EXPECT_EQ(r.options.max_tokens, 7u);
    EXPECT_EQ(r.options.stops, std::vector<std::string>{"END"});
    EXPECT_TRUE(r.options.stream && r.options.include_usage && r.options.logprobs);
    EXPECT_EQ(r.options.top_logprobs, 2u);
    EXPECT_EQ(r.conversation.messages.at(0).content, "Hi");
    EXPECT_NE(chat("").options.sampler.seed, chat("").options.sampler.seed);
    EXPECT_EQ(chat("").options.max_tokens, SIZE_MAX);
    EXPECT_EQ(parse_completion_request(parse_body(R"({"prompt": "x"})"), {}).options.max_tokens, 16u);
    EXPECT_EQ(std::get<1>(parse_completion_request(parse_body(R"({"prompt": [1, 2]})"), {}).prompt), (std::vector<TokenId>{1, 2}));
    EXPECT_EQ(std::get<0>(parse_completion_request(parse_body(R"({"prompt": ["x"]})"), {}).prompt), "x");
}

TEST(Request, ReadsPartsToolsAndCalls) {
    const Conversation c = parse_conversation(parse_body(R"({"messages": [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
         "function": {"name": "f", "arguments": "{\"x\":[1,{\"y\":\"ü\"}]}"}}]}],
        "tools": [{"type": "function", "function": {"name": "f"}}], "chat_template_kwargs": {"enable_thinking": false}})"));
    EXPECT_EQ(c.messages.at(0).role, "system");
    EXPECT_EQ(c.messages.at(0).content, "ab");
    EXPECT_EQ(c.messages.at(1).tool_calls.at(0).arguments, "{\"x\": [1, {\"y\": \"ü\"}]}");
    EXPECT_EQ(c.tools, std::vector<std::string>{"{\"type\": \"function\", \"function\": {\"name\": \"f\"}}"});
    EXPECT_FALSE(c.thinking);
}

TEST(Request, ReadsInputsOfEmbeddings) {
    const auto read = [](const char* body) { return parse_embedding_request(parse_body(body)); };
    EXPECT_EQ(std::get<0>(read(R"({"input": "a"})").inputs.at(0)), "a");
    EXPECT_EQ(std::get<1>(read(R"({"input": [1, 2], "encoding_format": "base64"})").inputs.at(0)), (std::vector<TokenId>{1, 2}));
    EXPECT_EQ(read(R"({"input": ["a", [3], "b"]})").inputs.size(), 3u);
    EXPECT_TRUE(read(R"({"input": "a", "encoding_format": "base64"})").base64);
    for (const char* const body : {"{}", R"({"input": []})", R"({"input": 1})", R"({"input": [1, "a"]})", R"({"input": ["a", 1]})", R"({"input": [[-1]]})",
                                   R"({"input": "a", "encoding_format": "hex"})", R"({"input": "a", "dimensions": 3})"}) {
        EXPECT_THROW(read(body), ApiError) << body;
    }
}

TEST(Request, RefusesWhatItCannotDoAndNamesTheField) {
    const std::pair<const char*, const char*> cases[] = {
        {R"(, "temperature": "hot")", "temperature"}, {R"(, "temperature": -1)", "temperature"}, {R"(, "top_k": 1.5)", "top_k"},
        {R"(, "n": 2)", "n"}, {R"(, "presence_penalty": 1)", "presence_penalty"}, {R"(, "logit_bias": {"1": 2})", "logit_bias"},
        {R"(, "response_format": {"type": "xml"})", "response_format"},
        {R"(, "response_format": {"type": "json_schema"})", "response_format.json_schema.schema"},
        {R"(, "response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}})", "response_format.json_schema.schema.not"},
        {R"(, "response_format": {"type": "json_object"}, "ignore_eos": true)", "ignore_eos"}, {R"(, "stop": [1])", "stop"}, {R"(, "stop": "")", "stop"},
        {R"(, "max_tokens": 0)", "max_tokens"}, {R"(, "stream": 1)", "stream"}, {R"(, "stream_options": {})", "stream_options"},
        {R"(, "top_logprobs": 2)", "top_logprobs"}, {R"(, "logprobs": true, "top_logprobs": 21)", "top_logprobs"},
        {R"(, "seed": 1.5)", "seed"}, {R"(, "tools": {})", "tools"}, {R"(, "tools": [], "tool_choice": "required")", "tool_choice"},
        {R"(, "tools": [{"type": "function", "function": {"name": "f\""}}])", "tools[0].function.name"}, {R"(, "tools": [{"name": "f"}])", "tools[0]"},
        {R"(, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "g"}})", "tool_choice"},
        {R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"format": 1}}}], "tool_choice": "required")",
         "tools[0].function.parameters.format"}};
    for (const auto& [more, field] : cases) {
        try {
            chat(more);
            ADD_FAILURE() << more;
        } catch (const ApiError& error) {
            EXPECT_EQ(error.status, 400);
            EXPECT_EQ(error.param, field) << more;
        }
    }
    for (const char* const body : {"", "{", "[]", "1", "\"x\"", "{\"a\": \"\xff\"}", "{} {}"}) EXPECT_THROW(parse_body(body), ApiError) << body;
    EXPECT_THROW(parse_body("{\"a\": " + std::string(100000, '[') + "}"), ApiError);
    EXPECT_THROW(parse_completion_request(parse_body(R"({"prompt": ["a", "b"]})"), {}), ApiError);
    EXPECT_THROW(parse_completion_request(parse_body(R"({"prompt": [-1]})"), {}), ApiError);
    EXPECT_THROW(parse_completion_request(parse_body(R"({"prompt": "x", "echo": true})"), {}), ApiError);
}

constexpr const char* kTools = R"(, "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
    "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}, {"type": "function", "function": {"name": "now"}}])";

TEST(Tools, AnswersThatMustCallAreHeldToTheirForm) {
    const std::string add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    const auto allows = [](const std::string& more, const std::string& text) {
        const ChatRequest r = chat(kTools + more);
        if (r.options.grammar == nullptr) return true;
        GrammarMatcher matcher(r.options.grammar);
        return matcher.advance(text) && matcher.may_end();
    };
    EXPECT_EQ(chat(kTools).options.grammar, nullptr);
    EXPECT_EQ(chat(kTools).tools.names, (std::vector<std::string>{"add", "now"}));
    EXPECT_TRUE(chat(kTools + std::string(R"(, "tool_choice": "none")")).tools.names.empty());
    const std::string required = R"(, "tool_choice": "required")", named = R"(, "tool_choice": {"type": "function", "function": {"name": "now"}})";
    EXPECT_TRUE(allows(required, add));
    EXPECT_TRUE(allows(required, add + "\n" + now));
    EXPECT_FALSE(allows(required, "Hello"));
    EXPECT_FALSE(allows(required, ""));
    EXPECT_FALSE(allows(required + R"(, "parallel_tool_calls": false)", add + "\n" + now));
    EXPECT_TRUE(allows(named, now));
    EXPECT_FALSE(allows(named, add));
    const std::string form = R"(, "response_format": {"type": "json_object"})";
    EXPECT_TRUE(allows(form, now));
    EXPECT_TRUE(allows(form, "{\"x\": 1}"));
    EXPECT_FALSE(allows(form, "x"));
}

TEST(Tools, CallsAreReadFromTextHoweverItIsCut) {
    const std::string call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>";
    const struct {
        std::string text, content;
        size_t calls;
    } cases[] = {{call, "", 1},
                 {"Let me see.\n" + call, "Let me see.", 1},
                 {call + "\n" + call + "\n", "", 2},
                 {call + " and so", " and so", 1},
                 {"a < b <tool", "a < b <tool", 0},
                 {"<tool_call>{\"name\": \"sub\", \"arguments\": {}}</tool_call>", "<tool_call>{\"name\": \"sub\", \"arguments\": {}}</tool_call>", 0},
                 {"<tool_call>nothing</tool_call> x", "<tool_call>nothing</tool_call> x", 0},
                 {"<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}", "", 1},
                 {"<tool_call>{\"name\": \"add\", \"argum", "<tool_call>{\"name\": \"add\", \"argum", 0},
                 {"  \n", "  \n", 0}};
    for (const auto& c : cases) {
        for (const size_t step : {1u, 3u, 7u, 1000u}) {
            ToolCallReader reader({{"add"}, false, true});
            std::string content;
            std::vector<ToolCall> calls;
            const auto keep = [&](ToolCallReader::Found found) {
                content += found.text;
                calls.insert(calls.end(), found.calls.begin(), found.calls.end());
            };
            for (size_t at = 0; at < c.text.size(); at += step) keep(reader.add(std::string_view(c.text).substr(at, step)));
            keep(reader.finish());
            EXPECT_EQ(content, c.content) << c.text << " by " << step;
            ASSERT_EQ(calls.size(), c.calls) << c.text << " by " << step;
            for (const ToolCall& call : calls) EXPECT_EQ(call.arguments, "{\"a\": 1}");
        }
    }
}

TEST(Guard, HostsOriginsAndKeys) {
    for (const char* const host : {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "192.168.1.7", "[::1]:8080", "box.lan:80"}) {
        EXPECT_TRUE(host_allowed(host, {"box.lan"})) << host;
    }
    for (const char* const host : {"", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "[evil]"}) {
        EXPECT_FALSE(host_allowed(host, {"box.lan"})) << host;
    }
    EXPECT_TRUE(origin_allowed("", "a", ""));
    EXPECT_TRUE(origin_allowed("http://a:8080", "a:8080", ""));
    EXPECT_TRUE(origin_allowed("http://b", "a", "http://b"));
    EXPECT_TRUE(origin_allowed("http://b", "a", "*"));
    EXPECT_FALSE(origin_allowed("http://b", "a", ""));
    EXPECT_FALSE(origin_allowed("null", "a", ""));
    EXPECT_TRUE(key_allowed("", {}));
    EXPECT_TRUE(key_allowed("Bearer one", {"two", "one"}));
    EXPECT_TRUE(key_allowed("bearer one", {"one"}));
    for (const char* const given : {"", "Bearer", "Bearer ", "one", "Bearer on", "Bearer onee", "Basic one"}) EXPECT_FALSE(key_allowed(given, {"one"})) << given;
}

}  // namespace
}  // namespace weir
