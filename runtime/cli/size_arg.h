// Sizes as users type them: 4G, 512M, 1.5GiB, 100000 (bytes), 40%. Units are powers of 1024.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// A size to be in force from a moment of the run on.
struct TimedSize {
    uint64_t at_ms = 0;
    SizeArg size;
};

// "10s:1G,20s:600M": seconds (or "ms") from the start, ascending, and sizes. Throws UsageError that names the option.
std::vector<TimedSize> parse_timed_sizes(const std::string& text, const std::string& option);

}  // namespace weir
