// Checks for options that take numbers. CLI11 by itself lets -1 become 2^64 - 1, and NaN pass every range.
#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace weir {

inline CLI::Validator whole_number(uint64_t least, uint64_t most) {
    const auto check = [least, most](const std::string& text) {
        uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && rest == end && value >= least && value <= most) return std::string();
        return "'" + text + "' is no whole number from " + std::to_string(least) + " to " + std::to_string(most);
    };
    return CLI::Validator(check, "");
}

inline CLI::Validator number(double least, double most) {
    const auto check = [least, most](const std::string& text) {
        double value = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && rest == end && value >= least && value <= most) return std::string();
        return "'" + text + "' is no number from " + CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most);
    };
    return CLI::Validator(check, "");
}

}  // namespace weir
