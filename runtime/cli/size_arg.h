// Sizes as users type them: 4G, 512M, 1.5GiB, 100000 (bytes), 40%. Units are powers of 1024.
#pragma once

#include <cstdint>
#include <string>

namespace weir {

struct SizeArg {
    bool percent = false;
    double share = 0;    // of the whole, 0 to 1, where percent
    uint64_t bytes = 0;  // otherwise

    // Bytes, where `whole` is what a share is of; rounded down.
    uint64_t of(uint64_t whole) const;
};

// Throws UsageError that names the option.
SizeArg parse_size(const std::string& text, const std::string& option);

}  // namespace weir
