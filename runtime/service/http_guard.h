// Who may talk to the server: decided from a request's headers, before its body is read.
//
// Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir {

// A Host header is fine where it names localhost, an address, or an allowed name: a web page of another name that was made to
// resolve to this machine (DNS rebinding) sends its own.
bool host_allowed(std::string_view host, const std::vector<std::string>& allowed);

// An Origin header is fine where it is the server's own page, or the one that is allowed ("*": any).
bool origin_allowed(std::string_view origin, std::string_view host, std::string_view allowed);

// "Bearer KEY" with one of the keys. Takes the same time however much of a key is right.
bool key_allowed(std::string_view authorization, const std::vector<std::string>& keys);

}  // namespace weir
