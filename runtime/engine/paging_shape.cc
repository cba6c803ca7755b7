#include "runtime/engine/paging_shape.h"

#include <algorithm>
#include <string>

#include "pager/residency_policy.h"
#include "pager/system.h"
#include "runtime/engine/budget.h"
#include "runtime/error.h"

namespace weir {
namespace {

// Throws where the frames are too few for the workers to get on.
void check_walk(const PagingShape& shape, uint64_t frame_bytes, size_t workers, size_t least_slots) {
    const size_t least = pager::least_frames(workers, shape.holding) + kSpareFrames;
    if (shape.frames >= std::min(least, shape.n_extents + kSpareFrames)) return;
    throw UsageError("the budget leaves " + mib(frame_bytes) + " for weights, and " + std::to_string(workers) +
                     " threads need at least " + mib((least + least_slots) * shape.extent_bytes) +
                     "; raise --ram or --weights-ram, or use fewer threads");
}

}  // namespace

PagingShape shape_paging(uint64_t image_bytes, uint64_t longest_row, uint64_t frame_bytes, size_t workers, size_t granule,
                         const pager::GroupLayout& groups) {
    PagingShape shape;
    const size_t pmd = pager::huge_pages_allowed() ? pager::pmd_page_size() : granule;
    const bool sparse = groups.slots.n_extents() > 0;
    // Slots get what Extents leave: a small budget is not to be spent on the fewest Extents there can be.
    shape.extent_bytes = pager::choose_extent_bytes(sparse ? frame_bytes / 2 : frame_bytes, granule, pmd);
    shape.n_extents = (image_bytes + shape.extent_bytes - 1) / shape.extent_bytes;
    const uint64_t frames = frame_bytes / shape.extent_bytes;
    const size_t least_slots = sparse ? pager::GroupSlots::least_frames(groups, shape.extent_bytes) : 0;
    shape.frames = std::min<uint64_t>(frames - std::min<uint64_t>(frames, least_slots), shape.n_extents + kSpareFrames);
    shape.holding.each = pager::held_extents(longest_row, shape.extent_bytes);
    check_walk(shape, frame_bytes, workers, least_slots);
    if (sparse)
        shape.slot_frames = std::min<uint64_t>(frames - shape.frames, pager::GroupSlots::all_frames(groups, shape.extent_bytes));
    return shape;
}

PagingShape shape_paging(const PlaneLayout& layout, uint64_t frame_bytes, size_t workers) {
    PagingShape shape;
    shape.extent_bytes = layout.extents.extent_bytes;
    shape.n_extents = layout.n_extents();
    shape.holding = layout.holding;
    shape.frames = std::min<uint64_t>(frame_bytes / shape.extent_bytes, shape.n_extents + kSpareFrames);
    check_walk(shape, frame_bytes, workers, 0);
    return shape;
}

uint64_t longest_row_bytes(const ModelMap& map, bool experts_apart) {
    uint64_t longest = 0;
    for (const PlacedTensor& t : map.tensors)
        if (!(t.experts && experts_apart)) longest = std::max(longest, t.piece_bytes);
    return longest;
}

}  // namespace weir
