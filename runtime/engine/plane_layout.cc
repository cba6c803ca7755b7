#include "runtime/engine/plane_layout.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "pager/check.h"
#include "pager/residency_policy.h"
#include "pager/system.h"
#include "runtime/engine/paging_shape.h"

namespace weir {
namespace {

// An Extent of a rare kind is not held open for longer than the walk takes for so many Extents; what comes later begins
// another. The thinnest plane, half a bit of nine and a half, fills one in 19.
constexpr uint64_t kLongestOpen = 20;
// What it costs to read a byte into an Extent that is no huge page, which is filled and moved page by page: with the planes of
// six plans of Gemma 3 270M and a fifth of level 8's bytes as frames, 1.0 to 1.2 GB/s came by in 64 KiB, 2.4 in 2 MiB.
constexpr double kSmallPages = 2.2;
constexpr double kNoWalk = std::numeric_limits<double>::infinity();
// No smaller as long as the walk is possible: reads get slow.
constexpr size_t kLeastExtent = 64u << 10;

struct Kind {
    uint64_t end = 0;       // of what lies in it so far, in its own stretch
    uint64_t opened = 0;    // place in the image of what its last Extent began with
    uint64_t base = 0;      // of its stretch in the Region
    uint64_t file_end = 0;  // of the file's granules that it ends with
};

// Which plans read it, as bits; beyond 64 plans some share a bit, and may read what another needs.
uint64_t readers(const PlaneLayout::Piece& piece, const std::vector<sched::Plan>& plans) {
    uint64_t bits = 0;
    for (size_t p = 0; p < plans.size(); ++p)
        if (piece.read_by(plans[p])) bits |= uint64_t{1} << p % 64;
    return plans.empty() ? 1 : bits;
}

std::vector<PlaneLayout::Piece> pieces_of(const ModelMap& map) {
    std::vector<PlaneLayout::Piece> pieces;
    for (uint32_t t = 0; t < map.tensors.size(); ++t) {
        const PlacedTensor& placed = map.tensors[t];
        PlaneLayout::Piece piece;
        piece.tensor = t;
        piece.shard = static_cast<uint32_t>(placed.shard);
        piece.experts = placed.experts;
        if (placed.part == nullptr) {
            piece.place = placed.place;
            piece.bytes = placed.bytes;
            pieces.push_back(piece);
            continue;
        }
        for (uint32_t b = 0; b < placed.bands.size(); ++b) {
            for (uint8_t r = 0; r < kRuns; ++r) {
                if (!placed.has_run(r)) continue;
                piece.band = b;
                piece.run = r;
                piece.place = placed.bands[b].run_place[r];
                piece.bytes = run_bytes(r, placed.part->rows_of(b), placed.part->cols);
                pieces.push_back(piece);
            }
        }
    }
    return pieces;
}

uint64_t file_offset(const ModelMap& map, const PlaneLayout::Piece& piece) {
    const auto range = std::upper_bound(map.ranges.begin(), map.ranges.end(), piece.place,
                                        [](uint64_t place, const PlacedRange& r) { return place < r.place; }) -
                       1;
    return range->file_offset + (piece.place - range->place);
}

// What is stored whole is taken by rows: in pieces of an Extent.
void split_whole(PlaneLayout* layout) {
    std::vector<PlaneLayout::Piece> pieces;
    for (PlaneLayout::Piece piece : layout->pieces) {
        for (const uint64_t most = layout->extents.extent_bytes;
             piece.run == PlaneLayout::kWhole && piece.bytes > most;) {
            pieces.push_back(piece);
            pieces.back().bytes = most;
            piece.place += most;
            piece.at += most;
            piece.bytes -= most;
        }
        pieces.push_back(piece);
    }
    layout->pieces = std::move(pieces);
}

// Bytes of the file that fill a stretch of the Region, whole granules.
struct Filling {
    uint64_t at;  // in the stretch of its kind at first, then in the Region
    uint64_t file_offset;
    uint64_t bytes;
    size_t kind;
};

void cut(std::vector<Filling>& fillings, PlaneLayout* layout) {
    const size_t extent_bytes = layout->extents.extent_bytes;
    std::sort(fillings.begin(), fillings.end(), [](const Filling& a, const Filling& b) { return a.at < b.at; });
    std::vector<std::vector<pager::Segment>> by_extent(layout->extent_in.size());
    for (Filling& f : fillings) {
        while (f.bytes > 0) {
            const uint64_t in_slot = f.at % extent_bytes, bytes = std::min<uint64_t>(f.bytes, extent_bytes - in_slot);
            std::vector<pager::Segment>& segments = by_extent[layout->extent_in[f.at / extent_bytes]];
            if (!segments.empty() && segments.back().file_offset + segments.back().bytes == f.file_offset)
                segments.back().bytes += static_cast<uint32_t>(bytes);
            else
                segments.push_back({f.file_offset, static_cast<uint32_t>(in_slot), static_cast<uint32_t>(bytes)});
            layout->used_bytes += bytes;
            f.at += bytes;
            f.file_offset += bytes;
            f.bytes -= bytes;
        }
    }
    layout->extents.first_segment.push_back(0);
    for (const std::vector<pager::Segment>& segments : by_extent) {
        layout->extents.segments.insert(layout->extents.segments.end(), segments.begin(), segments.end());
        layout->extents.first_segment.push_back(static_cast<uint32_t>(layout->extents.segments.size()));
    }
}

// When the walk is done with each Extent, and how many it holds. A step of it is a piece of what is stored whole, or all
// pieces of a band; a row that begins in a piece may lie across Extents that come after it.
void hold(const ModelMap& map, PlaneLayout* layout) {
    const size_t n = layout->pieces.size();
    std::vector<size_t> step_of(n), last_step(layout->extent_in.size());
    for (size_t i = 0; i < n; ++i) {
        const PlaneLayout::Piece& piece = layout->pieces[i];
        const bool goes_on = i > 0 && piece.run != PlaneLayout::kWhole && layout->pieces[i - 1].tensor == piece.tensor &&
                             layout->pieces[i - 1].band == piece.band;
        step_of[i] = i == 0 ? 0 : step_of[i - 1] + (goes_on ? 0 : 1);
        for (const uint32_t e : layout->extents_of(piece)) last_step[e] = step_of[i];
    }
    std::vector<uint32_t> closing(last_step.size());  // Extents as the walk is done with them
    std::iota(closing.begin(), closing.end(), 0u);
    std::stable_sort(closing.begin(), closing.end(), [&](uint32_t a, uint32_t b) { return last_step[a] < last_step[b]; });
    layout->done.resize(n);
    layout->extents.closes.resize(last_step.size());
    size_t held = 0, beyond = 0;
    uint32_t begun = 0, done = 0;
    for (size_t i = 0, end; i < n; i = end) {
        const PlaneLayout::Piece& first = layout->pieces[i];
        const size_t row_bytes = map.tensors[first.tensor].piece_bytes;
        const size_t after = first.run == PlaneLayout::kWhole ? pager::held_extents(row_bytes, layout->extents.extent_bytes) - 1 : 0;
        for (end = i; end < n && step_of[end] == step_of[i]; ++end) {
            layout->done[end] = done;
            for (const uint32_t e : layout->extents_of(layout->pieces[end])) begun = std::max(begun, e + 1);
        }
        held = std::max<size_t>(held, begun - done + after);
        beyond = std::max(beyond, after);
        uint32_t closes = done;
        for (; closes < closing.size() && last_step[closing[closes]] == step_of[i]; ++closes)
            layout->extents.closes[closing[closes]] = done;
        done = closes;
    }
    // Where all lies as the walk goes it is as in a plain file, see shape_paging().
    layout->holding.each = std::max(layout->holding.each, layout->kinds == 1 ? held : 1 + beyond);
    layout->holding.shared = held - std::min(held, layout->holding.each);
}

// Extents by their first use.
void number(const ModelMap& map, uint64_t n_slots, PlaneLayout* layout) {
    layout->extent_in.assign(n_slots, UINT32_MAX);
    layout->extents.slots.clear();
    const size_t extent_bytes = layout->extents.extent_bytes;
    for (const PlaneLayout::Piece& piece : layout->pieces) {
        for (uint64_t s = piece.at / extent_bytes; s <= (piece.at + piece.bytes - 1) / extent_bytes; ++s) {
            if (layout->extent_in[s] != UINT32_MAX) continue;
            layout->extent_in[s] = static_cast<uint32_t>(layout->extents.slots.size());
            layout->extents.slots.push_back(static_cast<uint32_t>(s));
        }
        if (piece.place < map.head_place) layout->without_head = layout->extents.slots.size();
    }
    CHECK(layout->extents.slots.size() == n_slots);
    hold(map, layout);
}

// Bytes that a pass reads at most, of all plans' together; infinite where the frames are too few to walk.
double streamed_bytes(const PlaneLayout& layout, uint64_t frame_bytes, size_t workers) {
    const size_t n = layout.n_extents(), frames = frame_bytes / layout.extents.extent_bytes;
    if (frames >= n + kSpareFrames) return 0;
    if (frames < pager::least_frames(workers, layout.holding) + kSpareFrames) return kNoWalk;
    const pager::Residency residency = pager::choose_residency(n, frames, {workers, false, layout.holding});
    return static_cast<double>(layout.used_bytes) * static_cast<double>(n - residency.n_pinned) / static_cast<double>(n);
}

}  // namespace

std::span<const PlaneLayout::Piece> PlaneLayout::within(uint64_t place, uint64_t bytes) const {
    const auto first =
        std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.place + p.bytes <= place; });
    auto last = first;
    while (last != pieces.end() && last->place < place + bytes) ++last;
    return {first, last};
}

