#include "runtime/service/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "runtime/service/api_error.h"
#include "runtime/service/json_schema_numbers.h"
#include "runtime/service/json_schema_overlap.h"
#include "runtime/service/json_schema_pattern.h"
#include "runtime/service/openai_request.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;
using NodeId = Grammar::NodeId;
using RuleId = Grammar::RuleId;
constexpr uint32_t kUnlimited = Grammar::kUnlimited;

// What says nothing about a value.
constexpr const char* kAnnotations[] = {"title",     "description", "default", "examples", "deprecated", "readOnly",
                                        "writeOnly", "$schema",     "$id",     "$comment", "$defs",      "definitions"};
// Keywords and the type that they speak of.
struct Keyword {
    const char* name;
    const char* type;
};
constexpr Keyword kKeywords[] = {
    {"properties", "object"},       {"required", "object"},         {"additionalProperties", "object"},
    {"items", "array"},             {"prefixItems", "array"},       {"minItems", "array"},
    {"maxItems", "array"},          {"minLength", "string"},        {"maxLength", "string"},
    {"pattern", "string"},          {"format", "string"},           {"minimum", "number"},
    {"maximum", "number"},          {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
    {"type", nullptr}};

constexpr size_t kLongestName = 256;
constexpr size_t kMostOneOf = 256;
// Digits that doubles tell apart.
constexpr uint32_t kDigits = 15;
// Of a line's beginning.
constexpr uint32_t kMostBlanks = 20;

bool is_annotation(const std::string& key) {
    return std::any_of(std::begin(kAnnotations), std::end(kAnnotations),
                       [&](const char* known) { return key == known; });
}

// A place in a schema, for errors and for references.
struct Place {
    const Json* root;
    std::string path;
    Place at(const std::string& key) const { return {root, path + "." + key}; }
};

[[noreturn]] void refuse(const Place& at, const std::string& what) {
    throw ApiError(400, "'" + at.path + "' " + what, at.path, "invalid_schema");
}

// Refuses keywords beside `wanted` that say something.
void refuse_others(const Json& schema, const Place& at, const char* wanted, const char* also = "") {
    for (const auto& [key, value] : schema.items()) {
        if (key != wanted && key != also && !is_annotation(key))
            refuse(at.at(key), "is not supported beside '" + std::string(wanted) + "'");
    }
}

bool has_type(const Json& value, const std::string& type) {
    if (type == "integer")
        return value.is_number_integer() ||
               (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
    return type == (value.is_number() ? "number" : value.type_name());
}

}  // namespace

struct SchemaCompiler::Parts {
    explicit Parts(Grammar& grammar);

    // What a schema becomes.
    NodeId compile(const Json& schema, const Place& at, NodeId next);
    NodeId reference(const Json& schema, const Place& at, NodeId next);
    NodeId values(const Json& schema, const Place& at, NodeId next);
    NodeId alternatives(const Json& schema, const Place& at, const char* keyword, NodeId next);
    NodeId of_type(const std::string& type, const Json& schema, const Place& at, NodeId next);
    NodeId object(const Json& schema, const Place& at, NodeId next);
    NodeId array(const Json& schema, const Place& at, NodeId next);
    NodeId tuple(const Json& schema, const Place& at, uint32_t least, uint32_t most, NodeId close);
    NodeId string(const Json& schema, const Place& at, NodeId next);
    NodeId pattern(const Json& schema, const Place& at, const char* keyword, NodeId next);
    NodeId bounded_number(const Json& schema, const Place& at, bool fraction, NodeId next);
    std::vector<std::string> types(const Json& schema, const Place& at) const;

    // The parts of JSON's text.
    NodeId space(NodeId next);  // between the parts of an object or array: none, a blank, or a new line
    NodeId any(NodeId next) { return grammar.call(any_value, next); }
    NodeId number(bool fraction, NodeId next);
    NodeId digits(uint32_t least, uint32_t most, NodeId next) { return grammar.repeat(digit, least, most, next); }
    NodeId one_of(const std::vector<std::string>& texts, size_t first, size_t end, size_t depth, NodeId next);
    NodeId other_name(const std::vector<std::string>& names, size_t first, size_t end, size_t depth, NodeId next);
    NodeId after_name(NodeId value) {
        return grammar.literal(":", grammar.either(value, grammar.bytes(' ', ' ', value)));
    }
    NodeId character(bool escapes);

    Grammar& grammar;
    RuleId plain_character, any_character, digit, blank, any_value;
    struct Reference {
        const Json* target;
        Place at;
        RuleId rule;
    };
    std::vector<Reference> references;
    size_t compiled = 0;  // of them
    std::map<const Json*, RuleId> rule_of;
};

SchemaCompiler::Parts::Parts(Grammar& to)
    : grammar(to),
      plain_character(to.add_rule()),
      any_character(to.add_rule()),
      digit(to.add_rule()),
      blank(to.add_rule()),
      any_value(to.add_rule()) {
    grammar.set_rule(plain_character, character(false));
    grammar.set_rule(any_character, character(true));
    grammar.set_rule(digit, grammar.bytes('0', '9', grammar.end()));
    grammar.set_rule(blank, grammar.bytes(' ', ' ', grammar.end()));
    static const Json everything = Json::object();
    std::vector<NodeId> ways;
    for (const char* const type : {"object", "array", "string", "number", "boolean", "null"}) {
        ways.push_back(of_type(type, everything, {&everything, ""}, grammar.end()));
    }
    grammar.set_rule(any_value, grammar.either(ways));
}

// One character of a string: well-formed UTF-8 (RFC 3629) without control characters, or an escape (RFC 8259) that is
// no half of a surrogate pair.
NodeId SchemaCompiler::Parts::character(bool escapes) {
    Grammar& g = grammar;
    const NodeId end = g.end(), last = g.bytes(0x80, 0xBF, end), last2 = g.bytes(0x80, 0xBF, last),
                 last3 = g.bytes(0x80, 0xBF, last2);
    std::vector<NodeId> ways{g.bytes(0x20, 0x21, end),
                             g.bytes(0x23, 0x5B, end),
                             g.bytes(0x5D, 0x7F, end),
                             g.bytes(0xC2, 0xDF, last),
                             g.bytes(0xE0, 0xE0, g.bytes(0xA0, 0xBF, last)),
                             g.bytes(0xE1, 0xEC, last2),
                             g.bytes(0xED, 0xED, g.bytes(0x80, 0x9F, last)),
                             g.bytes(0xEE, 0xEF, last2),
                             g.bytes(0xF0, 0xF0, g.bytes(0x90, 0xBF, last2)),
                             g.bytes(0xF1, 0xF3, last3),
                             g.bytes(0xF4, 0xF4, g.bytes(0x80, 0x8F, last2))};
    if (!escapes) return g.either(ways);
    const auto hex = [&](NodeId next) {
        const NodeId letters = g.either(g.bytes('a', 'f', next), g.bytes('A', 'F', next));
        return g.either(g.bytes('0', '9', next), letters);
    };
    const NodeId two = hex(hex(end)), three = hex(two);
    const NodeId d = g.bytes('0', '7', two);
    const NodeId unicode[] = {g.bytes('0', '9', three), g.bytes('a', 'c', three), g.bytes('A', 'C', three),
                              g.bytes('e', 'f', three), g.bytes('E', 'F', three), g.bytes('d', 'd', d),
                              g.bytes('D', 'D', d)};
    std::vector<NodeId> escaped{g.bytes('u', 'u', g.either(unicode))};
    for (const char c : std::string("\"\\/bfnrt"))
        escaped.push_back(g.bytes(static_cast<uint8_t>(c), static_cast<uint8_t>(c), end));
    ways.push_back(g.bytes('\\', '\\', g.either(escaped)));
    return g.either(ways);
}

NodeId SchemaCompiler::Parts::space(NodeId next) {
    const NodeId line = grammar.bytes('\n', '\n', grammar.repeat(blank, 0, kMostBlanks, next));
    return grammar.either(next, grammar.either(grammar.bytes(' ', ' ', next), line));
}

NodeId SchemaCompiler::Parts::number(bool fraction, NodeId next) {
    Grammar& g = grammar;
    if (fraction) {
        const NodeId power = digits(1, 2, next);
        const NodeId sign = g.either(power, g.either(g.bytes('+', '+', power), g.bytes('-', '-', power)));
        const NodeId scaled = g.either(next, g.either(g.bytes('e', 'e', sign), g.bytes('E', 'E', sign)));
        next = g.either(scaled, g.literal(".", digits(1, kDigits, scaled)));
    }
    const NodeId magnitude = g.either(g.bytes('0', '0', next), g.bytes('1', '9', digits(0, kDigits - 1, next)));
    return g.either(magnitude, g.bytes('-', '-', magnitude));
}

// Texts [first, end), sorted, which agree in their first `depth` bytes.
NodeId SchemaCompiler::Parts::one_of(const std::vector<std::string>& texts, size_t first, size_t end, size_t depth,
                                     NodeId next) {
    const std::string &low = texts[first], &high = texts[end - 1];
    if (end - first == 1) return grammar.literal(std::string_view(low).substr(depth), next);
    const size_t most = std::min(low.size(), high.size());
    const size_t common = static_cast<size_t>(
        std::mismatch(low.begin(), low.begin() + static_cast<ptrdiff_t>(most), high.begin()).first - low.begin());
    std::vector<NodeId> ways;
    if (low.size() == common) {
        ways.push_back(next);
        ++first;
    }
    while (first < end) {
        size_t behind = first + 1;
        while (behind < end && texts[behind][common] == texts[first][common]) ++behind;
        ways.push_back(one_of(texts, first, behind, common, next));
        first = behind;
    }
    return grammar.literal(std::string_view(low).substr(depth, common - depth), grammar.either(ways));
}

// The rest of a property's name that is none of names [first, end), sorted, whose first `depth` bytes it has; and the
// closing quote.
NodeId SchemaCompiler::Parts::other_name(const std::vector<std::string>& names, size_t first, size_t end, size_t depth,
                                         NodeId next) {
    const NodeId quote = grammar.bytes('"', '"', next), free = grammar.repeat(plain_character, 0, kUnlimited, quote);
    if (first == end) return free;
    std::vector<NodeId> ways;
    const bool is_name = names[first].size() == depth;
    if (is_name) ++first;
    const bool inside_character = first < end && (static_cast<uint8_t>(names[first][depth]) & 0xC0) == 0x80;
    if (!is_name && !inside_character) ways.push_back(quote);
    // It leaves the names by a character of ASCII.
    int low = ' ';
    const auto leave = [&](int to) {
        for (const auto& [from, until] : {std::pair(' ', '!'), std::pair('#', '['), std::pair(']', '~')}) {
            const int begin = std::max<int>(low, from), last = std::min<int>(to - 1, until);
            if (begin <= last && !inside_character)
                ways.push_back(grammar.bytes(static_cast<uint8_t>(begin), static_cast<uint8_t>(last), free));
        }
        low = to + 1;
    };
    while (first < end) {
        const char byte = names[first][depth];
        size_t behind = first + 1;
        while (behind < end && names[behind][depth] == byte) ++behind;
        const uint8_t value = static_cast<uint8_t>(byte);
        if (value < 0x80) leave(value);
        ways.push_back(grammar.bytes(value, value, other_name(names, first, behind, depth + 1, next)));
        first = behind;
    }
    leave(0x7F);
    return grammar.either(ways);
}

NodeId SchemaCompiler::Parts::compile(const Json& schema, const Place& at, NodeId next) {
    if (schema.is_boolean()) return schema.get<bool>() ? any(next) : grammar.nothing();
    if (!schema.is_object()) refuse(at, "must be an object, true or false");
    if (schema.contains("$ref")) return reference(schema, at, next);
    for (const char* const keyword : {"enum", "const"}) {
        if (schema.contains(keyword)) return values(schema, at, next);
    }
    for (const char* const keyword : {"anyOf", "oneOf", "allOf"}) {
        if (schema.contains(keyword)) return alternatives(schema, at, keyword, next);
    }
    for (const auto& item : schema.items()) {
        const std::string& key = item.key();
        const bool known =
            std::any_of(std::begin(kKeywords), std::end(kKeywords), [&](const Keyword& k) { return key == k.name; });
        if (!known && !is_annotation(key)) refuse(at.at(key), "is a keyword that is not supported");
    }
    std::vector<NodeId> ways;
    for (const std::string& type : types(schema, at)) ways.push_back(of_type(type, schema, at, next));
    return ways.empty() ? any(next) : grammar.either(ways);
}

// Those that are named, or that the other keywords speak of; none: all.
std::vector<std::string> SchemaCompiler::Parts::types(const Json& schema, const Place& at) const {
    std::vector<std::string> made;
    const auto add = [&](const std::string& type) {
        if (std::find(made.begin(), made.end(), type) == made.end()) made.push_back(type);
    };
    if (const auto type = schema.find("type"); type != schema.end()) {
        for (const Json& name : type->is_array() ? *type : Json::array({*type})) {
            if (!name.is_string()) refuse(at.at("type"), "must be a type's name or an array of them");
            add(name.get<std::string>());
        }
        if (made.empty()) refuse(at.at("type"), "names no type");
        return made;
    }
    for (const Keyword& keyword : kKeywords) {
        if (keyword.type != nullptr && schema.contains(keyword.name)) add(keyword.type);
    }
    return made;
}

NodeId SchemaCompiler::Parts::of_type(const std::string& type, const Json& schema, const Place& at, NodeId next) {
    if (type == "object") return object(schema, at, next);
    if (type == "array") return array(schema, at, next);
    if (type == "string") return string(schema, at, next);
    if (type == "number" || type == "integer") return bounded_number(schema, at, type == "number", next);
    if (type == "boolean") return grammar.either(grammar.literal("true", next), grammar.literal("false", next));
    if (type == "null") return grammar.literal("null", next);
    refuse(at.at("type"), "is no type of JSON Schema: " + type);
}

NodeId SchemaCompiler::Parts::reference(const Json& schema, const Place& at, NodeId next) {
    refuse_others(schema, at, "$ref");
    const Json* const target = schema_reference(schema, *at.root);
    if (target == nullptr) refuse(at.at("$ref"), "leads nowhere within this schema");
    const auto [known, is_new] = rule_of.try_emplace(target, 0);
    if (is_new) {
        known->second = grammar.add_rule();
        // Compiled later: however long the chain of references, no call here waits for another.
        references.push_back(
            {target, {at.root, at.path + "(" + schema["$ref"].get<std::string>() + ")"}, known->second});
        if (references.back().at.path.size() > 1000) references.back().at.path = schema["$ref"].get<std::string>();
    }
    return grammar.call(known->second, next);
}

NodeId SchemaCompiler::Parts::values(const Json& schema, const Place& at, NodeId next) {
    const bool one = schema.contains("const");
    refuse_others(schema, at, one ? "const" : "enum", "type");
    const std::vector<std::string> allowed = types(schema, at);
    if (!one && !schema["enum"].is_array()) refuse(at.at("enum"), "must be an array");
    std::vector<std::string> texts;
    for (const Json& value : one ? Json::array({schema["const"]}) : schema["enum"]) {
        const bool fits = allowed.empty() || std::any_of(allowed.begin(), allowed.end(),
                                                         [&](const std::string& t) { return has_type(value, t); });
        if (fits) texts.push_back(python_json(value));
    }
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    return texts.empty() ? grammar.nothing() : one_of(texts, 0, texts.size(), 0, next);
}

NodeId SchemaCompiler::Parts::alternatives(const Json& schema, const Place& at, const char* keyword, NodeId next) {
    refuse_others(schema, at, keyword);
    const Json& all = schema[keyword];
    const Place here = at.at(keyword);
    const auto place = [&](size_t i) { return Place{at.root, here.path + "[" + std::to_string(i) + "]"}; };
    if (!all.is_array() || all.empty()) refuse(here, "must be an array of at least one schema");
    if (keyword == std::string("allOf") && all.size() > 1) refuse(here, "is supported with one schema only");
    if (keyword == std::string("oneOf")) {
        if (all.size() > kMostOneOf)
            refuse(here, "has more than " + std::to_string(kMostOneOf) + " alternatives: use anyOf");
        for (size_t i = 0; i < all.size(); ++i) {
            for (size_t j = 0; j < i; ++j) {
                if (!schemas_may_overlap(all[j], all[i], *at.root)) continue;
                refuse(here, "has alternatives that may match the same value, " + std::to_string(j) + " and " +
                                 std::to_string(i) +
                                 ": use anyOf, or give each a required property with another const");
            }
        }
    }
    std::vector<NodeId> ways;
    for (size_t i = 0; i < all.size(); ++i) ways.push_back(compile(all[i], place(i), next));
    return grammar.either(ways);
}

namespace {

uint32_t count(const Json& schema, const Place& at, const char* key, uint32_t fallback) {
    const auto value = schema.find(key);
    if (value == schema.end()) return fallback;
    const double n = value->is_number() ? value->get<double>() : -1;
    if (n < 0 || n != std::floor(n)) refuse(at.at(key), "must be a whole number from 0 on");
    return n >= kUnlimited ? kUnlimited - 1 : static_cast<uint32_t>(n);
}

// least and most of the same thing.
std::pair<uint32_t, uint32_t> counts(const Json& schema, const Place& at, const char* least, const char* most) {
    const std::pair made(count(schema, at, least, 0), count(schema, at, most, kUnlimited));
    if (made.first > made.second) refuse(at.at(least), std::string("is more than '") + most + "'");
    return made;
}

}  // namespace

NodeId SchemaCompiler::Parts::bounded_number(const Json& schema, const Place& at, bool fraction, NodeId next) {
    NumberBounds bounds;
    const auto bound = [&](const char* key) -> std::optional<double> {
        const auto value = schema.find(key);
        if (value == schema.end()) return std::nullopt;
        if (!value->is_number()) refuse(at.at(key), "must be a number");
        return value->get<double>();
    };
    bounds.least = bound("minimum");
    bounds.most = bound("maximum");
    const std::optional<double> above = bound("exclusiveMinimum"), below = bound("exclusiveMaximum");
    bounds.above = above && (!bounds.least || *above >= *bounds.least);
    bounds.below = below && (!bounds.most || *below <= *bounds.most);
    if (bounds.above) bounds.least = above;
    if (bounds.below) bounds.most = below;
    if (!bounds.least && !bounds.most) return number(fraction, next);
    return number_between(grammar, digit, bounds, fraction, next);
}

// Between the quotes. A format is one of those patterns that have a name.
NodeId SchemaCompiler::Parts::pattern(const Json& schema, const Place& at, const char* keyword, NodeId next) {
    for (const char* const other : {"minLength", "maxLength", "pattern"}) {
        if (other != std::string(keyword) && schema.contains(other))
            refuse(at.at(other), "is not supported beside '" + std::string(keyword) + "'");
    }
    if (!schema[keyword].is_string()) refuse(at.at(keyword), "must be a string");
    const std::string text = schema[keyword].get<std::string>();
    const bool named = keyword == std::string("format");
    const std::optional<std::string> expression = named ? pattern_of_format(text) : text;
    if (!expression) refuse(at.at(keyword), "is a format that is not supported: " + text);
    try {
        return pattern_of(grammar, *expression, any_character, next);
    } catch (const PatternError& error) {
        refuse(at.at(keyword), std::string("is a regular expression that is not supported: it ") + error.what());
    }
}

NodeId SchemaCompiler::Parts::string(const Json& schema, const Place& at, NodeId next) {
    const NodeId quote = grammar.literal("\"", next);
    for (const char* const keyword : {"format", "pattern"}) {
        if (schema.contains(keyword)) return grammar.literal("\"", pattern(schema, at, keyword, quote));
    }
    const auto [least, most] = counts(schema, at, "minLength", "maxLength");
    return grammar.literal("\"", grammar.repeat(any_character, least, most, quote));
}

NodeId SchemaCompiler::Parts::array(const Json& schema, const Place& at, NodeId next) {
    const auto [least, most] = counts(schema, at, "minItems", "maxItems");
    const NodeId close = grammar.literal("]", next);
    if (most == 0) return grammar.literal("[", close);
    if (schema.contains("prefixItems")) return tuple(schema, at, least, most, close);
    RuleId item = any_value;
    if (schema.contains("items")) {
        item = grammar.add_rule();
        grammar.set_rule(item, compile(schema["items"], at.at("items"), grammar.end()));
    }
    const RuleId another = grammar.add_rule();
    grammar.set_rule(another, grammar.literal(",", space(grammar.call(item, grammar.end()))));
    const NodeId rest =
        grammar.repeat(another, std::max(least, 1u) - 1, most == kUnlimited ? kUnlimited : most - 1, space(close));
    const NodeId first = grammar.call(item, rest);
    return grammar.literal("[", space(least == 0 ? grammar.either(first, close) : first));
}

// An array whose first items have schemas of their own. More than those only where "items" or "minItems" ask for them.
NodeId SchemaCompiler::Parts::tuple(const Json& schema, const Place& at, uint32_t least, uint32_t most, NodeId close) {
    static const Json kAnything = true;
    const Json& first = schema["prefixItems"];
    if (!first.is_array() || first.empty()) refuse(at.at("prefixItems"), "must be an array of at least one schema");
    const auto named = static_cast<uint32_t>(first.size());
    const bool says = schema.contains("items");
    const Json& others = says ? schema["items"] : kAnything;
    const NodeId end = space(close);
    NodeId after = end;
    if (most > named && others != false && (says || least > named)) {
        const RuleId another = grammar.add_rule();
        grammar.set_rule(another, grammar.literal(",", space(compile(others, at.at("items"), grammar.end()))));
        const uint32_t needed = least > named ? least - named : 0;
        after = grammar.repeat(another, needed, most == kUnlimited ? kUnlimited : most - named, end);
    } else if (least > named) {
        return grammar.nothing();
    }
    for (uint32_t i = named; i-- > 0;) {
        const Place place{at.root, at.path + ".prefixItems[" + std::to_string(i) + "]"};
        if (i >= most) continue;
        const NodeId item = compile(first[i], place, after);
        if (i == 0) return grammar.literal("[", space(least == 0 ? grammar.either(item, close) : item));
        const NodeId another = grammar.literal(",", space(item));
        after = i >= least ? grammar.either(another, end) : another;
    }
    return grammar.nothing();
}

// Properties in the schema's order; `first` is where nothing has been said yet, `after` where something has.
NodeId SchemaCompiler::Parts::object(const Json& schema, const Place& at, NodeId next) {
    static const Json kNoProperties = Json::object(), kAnything = true;
    const Json& properties = schema.contains("properties") ? schema["properties"] : kNoProperties;
    if (!properties.is_object()) refuse(at.at("properties"), "must be an object");
    const bool says = schema.contains("additionalProperties");
    const Json& additional = says ? schema["additionalProperties"] : kAnything;
    const bool open = says ? additional != false : !schema.contains("properties");

    struct Property {
        std::string name;
        const Json* schema;
        Place at;
        bool required;
    };
    std::vector<Property> all;
    for (const auto& [name, of] : properties.items()) all.push_back({name, &of, at.at("properties").at(name), false});
    if (const auto required = schema.find("required"); required != schema.end()) {
        if (!required->is_array()) refuse(at.at("required"), "must be an array of names");
        std::map<std::string, size_t> index;
        for (size_t i = 0; i < all.size(); ++i) index.emplace(all[i].name, i);
        for (const Json& name : *required) {
            if (!name.is_string()) refuse(at.at("required"), "must be an array of names");
            const auto [known, is_new] = index.emplace(name.get<std::string>(), all.size());
            if (is_new) all.push_back({name.get<std::string>(), &additional, at.at("additionalProperties"), true});
            all[known->second].required = true;
        }
    }
    std::vector<std::string> names;
    for (const Property& property : all) {
        if (property.name.size() > kLongestName)
            refuse(property.at, "has a name of more than " + std::to_string(kLongestName) + " bytes");
        if (python_json(property.name) == "\"" + property.name + "\"")
            names.push_back(property.name);  // others take escapes
    }
    std::sort(names.begin(), names.end());

    const NodeId close = grammar.literal("}", next);
    NodeId first = close, after = space(close);
    if (open) {
        const RuleId value = additional == true ? any_value : grammar.add_rule(), another = grammar.add_rule();
        if (additional != true)
            grammar.set_rule(value, compile(additional, at.at("additionalProperties"), grammar.end()));
        const auto pair = [&](NodeId then) {
            return grammar.literal("\"", other_name(names, 0, names.size(), 0, after_name(grammar.call(value, then))));
        };
        grammar.set_rule(another, grammar.literal(",", space(pair(grammar.end()))));
        after = grammar.repeat(another, 0, kUnlimited, after);
        first = grammar.either(pair(after), close);
    }
    for (size_t i = all.size(); i-- > 0;) {
        const NodeId value = compile(*all[i].schema, all[i].at, after);
        const NodeId pair = grammar.literal(python_json(all[i].name), after_name(value));
        const NodeId another = grammar.literal(",", space(pair));
        first = all[i].required ? pair : grammar.either(pair, first);
        after = all[i].required ? another : grammar.either(another, after);
    }
    return grammar.literal("{", space(first));
}

SchemaCompiler::SchemaCompiler(Grammar& grammar) : parts_(std::make_unique<Parts>(grammar)) {}
SchemaCompiler::~SchemaCompiler() = default;

NodeId SchemaCompiler::value(const Json& schema, const std::string& where, NodeId next) {
    const Place at{&schema, where};
    try {
        const NodeId made = parts_->compile(schema, at, next);
        // What they refer to may refer to more.
        for (; parts_->compiled < parts_->references.size(); ++parts_->compiled) {
            const Parts::Reference reference = parts_->references[parts_->compiled];
            parts_->grammar.set_rule(reference.rule,
                                     parts_->compile(*reference.target, reference.at, parts_->grammar.end()));
        }
        return made;
    } catch (const GrammarError& error) {
        refuse(at, std::string("cannot be used: ") + error.what());
    }
}

NodeId SchemaCompiler::any_object(NodeId next) {
    static const Json kAny = Json::object();
    return parts_->object(kAny, {&kAny, ""}, next);
}

void SchemaCompiler::finish(NodeId root, const std::string& where) {
    try {
        const RuleId rule = parts_->grammar.add_rule();
        parts_->grammar.set_rule(rule, root);
        parts_->grammar.finish(rule);
    } catch (const GrammarError& error) {
        refuse({nullptr, where}, std::string("cannot be used: ") + error.what());
    }
}

}  // namespace weir
