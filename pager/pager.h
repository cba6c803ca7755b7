// The pager: a reserved address range (the Region) that a file's Extents appear in, served by one thread that owns the
// userfaultfd, the reads, the frames and the policy, under a budget of frames that it never exceeds.
//
// How the rooms use it. The leader announces what will be touched (plan()); each worker waits at the gate before it
// touches an Extent (acquire()) and publishes its Position (publish()); the pager reads ahead of the slowest worker in
// plan order, installs what arrives and evicts what is behind and not pinned. Whatever nobody announced arrives as a
// userfaultfd message and is served first: a wrong plan costs time, never correctness.
//
// States of an Extent, changed by the pager thread alone:
//     absent --read begins--> reading --all segments here, installed--> present --evicted--> absent
//     absent, reading --the read failed for good--> failed
//
// Ordinals: pass * n_extents + extent, so that they ascend over all passes: when the walk begins to use an Extent.
// Position: pass * n_extents + the number of Extents that a worker is done with; by layout.closes it is a promise to touch
// nothing that closes below it any more. Where Extents are done with in the order in which they were begun, that is the
// ordinal of the next. The pager follows the least of all workers: what closes below that is behind.
//
// Failure is data: after one, gates return false and failure() has the text. A thread that sleeps in a fault cannot be
// told; on_unanswerable is called then and must end the process. So it is where the pager thread itself no longer answers,
// which a watchdog finds out. What can go on by another way goes on, is counted, and on_notice says so once.
//
// Life: workers must have left the Region before the destructor runs. It stops the thread, drains reads, then unmaps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "pager/file.h"
#include "pager/group_slots.h"
#include "pager/layout.h"
#include "pager/read_queue.h"
#include "pager/residency_policy.h"
#include "pager/uffd.h"

namespace weir::pager {

enum class InstallRung : uint8_t { kAuto, kMove, kCopy };

// How long the pager bears with what should pass. Tests shorten it.
struct Patience {
    // A read, or a page to be installed, that the kernel has no memory for: long enough for reclaim to get somewhere under
    // a tight cgroup limit, short enough that somebody still watches.
    uint32_t no_memory_ms = 5000;
    // A pager thread that does not answer while somebody waits for it, see watchdog.h. A healthy one answers within
    // microseconds; the longest it was seen to take under a sanitizer on two busy cores is tens of milliseconds.
    uint32_t stuck_ms = 700;
    // Reads in flight of which none completes: a notice, never a failure. A disk that spins up takes longer.
    uint32_t slow_ms = 5000;
};

struct PagerOptions {
    size_t workers = 1;
    Holding holding;    // what the walk holds at a time, see residency_policy.h
    size_t frames = 0;  // of layout.extent_bytes each; at least least_frames(workers, holding), or one per Extent
    GroupLayout groups;      // what is used sparsely and lies in slots, not in the Region; empty: nothing does
    size_t slot_frames = 0;  // of layout.extent_bytes each, for slots, from GroupSlots::least_frames() to all_frames()
    std::vector<uint8_t> worth;  // by Extent, see residency_policy.h
    bool gates = true;  // false: acquire() lets everything through, and absences fault
    InstallRung install = InstallRung::kAuto;
    ReaderRung reader = ReaderRung::kAuto;
    UffdSource uffd = UffdSource::kAuto;
    Patience patience;
    // Somebody waits for weights and can no longer be answered (text): must not return. Called on the pager thread or the
    // watchdog's.
    std::function<void(const char* text)> on_unanswerable;
    // Something that a user should know: a slow device, a fallback that was taken. Called on the watchdog's thread. May be
    // empty.
    std::function<void(const char* text)> on_notice;
    // Tests put theirs here; else a queue made from `reader`, and ioctl(2).
    std::unique_ptr<ReadQueue> read_queue;
    IoctlCall ioctl_call;
};

struct PagerStats {
    uint64_t bytes_read = 0;    // all reads, small ones included
    uint64_t reads = 0;
    uint64_t faults = 0;        // userfaultfd messages
    uint64_t waits = 0;         // gate waits, all workers
    uint64_t stall_us = 0;      // the first worker's time in gates, plus the time faults took (all wait for one another)
    uint64_t installs = 0;
    uint64_t evictions = 0;
    uint64_t dropped = 0;       // prefetched Extents given up for a demand
    uint64_t busy_retries = 0;  // installs or evictions that met a held page
    uint64_t lost_plans = 0;    // plan() met a full queue
    uint64_t read_retries = 0;      // reads that the device failed and that were tried again
    uint64_t buffered_rereads = 0;  // of these, through the page cache
    uint64_t copied_moves = 0;      // Extents that were copied into place because they could not be moved
    uint64_t hollow_frames = 0;     // frames populated anew because pages could not be moved back
    uint64_t lost_frames = 0;       // Extents read once more because pages of their frame were gone before they were installed
    uint64_t restored = 0;          // stray closes of the uffd's descriptor that were made good
    uint64_t read_pauses = 0;       // reads that the kernel had no room for and that went again after a pause
    size_t pinned_extents = 0;
    size_t ring_frames = 0;
    size_t peak_frames = 0;     // frames in use at most
    uint64_t cpu_us = 0;        // of the pager thread
    uint64_t busy_us = 0;       // in which at least one Extent was being read
    double extents_in_flight = 0;  // mean over busy_us, groups included
    uint64_t groups_busy_us = 0;   // in which at least one group was being read
    size_t budget_frames = 0;   // in force, those of slots included
    GroupStats groups;
    size_t held_frames = 0;     // that hold memory now: more than the budget only for a moment after it shrank
    uint64_t budget_changes = 0;
};

// One read past the Extents, aligned to the file's granule in all three.
struct SmallRead {
    uint64_t file_offset;
    uint32_t bytes;
    std::byte* into;
};

class PagerLoop;
class Watchdog;
struct BudgetOrder;
struct PagerShared;

class Pager {
  public:
    // Throws std::runtime_error with one line where the system does not give what is needed. `files` must outlive the
    // pager.
    static std::unique_ptr<Pager> start(FileParts files, Layout layout, PagerOptions options);
    ~Pager();
    Pager(const Pager&) = delete;
    Pager& operator=(const Pager&) = delete;

