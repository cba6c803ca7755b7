// What a client did wrong, or cannot have now, in the shape that OpenAI's clients read.
#pragma once

#include <stdexcept>
#include <string>

namespace weir {

struct ApiError : std::runtime_error {
    ApiError(int status_code, const std::string& message, std::string parameter = {}, std::string error_code = {})
        : std::runtime_error(message), status(status_code), param(std::move(parameter)), code(std::move(error_code)) {}
    int status;          // of HTTP
    std::string param;   // the field in question
    std::string code;    // for programs
    unsigned retry_after_s = 0;
};

}  // namespace weir
