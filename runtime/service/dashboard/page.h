// The dashboard as embed.py makes it of the files in this folder: one HTML document that asks nobody else for anything, and its
// Content-Security-Policy, which allows its own script and style by their hashes and nothing else.
//
// Constant; any thread.
#pragma once

#include <string_view>

namespace weir {

extern const std::string_view kDashboardPage;
extern const std::string_view kDashboardPolicy;

}  // namespace weir
