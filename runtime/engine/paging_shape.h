// How weights are cut into Extents and how many of them the frames hold: the numbers that the paged store runs with and
// that `weir plan` tells beforehand, from one place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pager/group_slots.h"
#include "runtime/engine/plane_layout.h"
#include "runtime/model/model_map.h"

namespace weir {

// Staging that install by copy needs beyond what the walk holds.
constexpr size_t kSpareFrames = 2;

struct PagingShape {
    size_t extent_bytes = 0;
    size_t n_extents = 0;
    size_t frames = 0;  // for Extents: at most what holds every one and the staging of install by copy
    size_t slot_frames = 0;  // and for slots of groups, which get the rest
    pager::Holding holding;  // of Extents, by the walk
};

// frame_bytes: what frames may take. granule: of reads. Throws UsageError with figures where that is too little for the
// workers to walk at all.
PagingShape shape_paging(uint64_t image_bytes, uint64_t longest_row_bytes, uint64_t frame_bytes, size_t workers,
                         size_t granule, const pager::GroupLayout& groups = {});

// The same for planes as they were laid out.
PagingShape shape_paging(const PlaneLayout& layout, uint64_t frame_bytes, size_t workers);

// Bytes of the longest row in the walk, or band of rows in planes: it is read in one piece.
uint64_t longest_row_bytes(const ModelMap& map, bool experts_apart = false);

}  // namespace weir
