// What schemas allow, what they refuse, and that none costs more than it may.
#include "runtime/service/grammar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "runtime/service/api_error.h"
#include "runtime/service/token_trie.h"
#include "tests/service/grammar_fixture.h"

namespace weir::test {
namespace {

struct Case {
    const char* schema;
    std::vector<const char*> allowed, refused;
};

TEST(JsonSchema, AllowsWhatValidatesAndNothingElse) {
    const Case cases[] = {
        {R"({"type": "string"})",
         {R"("")", R"("a b")", R"("é\n\u00e9\ud7ff")", "\"\xF0\x9F\x98\x80\""},
         {"", "a", R"("a)", R"("\x")", R"("\ud800")", "\"\xFF\"", "\"\xC3\"", "\"\n\"", "\"\xED\xA0\x80\"", R"("" )"}},
        {R"({"type": "string", "minLength": 1, "maxLength": 2})",
         {R"("é")", R"("\n\n")", "\"\xF0\x9F\x98\x80x\""},
         {R"("")", R"("abc")"}},
        {R"({"type": "integer"})", {"0", "-0", "7", "-120"}, {"", "-", "01", "1.0", "1e2", "+1", "1234567890123456"}},
        {R"({"type": "integer", "minimum": -12, "maximum": 105})",
         {"-12", "-9", "-1", "0", "7", "99", "100", "105"},
         {"-13", "-20", "106", "110", "1000", "007", "1.0"}},
        {R"({"type": "integer", "exclusiveMinimum": 0})", {"1", "10", "999999999999999"}, {"0", "-1", "-0"}},
        {R"({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4})", {"2", "3"}, {"1", "4"}},
        {R"({"type": "number", "minimum": 0, "maximum": 1})", {"0", "1", "0.5", "0.000001"}, {"1.5", "-0.5", "1.1", "2", "1e1"}},
        {R"({"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 2.5})",
         {"0.26", "0.251", "0.3", "1", "1.999", "2", "2.4", "2.49"},
         {"0.25", "0.250", "0.2", "0", "2.5", "2.50", "2.6", "3"}},
        {R"({"type": "number", "minimum": -1.5, "maximum": -0.5})",
         {"-1.5", "-1", "-0.5", "-0.51", "-1.49"},
         {"-1.51", "-0.4", "-2", "0", "1", "-0"}},
        {R"({"type": "integer", "minimum": -0.5, "maximum": 1})", {"0", "1"}, {"-1", "2"}},
        {R"({"type": "number", "minimum": -1, "maximum": 0})", {"0", "-0", "-0.5", "-1"}, {"0.5", "-1.1", "1"}},
        {R"({"minimum": 3, "maximum": 3})", {"3"}, {"2", "4", "3.1", "33"}},
        {R"({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"})", {R"("AB-1")", R"("XY-007")"}, {R"("AB-")", R"("ab-1")", R"("AB-1x")"}},
        {R"_({"type": "string", "pattern": "a(b|c.)?d"})_", {R"("ad")", R"("xabdy")", "\"ac\xC3\xA9" "d\""}, {R"("abcd")", R"("a")"}},
        {R"_({"type": "string", "pattern": "^(\"|\\\\|[^a-z])+$"})_", {R"("\"\\A")", R"("-")"}, {R"("a")", R"("")"}},
        {R"({"type": "string", "format": "date"})",
         {R"("2024-02-28")", R"("1999-12-31")"},
         {R"("2024-02-30")", R"("2024-13-01")", R"("2024-04-31")", R"("24-01-01")", R"("2024-01-01 ")"}},
        {R"({"type": "string", "format": "date-time"})",
         {R"("2024-01-01T00:00:00Z")", R"("2024-01-01T23:59:59.5+01:00")"},
         {R"("2024-01-01")", R"("2024-01-01T24:00:00Z")"}},
        {R"({"type": "string", "format": "uuid"})",
         {R"("123e4567-e89b-12d3-a456-426614174000")"},
         {R"("123e4567-e89b-12d3-a456-42661417400")"}},
        {R"({"format": "email"})", {R"("a.b@c.org")", R"("x@y-z.co.uk")"}, {R"("a@b")", R"("@c.org")", R"("a b@c.org")"}},
        {R"({"format": "ipv4"})", {R"("0.0.0.0")", R"("192.168.255.1")"}, {R"("256.0.0.1")", R"("1.2.3")", R"("01.2.3.4")"}},
        {R"({"prefixItems": [{"type": "string"}, {"type": "integer"}]})", {"[]", R"(["a"])", R"(["a", 1])"}, {"[1]", R"(["a",1,2])"}},
        {R"({"type": "array", "prefixItems": [{"type": "null"}, true], "items": {"type": "integer"}, "minItems": 1, "maxItems": 4})",
         {"[null]", "[null,true]", "[null,{},7,8]"},
         {"[]", "[7]", "[null,1,true]", "[null,1,2,3,4]"}},
        {R"({"prefixItems": [true, true], "items": false, "minItems": 2})", {"[1,2]"}, {"[1]", "[1,2,3]"}},
        {R"({"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1})", {"[]", "[1]"}, {"[1,2]"}},
        {R"({"type": "number"})", {"0", "0.5", "-12.25e-3", "1E+9"}, {".5", "1.", "1e", "0.5.5", "1e100"}},
        {R"({"type": ["boolean", "null"]})", {"true", "false", "null"}, {"tru", "0", "nul"}},
        {R"({"enum": ["a", "ab", 1, 12, null, {"x": [1, true]}]})",
         {R"("a")", R"("ab")", "1", "12", "null", R"({"x": [1, true]})"},
         {R"("b")", "2", "123", R"({"x": [1]})"}},
        {R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"}},
        {R"({"const": "\"x\\"})", {R"("\"x\\")"}, {R"("x")"}},
        {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
         {"[1]", "[1, 2,3]", "[ 1,\n  2 ]"},
         {"[]", "[1,2,3,4]", "[1,]", "[true]", "[1,  2]"}},
        {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]", "[ ]"}},
        {R"({"type": "array"})", {"[]", R"([1,"a",[{}],null])"}, {"[", "[1", "{}"}},
        {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": true}, "required": ["b"]})",
         {R"({"b": null})", R"({"a":1,"b":null})", "{\n  \"a\": 1,\n  \"b\": null,\n  \"c\": [2]\n}",
          R"({"b":null,"c":{"x":1}})"},
         {"{}", R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,"d":1})", R"({"b":null,})", R"({,"b":null})"}},
        {R"({"type": "object", "properties": {"ab": {"type": "integer"}, "é": true}, "additionalProperties": {"type": "boolean"}})",
         {"{}", R"({"ab":1,"x":true})", R"({"a":true,"abc":false})", R"({"":true})", R"({"z":true,"y":false})",
          R"({"é":3})"},
         {R"({"ab":true})", R"({"x":1})", R"({"x":true,"ab":1})", R"({"x":true,"ab":true})", R"({"\u0061b":true})",
          R"({"x":true,"é":true})"}},
        {R"({"type": "object", "required": ["k"], "additionalProperties": {"type": "integer"}})",
         {R"({"k":1,"j":2})"},
         {"{}", R"({"j":2})", R"({"k":"x"})"}},
        {R"({"type": "object"})", {"{}", R"({"a":{"b":[1,{"c":null}]}})"}, {"[]", R"({"a"})", R"({a:1})"}},
        {R"({"properties": {"a": {"type": "null"}}})", {R"({"a":null})"}, {"1"}},
        {R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})",
         {"1", "[]", "[1,[2,[]]]"},
         {"true", "[true]"}},
        {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
                       {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}, {"type": "string"}]})",
         {R"({"kind":"a","x":1})", R"({"kind":"b"})", R"("s")"},
         {R"({"kind":"a"})", R"({"kind":"b","x":1})"}},
        {R"({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
             "required": ["v", "next"]}}, "$ref": "#/$defs/n"})",
         {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
         {R"({"v":1,"next":{}})"}},
        {R"({"allOf": [{"type": "null"}]})", {"null"}, {"1"}},
        {R"({"type": "object", "properties": {"never": false, "x": {"type": "null"}}})",
         {R"({"x":null})"},
         {R"({"never":1})"}},
        {R"({})", {"1", "{}", R"(["a",{"b":null}])"}, {"x", ""}},
    };
    for (const Case& c : cases) {
        const auto grammar = grammar_of(c.schema);
        for (const char* const text : c.allowed) EXPECT_TRUE(allows(grammar, text)) << c.schema << "\n" << text;
        for (const char* const text : c.refused) EXPECT_FALSE(allows(grammar, text)) << c.schema << "\n" << text;
    }
}

