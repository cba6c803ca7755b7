// JSON Schema to a Grammar: answers within it parse, and validate. What it cannot express is refused by name, never
// left out.
//
// Taken: type (one or several), properties, required, additionalProperties, enum, const, items, prefixItems, minItems,
// maxItems, minLength, maxLength, pattern and format (see json_schema_pattern.h), minimum, maximum and those that exclude
// themselves, anyOf, oneOf (where no value can match two), allOf of one, $ref within the schema, true and false.
// Annotations (title, description, default and their kind) say nothing.
//
// Answers are a part of what validates: properties come in the schema's order, ones it does not name only where
// additionalProperties asks for them; lines are broken and blanks put as people do.
//
// Pure; any thread. Throws ApiError, 400, with the place in the schema
// ("response_format.json_schema.schema.properties.x").
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/service/grammar.h"

namespace weir {

class SchemaCompiler {
  public:
    // All go into this grammar.
    explicit SchemaCompiler(Grammar& grammar);
    ~SchemaCompiler();
    SchemaCompiler(const SchemaCompiler&) = delete;
    SchemaCompiler& operator=(const SchemaCompiler&) = delete;

    // A value of the schema, and then `next`. The schema must live until finish(); `where` names it in errors.
    Grammar::NodeId value(const nlohmann::ordered_json& schema, const std::string& where, Grammar::NodeId next);
    // Any JSON object.
    Grammar::NodeId any_object(Grammar::NodeId next);
    // What references lead to is compiled, and the grammar is the language of this node.
    void finish(Grammar::NodeId root, const std::string& where);

  private:
    struct Parts;
    const std::unique_ptr<Parts> parts_;
};

}  // namespace weir
