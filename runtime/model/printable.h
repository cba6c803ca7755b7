// Text that nobody vouches for (names and strings out of a model file) made fit for one line of a message or
// a table.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weir {

// Control characters, characters that steer the layout of text, and bytes that are no UTF-8 are escaped as
// \xNN; more than max_bytes of output is cut, with "..." behind.
std::string printable(std::string_view text, size_t max_bytes = 80);

// The same between single quotes.
std::string quoted(std::string_view text);

}  // namespace weir