std::string refusal(const nlohmann::ordered_json& schema) {
    try {
        grammar_of(schema);
        return "taken";
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 400);
        return error.what();
    }
}

TEST(JsonSchema, RefusesWhatItCannotDoAndSaysWhere) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"type": "object", "properties": {"a": {"items": {"multipleOf": 2}}}})",
         "'schema.properties.a.items.multipleOf' is a keyword"},
        {R"({"type": "number", "minimum": "1"})", "'schema.minimum' must be a number"},
        {R"({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2})", "nothing that it allows"},
        {R"_({"pattern": "(?=x)"})_", "'schema.pattern' is a regular expression that is not supported: it has a group that begins with '(?'"},
        {R"({"pattern": "a{3,2}"})", "counts nothing"},
        {R"({"pattern": "[a"})", "ends too early"},
        {R"_({"pattern": "a)"})_", "a ')' too many"},
        {R"_({"pattern": "(a*)*"})_", "may be empty"},
        {R"({"pattern": "^a$", "maxLength": 3})", "'schema.maxLength' is not supported beside 'pattern'"},
        {R"({"format": "color"})", "'schema.format' is a format that is not supported: color"},
        {R"({"prefixItems": []})", "'schema.prefixItems'"},
        {R"({"type": "thing"})", "no type of JSON Schema: thing"},
        {R"({"type": 1})", "'schema.type'"},
        {R"({"properties": {"a": 1}})", "'schema.properties.a' must be an object, true or false"},
        {R"({"anyOf": []})", "'schema.anyOf'"},
        {R"({"anyOf": [{"type": "null"}], "type": "object"})", "'schema.type' is not supported beside 'anyOf'"},
        {R"({"enum": 1})", "'schema.enum'"},
        {R"({"enum": []})", "nothing that it allows"},
        {R"({"minItems": 3, "maxItems": 2})", "'schema.minItems' is more than 'maxItems'"},
        {R"({"minLength": -1})", "'schema.minLength'"},
        {R"({"required": [1]})", "'schema.required'"},
        {R"({"required": ["a"], "additionalProperties": false})", "nothing that it allows"},
        {R"({"$ref": "#/$defs/none"})", "leads nowhere"},
        {R"({"$ref": "http://x/y"})", "leads nowhere"},
        {R"({"$ref": "#"})", "nothing that it allows"},
        {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself"},
        {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "nothing that it allows"},
        {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
         "alternatives that may match the same value, 0 and 1"},
        {R"({"oneOf": [{"properties": {"a": {"type": "null"}}}, {"type": "object"}]})", "may match the same value"},
        {R"({"$defs": {"x": {"multipleOf": 3}}, "items": {"$ref": "#/$defs/x"}})", "'schema.items(#/$defs/x).multipleOf'"},
    };
    for (const auto& [schema, what] : cases)
        EXPECT_NE(refusal(parse_body(schema)).find(what), std::string::npos) << schema << "\n"
                                                                             << refusal(parse_body(schema));
}

// Walks until the end or until it has cost enough; what matters is that it comes back.
void walk(const std::shared_ptr<const Grammar>& grammar, const TokenTrie& trie) {
    std::mt19937 random(1);
    try {
        Constraint constraint(grammar, trie);
        for (int i = 0; i < 60 && !constraint.complete(); ++i) {
            const std::vector<uint64_t>& mask = constraint.mask();
            std::vector<TokenId> all;
            for (size_t id = 0; id < mask.size() * 64; ++id) {
                if ((mask[id / 64] >> (id % 64) & 1) != 0 && !trie.ends(static_cast<TokenId>(id)))
                    all.push_back(static_cast<TokenId>(id));
            }
            if (all.empty()) return;
            constraint.took(all[random() % all.size()]);
        }
    } catch (const GrammarError&) {
    }
}

TEST(JsonSchema, HostileSchemasEndInAnErrorOrAreBounded) {
    using Json = nlohmann::ordered_json;
    const auto tokenizer = json_vocab().tokenizer();
    const TokenTrie trie(*tokenizer);
    Json enums, references, branches, wide, overlaps, names;
    for (int i = 0; i < 30000; ++i) enums["enum"].push_back("word number " + std::to_string(i * 7919));
    for (int i = 0; i < 5000; ++i)
        references["$defs"]["d" + std::to_string(i)] = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    references["$defs"]["d5000"] = {{"type", "null"}};
    references["$ref"] = "#/$defs/d0";
    for (int i = 0; i < 8; ++i)
        branches["anyOf"].push_back({{"type", "array"}, {"items", {{"$ref", "#"}}}, {"maxItems", i + 1}});
    for (int i = 0; i < 1100; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "integer"}};
    for (int i = 0; i < 300; ++i) overlaps["oneOf"].push_back({{"const", i}});
    names = {{"properties", {{std::string(100000, 'x'), true}}}};
    EXPECT_NE(refusal(enums).find("more than 65536 states"), std::string::npos);
    EXPECT_NE(refusal(references).find("4096 rules"), std::string::npos);
    EXPECT_NE(refusal(overlaps).find("256 alternatives"), std::string::npos);
    EXPECT_NE(refusal(names).find("256 bytes"), std::string::npos);
    for (const Json& schema :
         {branches, wide, parse_body(R"({"type": "string", "minLength": 2000000000})"),
          parse_body(R"({"type": "array", "items": {"maxLength": 1000000}, "minItems": 100000})")}) {
        walk(grammar_of(schema), trie);
    }
}

TEST(TokenTrie, AllowsExactlyTheTokensWhoseBytesMayFollow) {
    const auto tokenizer = json_vocab().tokenizer();
    const TokenTrie trie(*tokenizer);
    const auto grammar = grammar_of(
        R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "kind": {"enum": [12, true, "aa"]}},
        "required": ["name", "kind"]})");
    const std::string text = "{\"name\": \"h\u00E9llo\", \"kind\": 12}";
    for (size_t n = 0; n <= text.size(); ++n) {
        GrammarMatcher matcher(grammar);
        ASSERT_TRUE(matcher.advance(std::string_view(text).substr(0, n)));
        std::vector<uint64_t> mask;
        trie.allow(matcher, mask);
        for (size_t id = 0; id < tokenizer->size(); ++id) {
            GrammarMatcher fresh(grammar);
            fresh.advance(std::string_view(text).substr(0, n));
            const std::string piece = tokenizer->piece(static_cast<TokenId>(id));
            const bool ends = tokenizer->ends_generation(static_cast<TokenId>(id));
            const bool expected = ends ? n == text.size() : !piece.empty() && fresh.advance(piece);
            EXPECT_EQ((mask[id / 64] >> (id % 64) & 1) != 0, expected) << n << " " << piece;
        }
    }
}

TEST(GrammarMatcher, ForgetsWithoutLosingItsPlace) {
    // Each character is a place of its own: many more than are kept.
    const auto grammar = grammar_of(R"({"type": "string", "minLength": 5000, "maxLength": 5000})");
    GrammarMatcher matcher(grammar);
    ASSERT_TRUE(matcher.advance("\""));
    const uint32_t before = matcher.generation();
    for (int i = 0; i < 5000; ++i) ASSERT_TRUE(matcher.advance(i % 2 == 0 ? "x" : "\u00E9"));
    EXPECT_GT(matcher.generation(), before);
    EXPECT_FALSE(matcher.advance("x"));
    EXPECT_TRUE(matcher.advance("\""));
    EXPECT_TRUE(matcher.must_end());
}

}  // namespace
}  // namespace weir::test
