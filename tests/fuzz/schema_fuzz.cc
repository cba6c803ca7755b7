// Fuzz target of JSON schemas: any text gives an ApiError, or a grammar in which every way that is begun can be ended. The input is
// a schema, then, behind a zero byte, what chooses the bytes of a value.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/service/api_error.h"
#include "runtime/service/grammar_matcher.h"
#include "runtime/service/json_schema.h"
#include "runtime/service/openai_request.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}

constexpr size_t kMostBytes = 300;

void walk(const std::shared_ptr<const weir::Grammar>& grammar, std::string_view choices) {
    weir::GrammarMatcher matcher(grammar);
    std::string text;
    for (size_t i = 0; i < kMostBytes && !matcher.must_end(); ++i) {
        const unsigned first = i < choices.size() ? static_cast<uint8_t>(choices[i]) : '"';
        bool gone_on = false;
        for (unsigned n = 0; n < 256 && !gone_on; ++n) {
            const char byte = static_cast<char>((first + n) % 256);
            gone_on = matcher.advance({&byte, 1});
            if (gone_on) text += byte;
        }
        require(gone_on || matcher.may_end(), "what is begun can be ended");
        if (!gone_on) break;
    }
    if (matcher.may_end()) require(!nlohmann::json::parse(text, nullptr, false).is_discarded(), "what is ended is JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const size_t end = std::min(text.find('\0'), size);
    try {
        const nlohmann::ordered_json schema = weir::parse_body(text.substr(0, end));
        const auto grammar = std::make_shared<weir::Grammar>();
        weir::SchemaCompiler compiler(*grammar);
        compiler.finish(compiler.value(schema, "schema", grammar->end()), "schema");
        walk(grammar, text.substr(std::min(end + 1, size)));
    } catch (const weir::ApiError&) {
    } catch (const weir::GrammarError&) {
    }
    return 0;
}
