#include "runtime/cli/format.h"

#include <algorithm>
#include <cstdio>

namespace weir {
namespace {

// Characters, not bytes: continuation bytes of UTF-8 take no column.
size_t width(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string format_fixed(double value, int decimals) {
    char out[400];
    std::snprintf(out, sizeof out, "%.*f", decimals, value);
    return out;
}

std::string format_bytes(uint64_t bytes) {
    if (bytes < 1024) return std::to_string(bytes) + " B";
    static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    auto value = static_cast<double>(bytes) / 1024;
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
        value /= 1024;
        ++unit;
    }
    return format_fixed(value, value < 9.995 ? 2 : 1) + " " + kUnits[unit];
}

std::string format_table(const std::vector<std::vector<std::string>>& lines, const std::string& align) {
    std::vector<size_t> widths(align.size());
    for (const auto& line : lines) {
        for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width(line[i]));
    }
    std::string out;
    for (const auto& line : lines) {
        for (size_t i = 0; i < line.size(); ++i) {
            const size_t padding = widths[i] - width(line[i]);
            out.append(2 + (align[i] == 'r' ? padding : 0), ' ');
            out += line[i];
            if (align[i] == 'l' && i + 1 < line.size()) out.append(padding, ' ');
        }
        out += '\n';
    }
    return out;
}

}  // namespace weir
