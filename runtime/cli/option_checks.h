// Checks for options that take numbers. CLI11 by itself lets -1 become 2^64 - 1, and NaN pass every range.
#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace weir {

template <class Number>
CLI::Validator from_to(const char* kind, Number least, Number most) {
    const auto check = [kind, least, most](const std::string& text) {
        Number value = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && rest == end && value >= least && value <= most) return std::string();
        return "'" + text + "' is no " + kind + " from " + CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most);
    };
    return CLI::Validator(check, "");
}

inline CLI::Validator whole_number(uint64_t least, uint64_t most) { return from_to("whole number", least, most); }
inline CLI::Validator number(double least, double most) { return from_to("number", least, most); }

}  // namespace weir
