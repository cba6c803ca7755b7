// Which bytes of the file each Extent holds, and where in the Region. The Region is cut into slots of extent_bytes; an Extent
// is a slot, filled by one or more segments of the file. Extents are numbered as the walk first touches them; where what lies
// together in memory is not walked together, their slots come in another order, and the walk may go on to use an Extent while it
// begins and is done with many others. Plain data, made by whoever knows the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weir::pager {

// All three are multiples of the page; file_offset is one in the space of the model's parts (see FileParts), and a segment lies
// in one of them. The last segment of a file may end past the end of the file by less than a page.
struct Segment {
    uint64_t file_offset;
    uint32_t slot_offset;
    uint32_t bytes;
};

struct Layout {
    size_t extent_bytes = 0;
    std::vector<Segment> segments;        // of Extent 0, of Extent 1, ...
    std::vector<uint32_t> first_segment;  // n_extents() + 1 entries
    std::vector<uint32_t> slots;          // of the Region, by Extent, each slot once; empty: slot e is Extent e's
    std::vector<uint32_t> closes;         // by Extent: with how many the walk is done when it uses this one last; empty: with e

    size_t n_extents() const { return first_segment.empty() ? 0 : first_segment.size() - 1; }
    size_t slot(size_t e) const { return slots.empty() ? e : slots[e]; }
    size_t closes_at(size_t e) const { return closes.empty() ? e : closes[e]; }
    std::span<const Segment> extent(size_t e) const {
        return {segments.data() + first_segment[e], segments.data() + first_segment[e + 1]};
    }
};

// Where an Extent, or a group, is. Passing: here until it has been used.
enum class Whereabouts : uint8_t { kAbsent, kReading, kPassing, kStays };

// A stretch of the image and where it comes from, page-aligned.
struct ImageRange {
    uint64_t place;  // in the image
    uint64_t file_offset;
    uint64_t bytes;
};

// Cuts an image into Extents. Ranges ascend by place, without gaps or overlap.
Layout cut_layout(std::span<const ImageRange> ranges, size_t extent_bytes);

}  // namespace weir::pager
