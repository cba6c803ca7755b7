// `weir inspect` of a file in the native format: what each level reads, in which planes, and what is kept whole.
#include <nlohmann/json.hpp>

#include "runtime/cli/format.h"
#include "runtime/cli/inspect_report.h"
#include "runtime/error.h"
#include "runtime/model/native_format.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

using Lines = std::vector<std::vector<std::string>>;
using Json = nlohmann::ordered_json;

struct LevelBytes {
    int level;
    uint64_t bytes;  // of planes that it reads, over all parts
    double bits;     // of a weight
};

struct NativeReport {
    std::string model;  // or why it cannot be run
    bool runs = false;
    uint64_t weights = 0, kept_bytes = 0, stored_bytes = 0;
    std::vector<LevelBytes> levels;
    uint64_t plane_bytes[kernels::kPlanes] = {};
};

NativeReport report_of(const GgufFile& file) {
    const NativeTable& table = *file.native();
    NativeReport report;
    try {
        const ModelConfig c = read_config(file);
        report.runs = true;
        report.model = std::string(c.architecture.name) + ", " + std::to_string(c.n_layers) + " layers of " + std::to_string(c.dim) +
                       ", vocabulary " + std::to_string(c.n_vocab) + ", head " + (c.tied_head ? "tied to the embedding" : "of its own");
    } catch (const Error& error) {
        report.model = error.what();
    }
    for (const NativeKept& kept : table.kept) report.kept_bytes += kept.bytes;
    for (const NativePart& part : table.parts) {
        report.weights += part.rows * part.cols;
        report.stored_bytes += part_bytes(part, table.page);
        for (size_t p = 0; p < kernels::kPlanes; ++p)
            report.plane_bytes[p] += part.rows * kernels::plane_row_bytes(static_cast<kernels::Plane>(p), part.cols);
    }
    for (const kernels::Level level : kernels::kLevels) {
        uint64_t bytes = 0;
        for (size_t p = 0; p < kernels::kPlanes; ++p)
            if (kernels::reads_plane(level, static_cast<kernels::Plane>(p))) bytes += report.plane_bytes[p];
        report.levels.push_back({static_cast<int>(level), bytes, 8 * static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(1, report.weights))});
    }
    return report;
}

std::string shape_of(const GgufTensor& tensor) {
    std::string out;
    for (uint32_t d = 0; d < tensor.n_dims; ++d) out += (d == 0 ? "" : " x ") + std::to_string(tensor.dims[d]);
    return out;
}

}  // namespace

std::string inspect_native_text(const GgufFile& file) {
    const NativeTable& table = *file.native();
    const NativeReport report = report_of(file);
    Lines head;
    head.push_back({"file", printable(file.path(), SIZE_MAX)});
    head.push_back({"format", "native version " + std::to_string(kNativeVersion) + ", page " + format_bytes(table.page) + ", made from GGUF of " +
                                  format_bytes(table.source_bytes)});
    head.push_back({"size", format_bytes(file.file_size()) + " (" + std::to_string(file.file_size()) + " bytes)"});
    head.push_back({"model", report.runs ? report.model : "cannot be run: " + printable(report.model, SIZE_MAX)});
    head.push_back({"in planes", std::to_string(report.weights) + " weights, " + format_bytes(report.stored_bytes)});
    head.push_back({"kept whole", format_bytes(report.kept_bytes)});
    std::string out = format_table(head, "ll");

    Lines lines = {{"level", "bytes", "bits a weight"}};
    for (const LevelBytes& l : report.levels) lines.push_back({std::to_string(l.level), format_bytes(l.bytes), format_fixed(l.bits, 3)});
    out += "\nlevels\n" + format_table(lines, "rrr");

    lines = {{"plane", "bytes"}};
    for (size_t p = 0; p < kernels::kPlanes; ++p)
        lines.push_back({kernels::plane_name(static_cast<kernels::Plane>(p)), format_bytes(report.plane_bytes[p])});
    out += "\nplanes, in the order of the file\n" + format_table(lines, "lr");

    lines = {{"name", "shape", "source", "bands", "size", "offset"}};
    for (size_t t = 0; t < file.tensors().size(); ++t) {
        const GgufTensor& tensor = file.tensors()[t];
        const auto parts = table.parts_of(t);
        if (parts.empty()) continue;
        const NativePart& part = table.parts[parts.front()];
        lines.push_back({printable(tensor.name), shape_of(tensor), kernels::traits(tensor.type).name,
                         std::to_string(part.bands() * parts.size()) + " of " + std::to_string(part.band_rows) + " rows", format_bytes(tensor.bytes),
                         std::to_string(part.offset)});
    }
    out += "\nin planes\n" + format_table(lines, "llllrr");

    lines = {{"name", "shape", "type", "size", "offset"}};
    for (const NativeKept& kept : table.kept) {
        const GgufTensor& tensor = file.tensors()[kept.tensor];
        lines.push_back({printable(tensor.name), shape_of(tensor), kernels::traits(kept.type).name, format_bytes(kept.bytes), std::to_string(kept.offset)});
    }
    return out + "\nkept whole\n" + format_table(lines, "lllrr");
}

std::string inspect_native_json(const GgufFile& file) {
    const NativeTable& table = *file.native();
    const NativeReport report = report_of(file);
    Json out;
    out["file"] = file.path();
    out["file_bytes"] = file.file_size();
    out["format"] = "native";
    out["version"] = kNativeVersion;
    out["page"] = table.page;
    out["source_bytes"] = table.source_bytes;
    out["model"] = report.runs ? Json(report.model) : Json(nullptr);
    if (!report.runs) out["reason"] = report.model;
    out["weights"] = report.weights;
    out["stored_bytes"] = report.stored_bytes;
    out["kept_bytes"] = report.kept_bytes;
    Json& levels = out["levels"] = Json::array();
    for (const LevelBytes& l : report.levels) levels.push_back({{"level", l.level}, {"bytes", l.bytes}, {"bits_per_weight", l.bits}});
    Json& planes = out["planes"] = Json::object();
    for (size_t p = 0; p < kernels::kPlanes; ++p) planes[kernels::plane_name(static_cast<kernels::Plane>(p))] = report.plane_bytes[p];
    Json& tensors = out["tensors"] = Json::array();
    for (size_t t = 0; t < file.tensors().size(); ++t) {
        const GgufTensor& tensor = file.tensors()[t];
        const auto parts = table.parts_of(t);
        Json one = {{"name", tensor.name}, {"shape", std::vector<uint64_t>(tensor.dims, tensor.dims + tensor.n_dims)},
                    {"type", kernels::traits(tensor.type).name}, {"bytes", tensor.bytes}, {"offset", tensor.offset}, {"planes", !parts.empty()}};
        if (!parts.empty()) one["band_rows"] = table.parts[parts.front()].band_rows;
        tensors.push_back(std::move(one));
    }
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
