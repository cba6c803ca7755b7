// What can be told of two schemas without a value at hand: whether one may match both.
//
// Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace weir {

// What the schema's "$ref" leads to within `root`; nullptr where that is nothing, or outside.
const nlohmann::ordered_json* schema_reference(const nlohmann::ordered_json& schema,
                                               const nlohmann::ordered_json& root);

// False where certainly no value matches both: by their types, by the values that they list, or by a property that
// objects need and that tells them apart.
bool schemas_may_overlap(const nlohmann::ordered_json& one, const nlohmann::ordered_json& other,
                         const nlohmann::ordered_json& root);

}  // namespace weir
