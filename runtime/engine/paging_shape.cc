#include "runtime/engine/paging_shape.h"

#include <algorithm>
#include <string>

#include "kernels/types.h"
#include "pager/residency_policy.h"
#include "pager/system.h"
#include "runtime/engine/budget.h"
#include "runtime/error.h"

namespace weir {
namespace {

// Staging that install by copy needs beyond what the walk holds.
constexpr size_t kSpareFrames = 2;

}  // namespace

PagingShape shape_paging(uint64_t image_bytes, uint64_t longest_row, uint64_t frame_bytes, size_t workers, size_t granule) {
    PagingShape shape;
    const size_t pmd = pager::huge_pages_allowed() ? pager::pmd_page_size() : granule;
    shape.extent_bytes = pager::choose_extent_bytes(frame_bytes, granule, pmd);
    shape.n_extents = (image_bytes + shape.extent_bytes - 1) / shape.extent_bytes;
    shape.frames = std::min<uint64_t>(frame_bytes / shape.extent_bytes, shape.n_extents + kSpareFrames);
    shape.held = pager::held_extents(longest_row, shape.extent_bytes);
    const size_t least = pager::least_frames(workers, shape.held) + kSpareFrames;
    if (shape.frames < shape.n_extents + kSpareFrames && shape.frames < least) {
        throw UsageError("the budget leaves " + mib(frame_bytes) + " for weights, and " + std::to_string(workers) +
                         " threads need at least " + mib(least * shape.extent_bytes) +
                         "; raise --ram or --weights-ram, or use fewer threads");
    }
    return shape;
}

uint64_t longest_row_bytes(const ModelMap& map) {
    uint64_t longest = 0;
    for (const PlacedTensor& t : map.tensors)
        longest = std::max<uint64_t>(longest, kernels::row_bytes(t.tensor->type, t.tensor->dims[0]));
    return longest;
}

}  // namespace weir
