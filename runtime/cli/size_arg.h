// Sizes as users type them: 4G, 512M, 1.5G, 100000 (bytes), 40%. Powers of 1024.
#pragma once

#include <cstdint>
#include <string>

namespace weir {

struct SizeArg {
    bool percent = false;
    double share = 0;    // of the whole, where percent
    uint64_t bytes = 0;  // otherwise

    uint64_t of(uint64_t whole) const { return percent ? static_cast<uint64_t>(share * static_cast<double>(whole)) : bytes; }
};

// Throws UsageError that names the option.
SizeArg parse_size(const std::string& text, const std::string& option);

}  // namespace weir
