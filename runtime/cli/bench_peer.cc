#include "runtime/cli/bench_peer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/error.h"

namespace weir {
namespace {

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) text.replace(at, what.size(), by);
    return text;
}

std::string last_line(const std::string& text) {
    const size_t end = text.find_last_not_of(" \n\r\t");
    if (end == std::string::npos) return "";
    const size_t begin = text.rfind('\n', end);
    return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

}  // namespace

Peer parse_peer(const std::string& text, std::span<const char* const> ours) {
    const size_t sign = text.find('=');
    const std::string name = text.substr(0, sign);
    if (sign == std::string::npos || name.empty() || name.find_first_of(" {}/") != std::string::npos ||
        text.find_first_not_of(" \t", sign + 1) == std::string::npos)
        throw UsageError("--peer-command " + text + ": write NAME=COMMAND, such as 'other=driver {model} {threads} {warm} {tokens}'");
    if (std::find(ours.begin(), ours.end(), name) != ours.end())
        throw UsageError("--peer-command " + text + ": " + name + " is an arm of ours; take another name");
    return {name, text.substr(sign + 1)};
}

std::vector<std::string> peer_command(const Peer& peer, std::span<const std::pair<const char*, std::string>> places) {
    std::vector<std::string> command;
    std::istringstream words(peer.command);
    for (std::string word; words >> word;) {
        for (const auto& [name, value] : places) {
            if (word.find(name) == std::string::npos) continue;
            word = replaced(word, name, value);
            break;  // what a value holds is no placeholder
        }
        command.push_back(word);
    }
    return command;
}

nlohmann::json peer_figures(const std::string& out) { return nlohmann::json::parse(last_line(out)); }

std::optional<double> number_of(const nlohmann::json& object, std::initializer_list<const char*> names) {
    for (const char* name : names) {
        const auto it = object.find(name);
        if (it != object.end() && it->is_number()) return it->get<double>();
    }
    return std::nullopt;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::optional<Spread> spread_of(const std::vector<double>& values) {
    if (values.empty()) return std::nullopt;
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return Spread{median(values), *least, *most};
}

}  // namespace weir