PlaneLayout gather_planes(const ModelMap& map, const std::vector<sched::Plan>& plans, size_t extent_bytes,
                          size_t granule) {
    PlaneLayout layout;
    layout.extents.extent_bytes = extent_bytes;
    layout.pieces = pieces_of(map);
    std::vector<Kind> kinds;
    std::map<std::pair<bool, uint64_t>, size_t> kind_of;  // by experts, readers
    std::vector<Filling> fillings;
    std::vector<size_t> kind_of_piece;
    for (PlaneLayout::Piece& piece : layout.pieces) {
        const uint64_t bits = piece.experts ? 0 : readers(piece, plans);
        const auto [found, is_new] = kind_of.try_emplace({piece.experts, bits}, kinds.size());
        if (is_new) kinds.emplace_back();
        Kind& kind = kinds[found->second];
        kind_of_piece.push_back(found->second);
        const uint64_t offset = file_offset(map, piece), begin = pager::align_down(offset, granule);
        const uint64_t end = pager::align_up(offset + piece.bytes, granule);
        if (kind.end % extent_bytes != 0 && piece.place - kind.opened > kLongestOpen * extent_bytes)
            kind.end = pager::align_up(kind.end, extent_bytes);
        // Neighbours in the file, too, share the granule between them.
        const bool shares = kind.end % extent_bytes != 0 && kind.file_end == begin + granule && offset % granule != 0;
        const uint64_t at = shares ? kind.end - granule : kind.end;
        const uint64_t already = shares ? granule : 0;
        piece.at = at + (offset - begin);
        const uint64_t new_end = at + (end - begin);
        if (kind.end % extent_bytes == 0 || (new_end - 1) / extent_bytes != (kind.end - 1) / extent_bytes)
            kind.opened = piece.place;
        if (new_end > kind.end) fillings.push_back({kind.end, begin + already, new_end - kind.end, found->second});
        kind.end = std::max(kind.end, new_end);
        kind.file_end = end;
    }
    uint64_t base = 0;
    for (Kind& kind : kinds) {
        kind.base = base;
        base += pager::align_up(kind.end, extent_bytes);
    }
    for (size_t i = 0; i < layout.pieces.size(); ++i) layout.pieces[i].at += kinds[kind_of_piece[i]].base;
    for (Filling& f : fillings) f.at += kinds[f.kind].base;
    layout.kinds = kinds.size();
    split_whole(&layout);
    number(map, base / extent_bytes, &layout);
    cut(fillings, &layout);
    layout.worth.resize(layout.n_extents());
    for (const PlaneLayout::Piece& piece : layout.pieces)
        for (const uint32_t e : layout.extents_of(piece))
            layout.worth[e] = piece.experts ? 0 : std::popcount(readers(piece, plans));
    return layout;
}

