// Another program as an arm of a bench: a command with placeholders, whose last line on standard output is a JSON object.
// bench/peers/README.md says what a driver has to do.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weir {

struct Peer {
    std::string name;
    std::string command;
};

// NAME=COMMAND. Throws UsageError, also where the name is one of `ours`.
Peer parse_peer(const std::string& text, std::span<const char* const> ours);

// The words of the command, cut at blanks; in each, the first placeholder that it holds is replaced.
std::vector<std::string> peer_command(const Peer& peer, std::span<const std::pair<const char*, std::string>> places);

// The object on the last line of what it wrote. Throws nlohmann::json::exception.
nlohmann::json peer_figures(const std::string& out);

// A number of the object, by the first of its names that is there.
std::optional<double> number_of(const nlohmann::json& object, std::initializer_list<const char*> names);

struct Spread {
    double median = 0;
    double least = 0;
    double most = 0;
};
double median(std::vector<double> values);  // of at least one
std::optional<Spread> spread_of(const std::vector<double>& values);

}  // namespace weir
