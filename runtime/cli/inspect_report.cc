#include "runtime/cli/inspect_report.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>

#include "pager/layout.h"
#include "pager/system.h"
#include "runtime/engine/kv_cache.h"
#include "runtime/error.h"
#include "runtime/model/model_map.h"

namespace weir {
namespace {

// Where a tensor stands in the order of execution, and the name of its group.
struct Place {
    uint64_t order;
    std::string name;
    bool operator<(const Place& other) const { return order < other.order; }
};

constexpr uint64_t kHead = UINT64_MAX - 1;
constexpr uint64_t kOther = UINT64_MAX;

Place place_of(std::string_view tensor) {
    if (tensor.starts_with("token_embd")) return {0, "embedding"};
    if (tensor.starts_with("output")) return {kHead, "head"};
    if (!tensor.starts_with("blk.")) return {kOther, "other"};
    const std::string_view rest = tensor.substr(4);
    uint32_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return {kOther, "other"};
    return {uint64_t{layer} + 1, "blk." + std::to_string(layer)};
}

}  // namespace

namespace {

WalkSummary summarise_walk(const GgufFile& file, const ModelConfig& config) {
    const ModelMap map = build_model_map(file, config, pager::page_size());
    std::vector<pager::ImageRange> ranges;
    for (const PlacedRange& r : map.ranges) ranges.push_back({r.place, r.file_offset, r.bytes});
    WalkSummary walk;
    walk.extent_bytes = pager::pmd_page_size();
    walk.image_bytes = map.image_bytes;
    const pager::Layout layout = pager::cut_layout(ranges, walk.extent_bytes);
    walk.extents = layout.n_extents();
    walk.reads = layout.segments.size();
    walk.head_extents = walk.extents - map.head_place / walk.extent_bytes;
    return walk;
}

void add_cache_sizes(const ModelConfig& config, InspectReport* report) {
    for (const kernels::Type type : kCacheTypes) {
        if (config.head_dim % kernels::traits(type).block_elements != 0) continue;
        constexpr size_t n = KvCache::kPanel;
        report->kv_cache.push_back({cache_type_name(type), KvCache::bytes(config, {type, type}, n, n) / n});
    }
    for (size_t layer = 0; layer < config.n_layers; ++layer) report->window_layers += config.has_window(layer) ? 1 : 0;
}

}  // namespace

InspectReport make_report(const GgufFile& file) {
    InspectReport report;
    try {
        report.config = read_config(file);
    } catch (const Error& error) {
        // The file is named at the top of the output already.
        const std::string prefix = file.path() + ": ";
        report.reason = error.what();
        if (report.reason.compare(0, prefix.size(), prefix) == 0) report.reason.erase(0, prefix.size());
    }

    if (report.config) {
        report.walk = summarise_walk(file, *report.config);
        add_cache_sizes(*report.config, &report);
    }

    std::map<Place, Group> layers;
    std::map<kernels::Type, Group> types;
    for (const GgufTensor& tensor : file.tensors()) {
        const Place place = place_of(tensor.name);
        Group& layer = layers[place];
        layer.name = place.name;
        Group& type = types[tensor.type];
        type.name = kernels::traits(tensor.type).name;
        for (Group* group : {&layer, &type}) {
            ++group->tensors;
            group->bytes += tensor.bytes;
        }
        report.tensor_bytes += tensor.bytes;
    }
    for (auto& [place, group] : layers) report.layers.push_back(std::move(group));
    for (auto& [type, group] : types) report.types.push_back(std::move(group));
    std::stable_sort(report.types.begin(), report.types.end(),
                     [](const Group& a, const Group& b) { return a.bytes > b.bytes; });

    report.bytes_per_token = report.tensor_bytes;
    if (report.config && !report.config->tied_head) {
        const GgufTensor& embedding = file.tensor("token_embd.weight");
        report.bytes_per_token -= embedding.bytes - embedding.bytes / embedding.rows();
    }
    return report;
}

const char* value_type_name(uint32_t value_type) {
    static constexpr const char* kNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                             "bool",  "string", "array",  "uint64", "int64",  "float64"};
    return value_type < std::size(kNames) ? kNames[value_type] : "unknown";
}

}  // namespace weir
