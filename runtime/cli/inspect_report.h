// What `weir inspect` shows of a model file, gathered once for both forms of output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/gguf.h"

namespace weir {

struct Group {
    std::string name;  // of a layer, or of a tensor type
    size_t tensors = 0;
    uint64_t bytes = 0;
};

// The walk of one token as the pager sees it, with Extents of the size that a large budget gets.
struct WalkSummary {
    uint64_t extent_bytes = 0;
    uint64_t image_bytes = 0;     // the matrices in execution order, page-aligned
    size_t extents = 0;
    size_t reads = 0;             // segments: an Extent that lies across tensors takes more than one
    size_t head_extents = 0;      // that hold a part of the head
};

// What a KV cache takes of each type that fits the model's heads.
struct CacheSize {
    std::string type;
    uint64_t bytes_per_token = 0;  // in layers that see the whole context
};

struct InspectReport {
    std::optional<ModelConfig> config;
    std::string reason;            // where there is no config: why weir cannot run this file
    std::optional<WalkSummary> walk;  // where there is a config
    std::vector<CacheSize> kv_cache;  // likewise
    size_t window_layers = 0;      // that keep a window and a batch only
    std::vector<Group> layers;     // embedding, blk.0 ..., head, other; in order of execution
    std::vector<Group> types;      // the largest first
    uint64_t tensor_bytes = 0;     // sum over all tensors
    uint64_t bytes_per_token = 0;  // what one token touches: an embedding with a head beside it counts one row
};

InspectReport make_report(const GgufFile& file);

// Element types of metadata arrays by their number.
const char* value_type_name(uint32_t value_type);

std::string inspect_text(const GgufFile& file, const InspectReport& report);
std::string inspect_json(const GgufFile& file, const InspectReport& report);

// The same of a native file: its planes, and what each level reads.
std::string inspect_native_text(const GgufFile& file);
std::string inspect_native_json(const GgufFile& file);

}  // namespace weir
