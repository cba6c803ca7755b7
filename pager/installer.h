// Gives an Extent's pages to the Region and takes them back, and knows what to do where the kernel refuses.
//
// Install. Move the frame's pages; or, on the rung that copies, copy them. A page that is held for a moment (its bio is not
// yet released) is tried again, and where it stays held, or moving fails altogether, this Extent is copied instead and its
// frame stands empty until the pages move back: no memory more than before. No memory for page tables: again after a
// pause, until the patience is spent. A page that is there already was given by nobody we know: dropped, and once more.
// Where pages of the frame are gone, what was read is lost: whoever asked reads once more.
// Evict. Move the pages back; where that fails they are dropped, and the frame has to be populated anew.
//
// Used by the pager's loop alone. No allocation, no lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pager/pager_shared.h"
#include "pager/uffd.h"

namespace weir::pager {

class Installer {
  public:
    // After that many Extents in a row that could not be moved, moving is not tried any more.
    static constexpr unsigned kMaxRefusals = 8;

    // An install under way.
    struct Job {
        uint32_t extent;
        bool by_copy = false;
        uint8_t cleared = 0;    // how often pages that were there already were dropped
        size_t done = 0;        // bytes
        uint64_t since_ns = 0;  // when it met the first obstacle; 0: none so far
        uint64_t due_ns = 0;    // when to try again
        uint32_t pause_us = 0;
    };
    enum class Progress : uint8_t {
        kDone,
        kLater,
        kLost,  // the frame lacks pages; what came of it into the slot is dropped again
        kFailed,
    };
    enum class Eviction : uint8_t {
        kKept,    // the pages are in the frame again
        kHollow,  // the frame holds nothing and must be populated before use
        kFailed,
    };

    // copies: the rung; each install copies and the frame keeps its pages.
    Installer(Uffd* uffd, size_t extent_bytes, bool copies, uint32_t patience_ms, Counters* counters);

    bool copies() const { return copies_; }
    Progress install(Job* job, std::byte* slot, std::byte* frame) noexcept;
    // On the rung that copies, frame is nullptr and the pages are dropped.
    Eviction evict(std::byte* slot, std::byte* frame) noexcept;

    // After kLost and kFailed: the step and the reason.
    const char* failed_step() const { return failed_step_; }
    const char* failed_reason() const { return failed_reason_; }

  private:
    Progress later(Job* job, uint32_t first_us, uint32_t last_us) noexcept;
    Progress failed(const char* step, const char* reason) noexcept;
    bool drop(std::byte* from, size_t bytes) noexcept;

    Uffd* const uffd_;
    const size_t extent_bytes_;
    const bool copies_;
    const uint64_t patience_ns_;
    Counters* const counters_;
    unsigned refusals_ = 0;  // Extents in a row that could not be moved
    const char* failed_step_ = "";
    const char* failed_reason_ = "";
};

}  // namespace weir::pager
