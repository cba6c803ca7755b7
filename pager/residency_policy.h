// Which Extents stay and which stream. Pure: numbers in, numbers out, no system calls.
//
// A dense decoder scans its weights in a cycle, and LRU is the worst policy for a cycle: with any shortage it re-reads
// everything. Keeping a fixed set and streaming the rest through a small ring reads M - R bytes a token, which is
// optimal. The streamed Extents are spread evenly over the walk, so that reads and compute overlap all the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weir::pager {

// The largest power of two that is at most the PMD page and leaves eight frames in frame_bytes; at least a page.
size_t choose_extent_bytes(uint64_t frame_bytes, size_t page, size_t pmd_page);

// Extents that a row may lie across, which is read in one piece: an Extent and the next, or more where it is longer than one.
size_t held_extents(uint64_t longest_row_bytes, uint64_t extent_bytes);

// Extents that a walk holds: it is not done with them, and has begun with them or may do so at any moment.
struct Holding {
    size_t each = 2;    // that a worker holds for itself
    size_t shared = 0;  // and that all of them hold together, whichever of them is the last to be done
    size_t of_one() const { return shared + each; }
};

// The fewest frames with which `workers` can walk at all: what they may hold, and one more in flight.
size_t least_frames(size_t workers, const Holding& holding = {});

struct Residency {
    std::vector<bool> pinned;  // per Extent
    size_t n_pinned = 0;
    size_t ring = 0;           // frames that streamed Extents share; 0 where everything is pinned
    size_t staging = 0;        // of the ring, frames that only reads land in (install by copy)
};

// The longest ring that streaming so many Extents gains from, and the shortest that it is given where frames are to be had.
size_t longest_ring(size_t n_extents);
size_t shortest_ring();

// What the ring has to serve.
struct RingNeeds {
    size_t workers = 1;
    bool copies = false;  // installing copies out of the frame, so that a part of the ring is staging
    Holding holding = {};
    size_t length = SIZE_MAX;  // wanted; taken between shortest_ring() and longest_ring(), beyond what is shared
    // By Extent: what is worth more stays first, where passes differ in what they touch. Empty: all are alike.
    std::span<const uint8_t> worth = {};
};

// Divides `frames` frames over n_extents. Requires frames >= least_frames(workers, holding), or everything pinned.
Residency choose_residency(size_t n_extents, size_t frames, const RingNeeds& needs);

// The same for a pager that is under way with `now`: what stays pinned stays the same, so that a smaller budget reads
// nothing for it and a larger one, or a shorter ring, pins what streams by. As evenly spread as that allows.
Residency change_residency(const Residency& now, size_t frames, const RingNeeds& needs);

}  // namespace weir::pager
