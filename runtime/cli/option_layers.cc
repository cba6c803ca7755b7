#include "runtime/cli/option_layers.h"

#include <toml++/toml.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "runtime/error.h"

namespace weir {
namespace {

constexpr size_t kLargestFile = 1 << 20;

// What the file may say for an option.
enum class Kind { kWhole, kNumber, kSize, kSwitch, kChoice, kText, kTexts };

// By what the help calls its value: "UINT in [1 - 64]", "on|off", "SIZE|N%".
Kind kind_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    const auto begins = [&](std::string_view with) { return type.compare(0, with.size(), with) == 0; };
    if (option.get_items_expected_max() == 0 || type == "off|on") return Kind::kSwitch;
    if (option.get_items_expected_max() > 1) return Kind::kTexts;
    if (begins("INT") || begins("UINT")) return Kind::kWhole;
    if (begins("FLOAT")) return Kind::kNumber;
    if (begins("SIZE")) return Kind::kSize;
    return type.find('|') != std::string::npos && type.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos
               ? Kind::kChoice
               : Kind::kText;
}

const char* wanted(Kind kind) {
    switch (kind) {
        case Kind::kWhole: return "a whole number";
        case Kind::kNumber: return "a number";
        case Kind::kSize: return "a size or a share in quotes (\"4G\", \"50%\"), or bytes";
        case Kind::kSwitch: return "true or false";
        case Kind::kChoice: return "one of the words that --help lists, in quotes";
        case Kind::kText: return "text in quotes";
        case Kind::kTexts: return "a list of texts ([\"a\", \"b\"])";
    }
    return "";
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// What the command line would have said for it; nothing where the type is wrong.
std::vector<std::string> values_of(const toml::node& node, Kind kind, bool flag) {
    const auto number = [](auto value) {
        std::ostringstream out;
        out << value;
        return out.str();
    };
    if (const auto* text = node.as_string(); text && (kind == Kind::kSize || kind == Kind::kChoice ||
                                                      kind == Kind::kText || (kind == Kind::kSwitch && !flag))) {
        return {text->get()};
    }
    if (const auto* whole = node.as_integer();
        whole && kind != Kind::kSwitch && kind != Kind::kText && kind != Kind::kTexts) {
        return {number(whole->get())};
    }
    if (const auto* real = node.as_floating_point(); real && kind == Kind::kNumber && std::isfinite(real->get()))
        return {number(real->get())};
    if (const auto* truth = node.as_boolean(); truth && kind == Kind::kSwitch) {
        return {flag ? (truth->get() ? "true" : "false") : (truth->get() ? "on" : "off")};
    }
    std::vector<std::string> texts;
    if (const auto* list = node.as_array(); list && kind == Kind::kTexts) {
        for (const toml::node& one : *list) {
            if (!one.is_string()) return {};
            texts.push_back(one.as_string()->get());
        }
    }
    return texts;
}

// Options by key: all but those that only the command line has.
std::map<std::string, CLI::Option*> options_of(const CLI::App& parser) {
    std::map<std::string, CLI::Option*> found;
    for (const CLI::Option* const option : parser.get_options()) {
        if (!option->get_configurable() || option->get_lnames().empty() || option == parser.get_help_ptr()) continue;
        found[option->get_lnames().front()] =
            const_cast<CLI::Option*>(option);  // what the parser itself hands out by name
    }
    return found;
}

std::string variable_of(const std::string& key) {
    std::string name = "WEIR_";
    for (const char c : key) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return name;
}

void set(CLI::Option* option, const std::vector<std::string>& values, const std::string& where) {
    try {
        option->add_result(values);
        option->run_callback();
    } catch (const CLI::ParseError& error) {
        throw UsageError(where + ": " + error.what());
    } catch (const UsageError& error) {  // of an option's own parser
        throw UsageError(where + ": " + error.what());
    }
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ',');)
        if (!part.empty()) parts.push_back(part);
    return parts;
}

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::string text(kLargestFile + 1, '\0');
    if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!in.eof())
        throw UsageError(path +
                         ": the configuration cannot be read: " + (in ? "it is too large" : std::strerror(errno)));
    text.resize(static_cast<size_t>(in.gcount()));
    return text;
}

std::string quoted(const std::string& text) {
    const toml::value<std::string> value(text);
    std::ostringstream out;
    out << toml::toml_formatter(value, toml::format_flags::none);
    return out.str();
}

std::string as_toml(const std::string& text, Kind kind) {
    if (kind == Kind::kWhole || kind == Kind::kNumber || text == "true" || text == "false") return text;
    if (kind == Kind::kSwitch && (text == "on" || text == "off")) return text == "on" ? "true" : "false";
    return quoted(text);
}

void read_layer(const std::string& path, const std::map<std::string, CLI::Option*>& options, OptionSources* sources) {
    toml::table table;
    try {
        table = toml::parse(read_file(path), path);
    } catch (const toml::parse_error& error) {
        throw UsageError(path + ":" + std::to_string(error.source().begin.line) + ": " +
                         std::string(error.description()));
    }
    for (const auto& [name, node] : table) {
        const std::string key(name.str());
        const std::string where = path + ":" + std::to_string(name.source().begin.line);
        const auto found = options.find(key);
        if (found == options.end()) {
            throw UsageError(where + ": " + quoted(key) +
                             " is no option of the service (weir serve --print-config lists all)");
        }
        const Kind kind = kind_of(*found->second);
        const std::vector<std::string> values = values_of(node, kind, is_flag(*found->second));
        const bool empty_list = kind == Kind::kTexts && node.is_array() && node.as_array()->empty();
        if (values.empty() && !empty_list) throw UsageError(where + ": " + key + " takes " + wanted(kind));
        if (sources->count(key) != 0 || empty_list) continue;
        set(found->second, values, where);
        (*sources)[key] = where;
    }
}

}  // namespace

OptionSources fill_options(CLI::App& parser, const std::string& path) {
    const std::map<std::string, CLI::Option*> options = options_of(parser);
    OptionSources sources;
    for (const auto& [key, option] : options)
        if (option->count() > 0) sources[key] = "command line";
    for (const auto& [key, option] : options) {
        const std::string variable = variable_of(key);
        const char* const value = std::getenv(variable.c_str());
        if (value == nullptr || *value == '\0' || sources.count(key) != 0) continue;
        set(option, kind_of(*option) == Kind::kTexts ? split(value) : std::vector<std::string>{value}, variable);
        sources[key] = variable;
    }
    if (!path.empty()) read_layer(path, options, &sources);
    return sources;
}

std::string describe_options(const CLI::App& parser, const OptionSources& sources) {
    std::string text;
    for (const auto& [key, option] : options_of(parser)) {
        const Kind kind = kind_of(*option);
        const auto source = sources.find(key);
        std::string value;
        if (source == sources.end()) {
            const std::string standard = option->get_default_str();
            value = standard.empty() || kind == Kind::kTexts ? "" : as_toml(standard, kind);
        } else if (kind == Kind::kTexts) {
            for (const std::string& one : option->results()) value += (value.empty() ? "" : ", ") + quoted(one);
            value = "[" + value + "]";
        } else {
            value = as_toml(option->results().back(), kind);
        }
        std::string line = value.empty() ? "# " + key : key + " = " + value;
        line.resize(std::max<size_t>(line.size() + 2, 40), ' ');
        text += line +
                (value.empty() ? "no value, unless the model or the machine gives one"
                               : "# " + (source == sources.end() ? "default" : source->second)) +
                "\n";
    }
    return text;
}

}  // namespace weir
