#include "runtime/service/http_guard.h"

#include <arpa/inet.h>
#include <strings.h>

#include <algorithm>

namespace weir {
namespace {

bool equals_ignoring_case(std::string_view a, std::string_view b) {
    return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// "[::1]:8080" -> "::1", "name:8080" -> "name".
std::string_view without_port(std::string_view host) {
    if (!host.empty() && host.front() == '[') {
        const size_t end = host.find(']');
        return end == std::string_view::npos ? std::string_view() : host.substr(1, end - 1);
    }
    return host.substr(0, host.rfind(':'));
}

bool is_address(std::string_view host) {
    in6_addr any;
    const std::string text(host);
    return ::inet_pton(AF_INET, text.c_str(), &any) == 1 || ::inet_pton(AF_INET6, text.c_str(), &any) == 1;
}

}  // namespace

bool host_allowed(std::string_view host, const std::vector<std::string>& allowed) {
    const std::string_view name = without_port(host);
    if (equals_ignoring_case(name, "localhost") || is_address(name)) return true;
    return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) { return equals_ignoring_case(one, name); });
}

bool origin_allowed(std::string_view origin, std::string_view host, std::string_view allowed) {
    if (origin.empty() || allowed == "*" || origin == allowed) return true;
    const size_t at = origin.find("://");
    return at != std::string_view::npos && equals_ignoring_case(origin.substr(at + 3), host);
}

bool key_allowed(std::string_view authorization, const std::vector<std::string>& keys) {
    if (keys.empty()) return true;
    constexpr std::string_view kScheme = "Bearer ";
    if (authorization.size() < kScheme.size() || !equals_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return false;
    const std::string_view given = authorization.substr(kScheme.size());
    bool found = false;
    for (const std::string& key : keys) {
        unsigned char different = given.size() == key.size() ? 0 : 1;
        for (size_t i = 0; i < key.size(); ++i) {
            different |= static_cast<unsigned char>(key[i] ^ (i < given.size() ? given[i] : '\0'));
        }
        found |= different == 0;
    }
    return found;
}

}  // namespace weir
