// Schemas as grammars, and what they allow, for tests.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/service/grammar_matcher.h"
#include "runtime/service/json_schema.h"
#include "runtime/service/openai_request.h"
#include "tests/tokenizer/small_vocab.h"

namespace weir::test {

inline std::shared_ptr<const Grammar> grammar_of(const nlohmann::ordered_json& schema) {
    const auto grammar = std::make_shared<Grammar>();
    SchemaCompiler compiler(*grammar);
    compiler.finish(compiler.value(schema, "schema", grammar->end()), "schema");
    return grammar;
}

inline std::shared_ptr<const Grammar> grammar_of(const char* schema) { return grammar_of(parse_body(schema)); }

inline bool allows(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
    GrammarMatcher matcher(grammar);
    return matcher.advance(text) && matcher.may_end();
}

// All bytes, and pieces of JSON of several bytes, some of which end a string and go on behind it.
inline SmallVocab json_vocab() {
    SmallVocab v = small_bpe();
    for (const char* const text : {"{\"", "\":", "\",\"", "\"}", "}}", "]}", "[{\"", "true", "false", "null", "name",
                                   "kind", "\\u00", "12", "0.5", "],[", "1,2", "\"a\":"}) {
        v.add(text);
    }
    v.add("\u00C3\u00A9");  // the bytes of an e with an accent
    v.add("\u00C3");        // half of them
    return v;
}

}  // namespace weir::test
