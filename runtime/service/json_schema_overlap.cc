#include "runtime/service/json_schema_overlap.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

// Schemas within schemas that are looked at.
constexpr int kDeepest = 4;
constexpr size_t kMostPairs = 1 << 12;

enum Type : unsigned {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAll = 127
};

unsigned type_of(const Json& value) {
    if (value.is_null()) return kNull;
    if (value.is_boolean()) return kBoolean;
    if (value.is_number()) return value.get<double>() == std::floor(value.get<double>()) ? kInteger : kFraction;
    if (value.is_string()) return kString;
    return value.is_array() ? kArray : kObject;
}

unsigned type_named(const Json& name) {
    constexpr std::pair<const char*, unsigned> kNames[] = {
        {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
        {"string", kString}, {"array", kArray},     {"object", kObject}};
    for (const auto& [known, type] : kNames) {
        if (name == known) return type;
    }
    return kAll;
}

const Json& resolved(const Json& schema, const Json& root) {
    const Json* found = &schema;
    for (int i = 0; i < kDeepest && found->is_object() && found->contains("$ref"); ++i) {
        const Json* const target = schema_reference(*found, root);
        if (target == nullptr) break;
        found = target;
    }
    return *found;
}

// The values that it lists; nullptr where it lists none. `one` is where a single one is kept.
const Json* listed(const Json& schema, Json* one) {
    if (!schema.is_object()) return nullptr;
    if (schema.contains("const")) return &(*one = Json::array({schema["const"]}));
    return schema.contains("enum") && schema["enum"].is_array() ? &schema["enum"] : nullptr;
}

unsigned types_of(const Json& unresolved, const Json& root, int depth) {
    const Json& schema = resolved(unresolved, root);
    if (schema.is_boolean()) return schema.get<bool>() ? unsigned{kAll} : 0u;
    if (!schema.is_object()) return kAll;
    unsigned types = kAll;
    if (const auto type = schema.find("type"); type != schema.end()) {
        types = 0;
        if (!type->is_array()) types = type_named(*type);
        for (size_t i = 0; type->is_array() && i < type->size(); ++i) types |= type_named((*type)[i]);
    }
    Json one;
    if (const Json* const values = listed(schema, &one)) {
        unsigned of_values = 0;
        for (const Json& value : *values) of_values |= type_of(value);
        types &= of_values;
    }
    for (const char* const keyword : {"anyOf", "oneOf"}) {
        if (depth == kDeepest || !schema.contains(keyword) || !schema[keyword].is_array()) continue;
        unsigned of_any = 0;
        for (const Json& way : schema[keyword]) of_any |= types_of(way, root, depth + 1);
        types &= of_any;
    }
    return types;
}

bool lists_are_apart(const Json& a, const Json& b) {
    Json one, other;
    const Json *const left = listed(a, &one), *const right = listed(b, &other);
    if (left == nullptr || right == nullptr || left->size() * right->size() > kMostPairs) return false;
    return std::none_of(left->begin(), left->end(), [&](const Json& value) {
        return std::find(right->begin(), right->end(), value) != right->end();
    });
}

bool needs(const Json& schema, const std::string& name) {
    const auto required = schema.find("required");
    return required != schema.end() && required->is_array() &&
           std::find(required->begin(), required->end(), name) != required->end();
}

const Json* property(const Json& schema, const std::string& name) {
    const auto properties = schema.find("properties");
    if (properties == schema.end() || !properties->is_object()) return nullptr;
    const auto found = properties->find(name);
    return found == properties->end() ? nullptr : &*found;
}

bool forbids(const Json& schema, const std::string& name) {
    return property(schema, name) == nullptr && schema.contains("additionalProperties") &&
           schema["additionalProperties"] == false;
}

bool may_overlap(const Json& one, const Json& other, const Json& root, int depth);

// A property that `a` needs and `b` has not, or has otherwise.
bool property_tells(const Json& a, const Json& b, const Json& root, int depth) {
    const auto required = a.find("required");
    if (required == a.end() || !required->is_array() || required->size() > kMostPairs) return false;
    return std::any_of(required->begin(), required->end(), [&](const Json& item) {
        if (!item.is_string()) return false;
        const std::string name = item.get<std::string>();
        if (forbids(b, name)) return true;
        const Json *const left = property(a, name), *const right = property(b, name);
        return needs(b, name) && left != nullptr && right != nullptr && depth < kDeepest &&
               !may_overlap(*left, *right, root, depth + 1);
    });
}

bool may_overlap(const Json& one, const Json& other, const Json& root, int depth) {
    const unsigned both = types_of(one, root, 0) & types_of(other, root, 0);
    if (both == 0) return false;
    const Json &a = resolved(one, root), &b = resolved(other, root);
    if (!a.is_object() || !b.is_object()) return true;
    if (lists_are_apart(a, b)) return false;
    return both != kObject || !(property_tells(a, b, root, depth) || property_tells(b, a, root, depth));
}

}  // namespace

const Json* schema_reference(const Json& schema, const Json& root) {
    const Json& text = schema["$ref"];
    if (!text.is_string()) return nullptr;
    const std::string pointer = text.get<std::string>();
    if (pointer.empty() || pointer[0] != '#') return nullptr;
    const Json* found = &root;
    for (size_t at = 1; at < pointer.size();) {
        if (pointer[at] != '/') return nullptr;
        const size_t end = std::min(pointer.find('/', at + 1), pointer.size());
        std::string key;
        for (size_t i = at + 1; i < end; ++i) {
            const bool escaped = pointer[i] == '~' && i + 1 < end;
            key += !escaped ? pointer[i] : pointer[++i] == '1' ? '/' : '~';
        }
        if (found->is_object() && found->contains(key)) {
            found = &(*found)[key];
        } else if (found->is_array() && !key.empty() && key.size() < 7 &&
                   key.find_first_not_of("0123456789") == std::string::npos && std::stoul(key) < found->size()) {
            found = &(*found)[std::stoul(key)];
        } else {
            return nullptr;
        }
        at = end;
    }
    return found;
}

bool schemas_may_overlap(const Json& one, const Json& other, const Json& root) {
    return may_overlap(one, other, root, 0);
}

}  // namespace weir
