#include "runtime/cli/size_arg.h"

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

}  // namespace weir
