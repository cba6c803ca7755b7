#include "runtime/cli/size_arg.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "runtime/error.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

// Exponent of 1024 that a unit stands for; -1 where it is none. "GB" is left out: it means 1000 to some.
int exponent(std::string_view unit) {
    if (unit.empty() || unit == "B") return 0;
    static constexpr std::string_view kUnits = "KMGT";
    const char first = unit[0] >= 'a' && unit[0] <= 'z' ? static_cast<char>(unit[0] - 'a' + 'A') : unit[0];
    const size_t place = kUnits.find(first);
    if (place == std::string_view::npos) return -1;
    if (unit.size() > 1 && unit.substr(1) != "iB") return -1;
    return static_cast<int>(place) + 1;
}

}  // namespace

uint64_t SizeArg::of(uint64_t whole) const {
    if (!percent) return bytes;
    return static_cast<uint64_t>(static_cast<long double>(whole) * share);
}

SizeArg parse_size(const std::string& text, const std::string& option) {
    const auto fail = [&](const char* why) -> UsageError {
        return UsageError(option + " " + quoted(text) + ": " + why +
                          "; write 4G, 512M, 1.5G (K, M, G, T are powers of 1024), bytes, or 40%");
    };
    double value = 0;
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    // from_chars would take "inf", "nan" and a minus too.
    if (text.empty() || text[0] < '0' || text[0] > '9') throw fail("not a size");
    const auto [rest, error] = std::from_chars(begin, end, value, std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(value)) throw fail("not a size");
    const std::string_view unit(rest, static_cast<size_t>(end - rest));

    SizeArg out;
    if (unit == "%") {
        if (value == 0) throw fail("not more than nothing");
        if (value > 100) throw fail("more than all");
        out.percent = true;
        out.share = value / 100;
        return out;
    }
    const int power = exponent(unit);
    if (power < 0) throw fail("unknown unit");
    const double bytes = std::ldexp(value, 10 * power);
    if (bytes >= 0x1p63) throw fail("too large");
    out.bytes = static_cast<uint64_t>(bytes);
    if (out.bytes == 0) throw fail("not more than nothing");
    return out;
}

std::vector<TimedSize> parse_timed_sizes(const std::string& text, const std::string& option) {
    std::vector<TimedSize> out;
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        const std::string_view part = std::string_view(text).substr(at, comma - at);
        at = comma + 1;
        const auto fail = [&](const char* why) {
            return UsageError(option + " " + quoted(part) + ": " + why + "; write 10s:1G,20500ms:600M");
        };
        const size_t colon = part.find(':');
        if (colon == std::string_view::npos) throw fail("no moment and size");
        TimedSize step;
        const auto [unit, error] = std::from_chars(part.data(), part.data() + colon, step.at_ms);
        const std::string_view unit_text(unit, static_cast<size_t>(part.data() + colon - unit));
        if (error != std::errc() || (unit_text != "s" && unit_text != "ms")) throw fail("not a moment");
        if (step.at_ms > UINT32_MAX) throw fail("too late");
        if (unit_text == "s") step.at_ms *= 1000;
        if (!out.empty() && step.at_ms < out.back().at_ms) throw fail("earlier than the one before");
        step.size = parse_size(std::string(part.substr(colon + 1)), option);
        out.push_back(step);
    }
    return out;
}

}  // namespace weir