PlaneLayout gather_planes_for(const ModelMap& map, const std::vector<sched::Plan>& plans, uint64_t frame_bytes,
                              size_t workers, size_t granule) {
    const size_t pmd = pager::huge_pages_allowed() ? pager::pmd_page_size() : granule;
    PlaneLayout best;
    double least = kNoWalk;
    for (size_t bytes = pager::choose_extent_bytes(frame_bytes, granule, pmd);; bytes /= 2) {
        PlaneLayout layout = gather_planes(map, plans, bytes, granule);
        const size_t kinds = layout.kinds;
        const double cost = streamed_bytes(layout, frame_bytes, workers) * (bytes == pmd ? 1 : kSmallPages);
        if (cost < least || least == kNoWalk) {
            least = cost;
            best = std::move(layout);
        }
        if (bytes == granule || (least != kNoWalk && (kinds == 1 || least == 0 || bytes <= kLeastExtent))) return best;
    }
}

void place_planes(const PlaneLayout& layout, ModelMap* map) {
    for (const PlaneLayout::Piece& piece : layout.pieces) {
        PlacedTensor& placed = map->tensors[piece.tensor];
        if (piece.run != PlaneLayout::kWhole)
            placed.bands[piece.band].run_at[piece.run] = piece.at;
        else if (piece.place == placed.place)
            placed.at = piece.at;
    }
}

}  // namespace weir
