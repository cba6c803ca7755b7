#include "pager/residency_policy.h"

#include <algorithm>
#include <array>

#include "pager/check.h"

namespace weir::pager {
namespace {

// Reads in flight plus what is being consumed. Reads that begin together end together, and what came as a crowd is consumed
// one by one: with eight Extents the queue was empty or nearly so for a fifth of the time, with 24 sixteen were in flight
// for four fifths of it. At half the memory of a 3B model a token took 0.450 s instead of 0.485, though the longer ring
// takes 4 % of the bytes that could stay; 32 gained nothing more. Between the two, 3 % of the model.
constexpr size_t kLeastRing = 8;
constexpr size_t kMostRing = 28;
constexpr size_t kRingPercent = 3;

// Adds `count` Extents of those that are pinned or not, as `from` says, to the other side: of the worthiest (of the least
// worth, where they are unpinned), spread evenly over the walk among equals.
void change_sides(std::vector<bool>* pinned, bool from, size_t count, std::span<const uint8_t> worth) {
    const size_t n = pinned->size();
    std::array<size_t, 256> candidates = {};
    for (size_t e = 0; e < n; ++e)
        if ((*pinned)[e] == from) ++candidates[worth.empty() ? 0 : worth[e]];
    std::array<size_t, 256> wanted = {}, seen = {};
    for (size_t i = 0; i < wanted.size(); ++i) {
        const size_t rank = from ? i : wanted.size() - 1 - i;
        wanted[rank] = std::min(candidates[rank], count);
        count -= wanted[rank];
    }
    for (size_t e = 0; e < n; ++e) {
        if ((*pinned)[e] != from) continue;
        const size_t rank = worth.empty() ? 0 : worth[e], all = candidates[rank];
        const size_t at = seen[rank]++;
        if ((at + 1) * wanted[rank] / all != at * wanted[rank] / all) (*pinned)[e] = !from;
    }
}

}  // namespace

size_t choose_extent_bytes(uint64_t frame_bytes, size_t page, size_t pmd_page) {
    size_t bytes = pmd_page;
    while (bytes > page && bytes > frame_bytes / kLeastRing) bytes /= 2;
    return std::max(bytes, page);
}

size_t held_extents(uint64_t longest_row_bytes, uint64_t extent_bytes) {
    // n bytes from anywhere touch at most 1 + ceil((n - 1) / extent) Extents.
    const uint64_t n = std::max<uint64_t>(2, longest_row_bytes);
    return static_cast<size_t>(std::max<uint64_t>(2, 1 + (n - 1 + extent_bytes - 1) / extent_bytes));
}

size_t least_frames(size_t workers, const Holding& holding) { return holding.shared + holding.each * workers + 1; }

size_t longest_ring(size_t n_extents) { return std::clamp(n_extents * kRingPercent / 100, kLeastRing, kMostRing); }

size_t shortest_ring() { return kLeastRing; }

Residency choose_residency(size_t n_extents, size_t frames, const RingNeeds& needs) {
    Residency r;
    r.pinned.assign(n_extents, true);
    const size_t spare = needs.copies ? 2 : 0;  // even when all is pinned, a copy needs somewhere to land first
    const size_t held = least_frames(needs.workers, needs.holding);
    if (frames >= n_extents + spare) {
        r.n_pinned = n_extents;
        r.ring = r.staging = std::min(frames - n_extents, needs.copies ? kLeastRing : 0);
        return r;
    }
    const size_t least = held + spare;
    CHECK(frames >= least);
    const size_t wanted = needs.holding.shared + std::clamp(needs.length, kLeastRing, longest_ring(n_extents));
    r.ring = std::min(std::max(wanted, least), std::max(least, frames / 2));
    r.staging = needs.copies ? std::max<size_t>(2, (r.ring - held) / 2) : 0;
    r.n_pinned = frames - r.ring;

    change_sides(&r.pinned, true, n_extents - r.n_pinned, needs.worth);
    return r;
}

Residency change_residency(const Residency& now, size_t frames, const RingNeeds& needs) {
    const size_t n = now.pinned.size();
    Residency r = choose_residency(n, frames, needs);
    const bool grows = r.n_pinned > now.n_pinned;
    const size_t changes = grows ? r.n_pinned - now.n_pinned : now.n_pinned - r.n_pinned;
    r.pinned = now.pinned;
    change_sides(&r.pinned, !grows, changes, needs.worth);
    return r;
}

}  // namespace weir::pager
