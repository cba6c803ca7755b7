// Options of a command from a configuration file and the environment, below what was typed: the command line overrides
// the environment, which overrides the file.
//
// An option's long name is its key in the file ("ctx-size = 8192") and, in capitals behind WEIR_, its variable
// (WEIR_CTX_SIZE). The parser that reads the command line knows the names, types and ranges, so there is no second list
// of them. The file is TOML 1.0 (toml.io) without tables.
#pragma once

#include <map>
#include <string>

namespace CLI {
class App;
}

namespace weir {

// Where each option's value is from, by key: "command line", "WEIR_PORT", "weir.toml:7"; what is not here has its
// default.
using OptionSources = std::map<std::string, std::string>;

// For a parser that has parsed: fills what was not typed. path: of the file; empty: there is none. Throws UsageError
// that says where, down to the line of the file: an unknown key, a wrong type, a value out of range.
OptionSources fill_options(CLI::App& parser, const std::string& path);

// What holds, as TOML, each line with where it is from.
std::string describe_options(const CLI::App& parser, const OptionSources& sources);

}  // namespace weir
