#include "pager/layout.h"

#include <algorithm>

#include "pager/check.h"

namespace weir::pager {

Layout cut_layout(std::span<const ImageRange> ranges, size_t extent_bytes) {
    Layout layout;
    layout.extent_bytes = extent_bytes;
    layout.first_segment.push_back(0);
    uint64_t place = 0;
    for (const ImageRange& range : ranges) {
        CHECK(range.place == place);
        uint64_t done = 0;
        while (done < range.bytes) {
            const uint64_t slot_offset = place % extent_bytes;
            const uint64_t bytes = std::min<uint64_t>(range.bytes - done, extent_bytes - slot_offset);
            layout.segments.push_back({range.file_offset + done, static_cast<uint32_t>(slot_offset),
                                       static_cast<uint32_t>(bytes)});
            done += bytes;
            place += bytes;
            if (place % extent_bytes == 0)
                layout.first_segment.push_back(static_cast<uint32_t>(layout.segments.size()));
        }
    }
    if (place % extent_bytes != 0) layout.first_segment.push_back(static_cast<uint32_t>(layout.segments.size()));
    return layout;
}

}  // namespace weir::pager
