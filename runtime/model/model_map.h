// The walk: which matrices one pass touches, in execution order, and where each lies in a linear image of them. File
// order is not execution order (token_embd first, ffn_down before attention), so the image gathers the file's bytes in
// the order in which the decoder reads them. Reads are aligned outward: a tensor lies in the image at the same offset
// within a page as in the file, and neighbours in both orders share their page.
//
// Input embedding rows are not part of the walk: they are read by row. A tied head is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/gguf.h"

namespace weir {

struct PlacedTensor {
    const GgufTensor* tensor = nullptr;  // in the GgufFile, which must outlive the map
    uint64_t place = 0;                  // of its first byte in the image
    bool experts = false;                // of which a token touches a few
    size_t layer = 0;                    // n_layers: the head
};

struct PlacedRange {
    uint64_t place = 0;  // page-aligned, as are the other two
    uint64_t file_offset = 0;
    uint64_t bytes = 0;
};

struct ModelMap {
    std::vector<PlacedTensor> tensors;  // in execution order
    std::vector<PlacedRange> ranges;    // what fills the image, ascending by place, without gaps
    uint64_t image_bytes = 0;
    uint64_t head_place = 0;            // where the head begins: passes without logits stop here
    uint64_t weights_bytes = 0;         // of the matrices themselves
    uint64_t expert_bytes = 0;          // of these, of experts
    const GgufTensor* embedding = nullptr;
};

// page: the granule of reads and mappings, a power of two. experts_apart: experts have no place in the image; whoever reads
// them reads one by one.
ModelMap build_model_map(const GgufFile& file, const ModelConfig& config, uint64_t page, bool experts_apart = false);

}  // namespace weir
