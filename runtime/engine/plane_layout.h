// Where the planes of a native file lie in the Region of a paged store, so that no Extent holds bytes that one plan
// reads and another does not: what is not needed is then never read, whatever the size of Extents. Runs that the same
// plans read (the same plane of neighbouring matrices and layers, mostly) lie one behind the other, each kind in a
// stretch of its own. The walk takes from several kinds at a time; Extents are numbered as it first touches them.
//
// Where all plans read the same there is one kind, and it lies as the walk goes. So do the planes of experts, of which
// a token touches a few: they stay together, expert by expert.
//
// Plain data, made once from the model map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pager/layout.h"
#include "pager/residency_policy.h"
#include "runtime/model/model_map.h"

namespace weir {

struct PlaneLayout {
    static constexpr uint8_t kWhole = kRuns;  // for the number of a run: a tensor that is not in planes

    // Bytes [place, place + bytes) of the image are needed together, or not at all, and lie at `at` in the Region.
    struct Piece {
        uint64_t place = 0;
        uint64_t bytes = 0;
        uint64_t at = 0;
        uint32_t tensor = 0;  // of the map
        uint32_t band = 0;
        uint32_t shard = 0;
        uint8_t run = kWhole;
        bool experts = false;

        bool read_by(const sched::Plan& plan) const {
            return run == kWhole || reads_run(plan, shard, run);
        }
    };

    pager::Layout extents;
    std::vector<uint32_t> extent_in;  // by slot
    std::vector<uint8_t> worth;       // by Extent: how many plans read it; 0 for experts
    std::vector<Piece> pieces;        // ascending by place
    uint64_t used_bytes = 0;          // of all Extents
    size_t kinds = 0;
    std::vector<uint32_t> done;       // by piece: Extents that the walk is done with when it comes there
    pager::Holding holding;           // what the walk holds at a time
    size_t without_head = 0;  // Extents that a pass without the head touches, at most

    size_t n_extents() const { return extents.n_extents(); }
    // Extents of a piece, by slot.
    std::span<const uint32_t> extents_of(const Piece& piece) const {
        const size_t first = piece.at / extents.extent_bytes,
                     last = (piece.at + piece.bytes - 1) / extents.extent_bytes;
        return {extent_in.data() + first, last - first + 1};
    }
    // The pieces that hold something of bytes [place, place + bytes) of the image.
    std::span<const Piece> within(uint64_t place, uint64_t bytes) const;
};

// plans: as the map was made with. granule: of reads.
PlaneLayout gather_planes(const ModelMap& map, const std::vector<sched::Plan>& plans, size_t extent_bytes,
                          size_t granule);

// The same with the size of Extents that reads soonest what the frames do not keep: huge pages are read fastest, smaller
// Extents leave more frames to what stays, as the walk holds several of them at a time.
PlaneLayout gather_planes_for(const ModelMap& map, const std::vector<sched::Plan>& plans, uint64_t frame_bytes,
                              size_t workers, size_t granule);

// Says in the map where runs and tensors are in memory.
void place_planes(const PlaneLayout& layout, ModelMap* map);

}  // namespace weir
