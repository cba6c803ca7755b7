// The pager thread's own world: page table, frames, ring (its reads are in Flights). Built before the thread starts, then
// touched by that thread alone; run() allocates nothing, locks nothing, touches no Region page and throws nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pager/file.h"
#include "pager/flights.h"
#include "pager/frame_pool.h"
#include "pager/installer.h"
#include "pager/layout.h"
#include "pager/mapping.h"
#include "pager/pager.h"
#include "pager/pager_shared.h"
#include "pager/residency_policy.h"
#include "pager/system.h"
#include "pager/uffd.h"

namespace weir::pager {

class PagerLoop {
  public:
    PagerLoop(FileParts files, Layout layout, PagerOptions options, PagerShared* shared, std::function<void()> kick);

    // The thread's body: returns after shared->stop, with no read in flight.
    void run() noexcept;

    const std::byte* region() const { return region_.base(); }
    // As chosen at the start. After that the pager's thread alone knows.
    const Residency& residency() const { return residency_; }
    bool copies() const { return installer_->copies(); }
    const FramePool& pool() const { return *pool_; }
    std::string rungs() const;
    // Where a fault that waits to be taken is to be read; any thread.
    int uffd() const noexcept { return uffd_.fd(); }
    // On the same uffd as the Region; any thread may empty and touch it.
    const Mapping& probe_page() const { return probe_page_; }
    uint64_t huge_bytes() const { return pool_->huge_bytes() + anon_huge_bytes(region_.base(), region_.bytes()); }

  private:
    static constexpr uint32_t kNoFrame = UINT32_MAX;
    static constexpr uint64_t kNever = UINT64_MAX / 2;  // an ordinal beyond all plans

    struct Use {
        bool planned;
        uint64_t ordinal;  // when it begins
        uint64_t last;     // the Position above which it is over
    };
    struct Resident {  // a streamed Extent that holds a place in the ring
        uint32_t extent;
        Use use;  // the next, or one that is not over
    };
    struct PlanItem {
        uint64_t ordinal;
        uint32_t first;
        uint32_t count;
        uint64_t end() const { return ordinal + count; }
    };

    // Inputs of a turn
    void take_messages() noexcept;
    void forget(uint64_t from) noexcept;
    void take_wants() noexcept;
    void take_faults() noexcept;
    void take_landings() noexcept;
    void take_budget() noexcept;
    void answer_probe() noexcept;
    void look_after_uffd() noexcept;
    int next_timeout() const noexcept;
    void wake(uint32_t extent) noexcept;
    void demand(uint32_t extent, bool faulted) noexcept;

    // Decisions
    void serve_demands() noexcept;
    void prefetch() noexcept;
    bool begin_read(uint32_t extent, const Use& use, bool demanded) noexcept;
    bool make_room(const Use& use, bool demanded) noexcept;
    bool evict_consumed() noexcept;
    bool drop_farthest(uint64_t than) noexcept;
    void shed() noexcept;
    size_t pool_frames() const noexcept {
        return installer_->copies() ? residency_.staging : residency_.n_pinned + residency_.ring;
    }
    Use use_at(uint32_t extent, uint64_t ordinal) const noexcept {
        return {true, ordinal, ordinal - extent + layout_.closes_at(extent)};
    }
    std::optional<Use> next_use(uint32_t extent) const noexcept;
    // Whatever is planned at this ordinal and later is used by nobody yet.
    uint64_t beyond_use() const noexcept { return greatest_position() + holding_.of_one(); }
    uint64_t least_position() const noexcept;
    uint64_t greatest_position() const noexcept;
    uint64_t wake_position() const noexcept;

    // What becomes of an Extent
    void install(Installer::Job job) noexcept;
    void read_again(uint32_t extent) noexcept;
    void evict(uint32_t extent) noexcept;
    void retry_installs() noexcept;

    void set_state(uint32_t extent, ExtentState state) noexcept;
    ExtentState state(uint32_t extent) const noexcept {
        return state_of(shared_->states[extent].load(std::memory_order_relaxed));
    }
    std::byte* slot(uint32_t extent) const noexcept { return region_.base() + layout_.slot(extent) * layout_.extent_bytes; }
    uint32_t extent_in(size_t slot) const noexcept { return extent_in_.empty() ? static_cast<uint32_t>(slot) : extent_in_[slot]; }
    void fail(const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

    const FileParts files_;
    const Layout layout_;
    const Layout reads_;  // Extents, then groups: what Flights knows
    std::vector<uint32_t> extent_in_;  // by slot; empty: slot e is Extent e's
    const Holding holding_;
    uint64_t longest_use_ = 0;  // of an Extent, the most that closes before it and opens after it
    PagerShared* const shared_;
    std::function<void(const char*)> on_unanswerable_;
    Uffd uffd_;  // closes after queue, pool and Region are gone: whoever still slept in a fault would read zeros
    Residency residency_;
    Mapping region_;
    Mapping probe_page_;
    std::vector<std::byte> probe_bytes_;  // what it is filled with
    std::unique_ptr<FramePool> pool_;
    std::unique_ptr<Installer> installer_;
    std::unique_ptr<Flights> flights_;

    // Page table: per Extent
    std::vector<uint32_t> frame_of_;          // the frame it is read into, or (by move) lives in
    std::vector<uint8_t> demanded_;           // in demands_ or read on demand
    std::vector<uint8_t> faulted_;            // a thread sleeps in a fault on it
    std::vector<uint64_t> fault_since_ns_;

    std::vector<uint32_t> free_frames_;
    size_t frames_ = 0;                       // free or in use: taken from the pool
    std::vector<Resident> ring_;              // streamed Extents, reading or present
    size_t ring_cap_ = 0;                     // after the budget shrank there may be more for a moment, see shed()
    std::vector<PlanItem> plan_;              // fixed capacity, oldest first
    uint64_t cursor_ = 0;                     // next ordinal to prefetch
    bool probe_waits_ = false;                // a thread sleeps in a fault on the probe's page
    bool starved_ = false;                    // prefetch or a demand waits for a frame
    std::vector<uint32_t> demands_;
    std::vector<Installer::Job> retries_;     // read, but not yet to be installed
    size_t reading_ = 0;                      // Extents being read
    size_t groups_reading_ = 0;
    size_t frames_in_use_ = 0;
    uint64_t seen_mail_ = 0;
    unsigned losses_ = 0;                     // frames in a row whose pages were gone before they were installed
    uint32_t restored_ = 0;                   // stray closes of the uffd that the queue knows of
};

}  // namespace weir::pager