    const std::byte* region() const;
    size_t n_extents() const;
    bool pinned(size_t extent) const;
    // Any thread: where each Extent is at this moment, and behind them each group. What may stay and is not read yet is absent.
    std::vector<Whereabouts> look() const;
    // "uffd=user-mode-only install=move reader=io_uring io=direct"
    std::string rungs() const;

    // Leader: Extents [first, first + count) will be touched in order, the first at `ordinal`. Never blocks; where the
    // queue is full the advice is lost and counted. What comes late may lie between what was planned before.
    void plan(uint64_t ordinal, size_t first, size_t count) noexcept;
    // Leader: what was planned at `ordinal` and later will not be touched after all. What is being read comes all the same.
    void forget(uint64_t ordinal) noexcept;
    // Leader: reads all and returns when they are here; false where one failed for good. At most 256 at a time.
    bool read_small(std::span<const SmallRead> reads) noexcept;

    // Worker: waits until Extents [first, last] are present. False after a failure.
    bool acquire(size_t worker, size_t first, size_t last) noexcept;
    // Worker: the same of one Extent, and no longer than until `deadline`. False where it is not there by then, or after a failure.
    bool acquire_by(size_t worker, size_t extent, std::chrono::steady_clock::time_point deadline) noexcept;
    // Worker, or the leader for it: its Position. kSitsOut: it will touch nothing at all, until it publishes another
    // again; it then holds nothing back, neither prefetch nor a budget that shrinks.
    static constexpr uint64_t kSitsOut = UINT64_MAX;
    void publish(size_t worker, uint64_t position) noexcept;

    // nullptr where no groups were given.
    GroupSlots* slots() { return slots_.get(); }

    // Any thread: from now on the weights may take `frames` frames, but no fewer than workers need to get on and no more
    // than there are Extents and groups. Returns what is in force. Growing is done in the background as memory comes; after shrinking,
    // memory is back with the kernel as soon as reads in flight have landed: milliseconds.
    size_t set_budget(size_t frames);
    // Any thread: how many of the frames streamed Extents shall share, within the policy's bounds; the rest keeps Extents for
    // good. Costs no read: what stays now streams by sooner or later, and what streams now is already here.
    void set_ring(size_t frames);

    // Any thread, one at a time: touches a page that only the fault handler can bring, and returns when it has. Where it does
    // not answer any more this never returns, and ends as every fault does that nobody answers. For who watches the process.
    void probe_faults() noexcept;

    bool failed() const noexcept;
    std::string failure() const;
    PagerStats stats() const;
    uint64_t stall_us() const noexcept;  // of stats(), alone
    uint64_t bytes_read() const noexcept;  // likewise
    // Counts what changed what pinned() says: new budgets and ring lengths.
    uint64_t residency_changes() const noexcept { return residency_changes_.load(std::memory_order_acquire); }
    // Bytes of frames, wherever they are, that huge pages back at this moment, by smaps: takes milliseconds.
    uint64_t huge_bytes() const;

  private:
    Pager();
    void kick() noexcept;
    bool wait_present(size_t worker, size_t extent) noexcept;
    void look_after();
    void order_residency();

    bool gates_ = true;
    std::unique_ptr<PagerShared> shared_;
    std::unique_ptr<GroupSlots> slots_;
    std::unique_ptr<PagerLoop> loop_;
    mutable std::jthread thread_;  // its clock is read by stats()
    mutable std::mutex budget_mutex_;
    std::vector<uint8_t> worth_;
    RingNeeds ring_needs_;       // guarded by budget_mutex_, as what follows
    Residency residency_;        // the newest ordered
    size_t budget_frames_ = 0;   // without those of slots
    size_t least_slot_frames_ = 0;
    size_t all_slot_frames_ = 0;
    uint64_t budget_changes_ = 0;
    std::atomic<uint64_t> residency_changes_{0};
    std::vector<std::unique_ptr<BudgetOrder>> orders_;  // not yet taken, or just now
    std::function<void(const char*)> on_notice_;
    unsigned said_ = 0;  // bits: which fallbacks were said; the watchdog's
    std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace weir::pager
