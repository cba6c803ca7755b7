#include "runtime/cli/size_arg.h"

#include <cmath>
#include <cstdlib>
#include <string_view>

#include "runtime/error.h"

namespace weir {

SizeArg parse_size(const std::string& text, const std::string& option) {
    const auto refuse = [&](const char* why) -> UsageError {
        return UsageError(option + " " + text + ": " + why + "; write a size like 4G, 512M or 40%");
    };
    if (text.empty() || text.find_first_not_of("0123456789.") == 0) throw refuse("not a size");
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const std::string_view unit = end;
    if (!std::isfinite(number) || number <= 0) throw refuse("not more than nothing");
    SizeArg size;
    if (unit == "%") {
        if (number > 1000) throw refuse("too large");
        size.percent = true;
        size.share = number / 100;
        return size;
    }
    double factor = 1;
    if (!unit.empty()) {
        static constexpr std::string_view kUnits = "KMGT";
        const size_t power = kUnits.find(static_cast<char>(unit[0] & ~0x20));
        const std::string_view rest = unit.substr(1);
        if (power == std::string_view::npos || (!rest.empty() && rest != "B" && rest != "iB")) throw refuse("unknown unit");
        factor = std::pow(1024.0, static_cast<double>(power + 1));
    }
    if (number * factor >= 0x1p62) throw refuse("too large");
    size.bytes = static_cast<uint64_t>(number * factor);
    if (size.bytes == 0) throw refuse("not more than nothing");
    return size;
}

}  // namespace weir
