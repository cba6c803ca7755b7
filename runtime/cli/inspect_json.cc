// The form of `weir inspect` that machines read.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "runtime/cli/inspect_report.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

// A vocabulary in full would drown the rest; its length and its beginning are given.
constexpr size_t kShownElements = 8;

template <typename T>
Json beginning(const std::vector<T>& values) {
    Json out = Json::array();
    for (size_t i = 0; i < values.size() && i < kShownElements; ++i) out.push_back(values[i]);
    return out;
}

Json array_json(const GgufArray& array) {
    Json first = beginning(array.integers);
    if (!array.strings.empty()) first = beginning(array.strings);
    if (!array.floats.empty()) first = beginning(array.floats);
    return {{"type", value_type_name(array.element_type)}, {"length", array.size()}, {"first", std::move(first)}};
}

Json value_json(const GgufValue& value) {
    return std::visit(
        [](const auto& held) -> Json {
            if constexpr (std::is_same_v<std::decay_t<decltype(held)>, GgufArray>) {
                return array_json(held);
            } else {
                return held;
            }
        },
        value);
}

Json config_json(const ModelConfig& c) {
    return {{"architecture", c.architecture.name},
            {"name", c.name},
            {"layers", c.n_layers},
            {"dim", c.dim},
            {"heads", c.n_heads},
            {"kv_heads", c.n_kv_heads},
            {"head_dim", c.head_dim},
            {"ffn_dim", c.ffn_dim},
            {"vocab", c.n_vocab},
            {"context", c.n_ctx_train},
            {"rms_eps", c.rms_eps},
            {"rope_dims", c.rope_dims},
            {"rope_base", c.rope_base},
            {"rope_scale", c.rope_scale},
            {"tied_head", c.tied_head}};
}

Json groups_json(const std::vector<Group>& groups, const char* name, uint64_t whole) {
    Json out = Json::array();
    for (const Group& group : groups) {
        const double share = whole == 0 ? 0 : static_cast<double>(group.bytes) / static_cast<double>(whole);
        out.push_back({{name, group.name}, {"tensors", group.tensors}, {"bytes", group.bytes}, {"share", share}});
    }
    return out;
}

}  // namespace

std::string inspect_json(const GgufFile& file, const InspectReport& report) {
    Json out;
    out["file"] = file.path();
    out["file_bytes"] = file.file_size();
    Json& parts = out["parts"] = Json::array();
    for (const GgufPart& part : file.parts()) {
        parts.push_back({{"file", part.path}, {"bytes", part.bytes}, {"tensors", part.tensors}});
    }
    out["version"] = file.version();
    out["alignment"] = file.alignment();
    out["data_offset"] = file.data_offset();
    out["config"] = report.config ? config_json(*report.config) : Json(nullptr);
    if (!report.config) out["reason"] = report.reason;
    out["tensor_bytes"] = report.tensor_bytes;
    out["bytes_per_token"] = report.config ? Json(report.bytes_per_token) : Json(nullptr);
    Json& cache = out["kv_bytes_per_token"] = Json::object();
    for (const CacheSize& size : report.kv_cache) cache[size.type] = size.bytes_per_token;
    out["window_layers"] = report.window_layers;
    out["window"] = report.window_layers == 0 ? Json(nullptr) : Json(report.config->window);
    out["extents"] = nullptr;
    if (report.walk) {
        const WalkSummary& w = *report.walk;
        out["extents"] = {{"extent_bytes", w.extent_bytes}, {"image_bytes", w.image_bytes}, {"extents", w.extents},
                          {"reads", w.reads}, {"head_extents", w.head_extents}};
    }
    Json& metadata = out["metadata"] = Json::object();
    for (const auto& [key, value] : file.metadata()) metadata.push_back({key, value_json(value)});
    Json& tensors = out["tensors"] = Json::array();
    for (const GgufTensor& tensor : file.tensors()) {
        const std::vector<uint64_t> shape(tensor.dims, tensor.dims + tensor.n_dims);
        tensors.push_back({{"name", tensor.name},
                           {"type", kernels::traits(tensor.type).name},
                           {"shape", shape},
                           {"part", &file.part_of(tensor) - file.parts().data() + 1},
                           {"offset", tensor.offset - file.part_of(tensor).begin},
                           {"bytes", tensor.bytes}});
    }
    out["layers"] = groups_json(report.layers, "layer", report.tensor_bytes);
    out["types"] = groups_json(report.types, "type", report.tensor_bytes);
    // Strings from a file need not be UTF-8: what is not becomes U+FFFD.
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
