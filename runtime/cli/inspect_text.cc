// The form of `weir inspect` that people read.
#include <cstdint>
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "runtime/cli/format.h"
#include "runtime/cli/inspect_report.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Lines = std::vector<std::vector<std::string>>;

constexpr size_t kShownElements = 6;
constexpr size_t kKeyWidth = 60;
constexpr size_t kValueWidth = 100;

std::string number(double value) {
    char out[40];
    std::snprintf(out, sizeof out, "%.7g", value);
    return out;
}

std::string double_quoted(const std::string& text) {
    std::string out(1, '"');
    for (const char c : printable(text, kValueWidth)) {
        if (c == '"') out += '\\';
        out += c;
    }
    return out + '"';
}

// "[a, b, c, ...]"
std::string elements(const GgufArray& array) {
    std::string out(1, '[');
    for (size_t i = 0; i < array.size(); ++i) {
        if (i > 0) out += ", ";
        if (i == kShownElements) {
            out += "...";
            break;
        }
        if (!array.strings.empty()) {
            out += double_quoted(array.strings[i]);
        } else if (!array.floats.empty()) {
            out += number(array.floats[i]);
        } else {
            out += std::to_string(array.integers[i]);
        }
    }
    return out + ']';
}

struct TypeAndValue {
    std::string type;
    std::string value;
};

TypeAndValue describe(const GgufValue& value) {
    if (const auto* u = std::get_if<uint64_t>(&value)) return {"uint", std::to_string(*u)};
    if (const auto* i = std::get_if<int64_t>(&value)) return {"int", std::to_string(*i)};
    if (const auto* d = std::get_if<double>(&value)) return {"float", number(*d)};
    if (const auto* b = std::get_if<bool>(&value)) return {"bool", *b ? "true" : "false"};
    if (const auto* s = std::get_if<std::string>(&value)) return {"string", double_quoted(*s)};
    const auto& array = std::get<GgufArray>(value);
    std::string type = value_type_name(array.element_type);
    type += '[' + std::to_string(array.size()) + ']';
    return {std::move(type), elements(array)};
}

std::string count(size_t n, const char* one, const char* many) {
    return std::to_string(n) + " " + (n == 1 ? one : many);
}

std::string share(uint64_t part, uint64_t whole) {
    return format_fixed(whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole), 1) + " %";
}

void add_groups(std::string& out, const char* title, const std::vector<Group>& groups, uint64_t whole) {
    Lines lines;
    for (const Group& group : groups) {
        lines.push_back({group.name, count(group.tensors, "tensor", "tensors"), format_bytes(group.bytes),
                         share(group.bytes, whole)});
    }
    out += '\n';
    out += title;
    out += '\n';
    out += format_table(lines, "lrrr");
}

std::string model_line(const ModelConfig& c) {
    std::string out = std::string(c.architecture.name) + ", " + count(c.n_layers, "layer", "layers") + " of " + std::to_string(c.dim);
    out += ", " + count(c.n_heads, "head", "heads") + " of " + std::to_string(c.head_dim);
    out += " (" + std::to_string(c.n_kv_heads) + " for keys and values), feed-forward " + std::to_string(c.ffn_dim);
    out += ", vocabulary " + std::to_string(c.n_vocab) + ", context " + std::to_string(c.n_ctx_train);
    out += ", head " + std::string(c.tied_head ? "tied to the embedding" : "of its own");
    return out;
}

std::string rope_line(const ModelConfig& c, bool has_factors) {
    std::string out = "base " + number(c.rope_base) + ", " + std::to_string(c.rope_dims) + " dimensions rotated";
    if (c.rope_scale != 1.0f) out += ", positions scaled by " + number(c.rope_scale);
    if (has_factors) out += ", factors in rope_freqs.weight";
    return out + ", RMS epsilon " + number(c.rms_eps);
}

std::string cache_line(const InspectReport& report) {
    std::string out;
    for (const CacheSize& size : report.kv_cache) {
        out += (out.empty() ? "" : ", ") + format_bytes(size.bytes_per_token) + " a token in " + size.type;
    }
    if (report.window_layers == 0) return out;
    return out + "; " + std::to_string(report.window_layers) + " of " + count(report.config->n_layers, "layer", "layers") +
           " keep a window of " + std::to_string(report.config->window) + " only";
}

std::string shape(const GgufTensor& tensor) {
    std::string out;
    for (uint32_t d = 0; d < tensor.n_dims; ++d) {
        if (d > 0) out += " x ";
        out += std::to_string(tensor.dims[d]);
    }
    return out;
}

}  // namespace

std::string inspect_text(const GgufFile& file, const InspectReport& report) {
    Lines head;
    head.push_back({"file", printable(file.path(), SIZE_MAX)});
    head.push_back({"format", "GGUF version " + std::to_string(file.version()) + ", alignment " +
                                  std::to_string(file.alignment()) + ", data from byte " +
                                  std::to_string(file.data_offset())});
    head.push_back({"size", format_bytes(file.file_size()) + " (" + std::to_string(file.file_size()) + " bytes)"});
    if (file.parts().size() > 1) {
        for (const GgufPart& part : file.parts()) {
            head.push_back({"part", printable(part.path, SIZE_MAX) + ": " + count(part.tensors, "tensor", "tensors") + ", " +
                                        format_bytes(part.bytes)});
        }
    }
    if (report.config) {
        head.push_back({"name", report.config->name.empty() ? "(none)" : printable(report.config->name)});
        head.push_back({"model", model_line(*report.config)});
        head.push_back({"rope", rope_line(*report.config, file.find_tensor("rope_freqs.weight") != nullptr)});
        head.push_back({"per token", format_bytes(report.bytes_per_token) + " of weights"});
        head.push_back({"KV cache", cache_line(report)});
        const WalkSummary& w = *report.walk;
        head.push_back({"extents", count(w.extents, "Extent", "Extents") + " of " + format_bytes(w.extent_bytes) + " in " +
                                       count(w.reads, "read", "reads") + ", " + std::to_string(w.head_extents) +
                                       " of them with the head"});
    } else {
        head.push_back({"model", "cannot be run: " + report.reason});
    }
    std::string out = format_table(head, "ll");

    Lines lines;
    for (const auto& [key, value] : file.metadata()) {
        TypeAndValue shown = describe(value);
        lines.push_back({printable(key, kKeyWidth), std::move(shown.type), std::move(shown.value)});
    }
    out += "\nmetadata: " + count(lines.size(), "key", "keys") + "\n" + format_table(lines, "lll");

    lines = {{"name", "type", "shape", "size", "offset"}};
    for (const GgufTensor& tensor : file.tensors()) {
        lines.push_back({printable(tensor.name, kKeyWidth), kernels::traits(tensor.type).name, shape(tensor),
                         format_bytes(tensor.bytes), std::to_string(tensor.offset - file.part_of(tensor).begin)});
    }
    out += "\ntensors: " + std::to_string(file.tensors().size()) + "\n";
    if (file.tensors().empty()) return out;
    out += format_table(lines, "llrrr");

    add_groups(out, "layers", report.layers, report.tensor_bytes);
    add_groups(out, "types", report.types, report.tensor_bytes);
    out += "\ntotal: " + format_bytes(report.tensor_bytes) + " of tensors (" + std::to_string(report.tensor_bytes) +
           " bytes)\n";
    return out;
}

}  // namespace weir
