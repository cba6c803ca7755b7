// The experts of a model as the pager's groups: expert e of layer l is group l * n_experts + e, which is its slice of each of
// the layer's expert tensors, gathered into one slot. Slices begin at odd offsets in the file; reads are aligned outward, and
// a slice lies in its slot at the offset within a granule that it has in the file.
//
// Plain data, made once from the model map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pager/group_slots.h"
#include "runtime/model/model_map.h"

namespace weir {

struct ExpertGroups {
    static constexpr size_t kMostParts = 3;  // gate, up, down

    pager::GroupLayout layout;
    std::vector<uint32_t> part_offset;  // [groups][kMostParts] of the slice's first row in the slot
    size_t n_experts = 0;
    uint64_t slice_bytes = 0;           // of all groups, without what alignment adds: what there is to read

    // Which part of which layer each tensor of the map is; kMostParts where it is none of experts.
    struct Part {
        uint32_t layer = 0;
        uint32_t part = kMostParts;
    };
    std::vector<Part> parts;            // as ModelMap::tensors
};

// granule: of reads. Empty where the model has no experts.
ExpertGroups gather_experts(const ModelMap& map, size_t n_experts, size_t granule);

}  // namespace weir
