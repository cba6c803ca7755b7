// Fuzz target of the service's requests: a body of any bytes gives an ApiError of status 400 or a request within its bounds.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/service/api_error.h"
#include "runtime/service/openai_request.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}

void check(const weir::AnswerOptions& o) {
    require(o.sampler.temperature >= 0 && o.sampler.temperature <= 100, "temperatures lie within their bounds");
    require(o.sampler.top_p >= 0 && o.sampler.top_p <= 1, "so does top_p");
    require(o.max_tokens > 0, "something is to be answered");
    for (const std::string& stop : o.stops) require(!stop.empty(), "stop strings are not empty");
}

template <typename Parse>
void read(std::string_view text, Parse&& parse) {
    try {
        parse(weir::parse_body(text));
    } catch (const weir::ApiError& error) {
        require(error.status == 400 && *error.what() != 0, "what is wrong is the client's, and is said");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    read(text, [](const auto& body) { check(weir::parse_chat_request(body, {}).options); });
    read(text, [](const auto& body) { check(weir::parse_completion_request(body, {}).options); });
    read(text, [](const auto& body) { require(!weir::parse_embedding_request(body).inputs.empty(), "there is an input"); });
    read(text, [](const auto& body) { require(!weir::parse_conversation(body).messages.empty(), "there is a message"); });
    return 0;
}
