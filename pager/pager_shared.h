// What the pager thread shares with the decode team: atomics only, since the ordering fault → handler → wake is none that
// the language (or ThreadSanitizer) knows. Private to the pager's room.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pager/message_queue.h"
#include "pager/residency_policy.h"

namespace weir::pager {

enum ExtentState : uint32_t { kAbsent = 0, kReading = 1, kPresent = 2, kFailed = 3 };

// An Extent's word: its state in the low two bits, above them the number of changes so far. A worker that sleeps at a gate
// sleeps on the whole word: an Extent that came and went before the worker was scheduled is then no longer what it slept
// on. (On the state alone it slept on, its want long since served.)
constexpr uint32_t kStateMask = 3;
constexpr ExtentState state_of(uint32_t word) { return static_cast<ExtentState>(word & kStateMask); }
constexpr uint32_t next_word(uint32_t word, ExtentState state) { return ((word & ~kStateMask) + kStateMask + 1) | state; }

// Set in small_done to wake a leader that waits for small reads which will not come.
constexpr uint32_t kSmallReadsFailed = 1u << 31;

struct alignas(64) WorkerSlot {
    std::atomic<uint64_t> position{0};  // written by the worker
    std::atomic<uint32_t> wanted{0};    // Extent + 1 that the worker waits for at a gate; taken by the pager
    std::atomic<uint64_t> waits{0};
    std::atomic<uint64_t> wait_ns{0};
};

struct Counters {
    std::atomic<uint64_t> bytes_read{0}, reads{0}, faults{0}, fault_ns{0}, installs{0}, evictions{0}, dropped{0},
        busy_retries{0}, lost_plans{0}, read_retries{0}, buffered_rereads{0}, read_pauses{0}, copied_moves{0},
        hollow_frames{0}, lost_frames{0};
    std::atomic<uint64_t> busy_ns{0}, extent_ns{0};  // time with reads under way, and that time times their number
    std::atomic<uint64_t> group_ns{0};               // time with groups being read
    std::atomic<size_t> peak_frames{0};
    std::atomic<size_t> frames_in_use{0};
    std::atomic<int> move_error{0};       // why pages could not be moved, last
    std::atomic<uint32_t> restored{0};    // stray closes of the uffd that were made good
};

// A new budget on its way to the pager thread, which swaps its own residency for this one: it must not allocate.
struct BudgetOrder {
    Residency residency;
    std::atomic<bool> taken{false};  // release by the pager; then it may be freed
};

struct PagerShared {
    PagerShared(size_t n_extents, size_t n_groups, size_t n_workers)
        : states(std::make_unique<std::atomic<uint32_t>[]>(n_extents + n_groups)),
          n_extents(n_extents),
          n_groups(n_groups),
          workers(n_workers) {}

    // Words of Extents, then of groups; release by the pager, acquire at gates. Those of groups: see group_slots.h.
    std::unique_ptr<std::atomic<uint32_t>[]> states;
    size_t n_extents;
    size_t n_groups;
    std::vector<WorkerSlot> workers;
    MessageQueue messages;
    std::atomic<BudgetOrder*> order{nullptr};  // the newest that was not taken; release by who orders

    // The sleeping pager's wake-up. Both sides are sequentially consistent: the pager sets `sleeping` and then looks for
    // mail and positions once more; the others change mail or position and then look at `sleeping`. One of the two sees
    // the other.
    std::atomic<bool> sleeping{false};
    std::atomic<uint64_t> wake_at{UINT64_MAX};  // a Position at which a frame comes free
    std::atomic<uint64_t> mail{0};              // counts messages, wants, stop, populated frames
    int event_fd = -1;

    // For the watchdog: written by the pager thread, but for `waiting`.
    std::atomic<uint64_t> turns{0};           // of the loop, and of what may take long within one
    std::atomic<uint32_t> waiting{0};         // threads at gates, in read_small() or waiting for the pager's end
    std::atomic<uint32_t> faults_open{0};     // Extents that a thread sleeps in a fault on
    std::atomic<size_t> reads_under_way{0};
    std::atomic<int> thread_id{0};

    // The watchdog's rest: it sets `watch_rests` and then looks at `waiting` once more; who begins to wait counts itself and
    // then looks at `watch_rests`. Sequentially consistent, so that one of the two sees the other.
    std::atomic<bool> watch_rests{false};
    int watch_fd = -1;
    void wake_watchdog() noexcept {
        if (watch_rests.load(std::memory_order_seq_cst) && watch_rests.exchange(false, std::memory_order_seq_cst))
            (void)::eventfd_write(watch_fd, 1);
    }

    std::atomic<int> started{0};          // 1 once the thread serves, -errno where it could not begin
    std::atomic<uint32_t> small_done{0};  // small reads finished, since the start; kSmallReadsFailed after a failure
    std::atomic<uint32_t> group_news{0};  // see GroupSlots::news()
    void tell_group_news() noexcept {
        group_news.fetch_add(1, std::memory_order_release);
        group_news.notify_all();
    }
    std::atomic<bool> failed{false};      // release after the text is written
    char failure_text[512] = {};
    std::atomic<bool> stop{false};
    Counters counters;
};

// Somebody waits for the pager, for as long as this lives.
class Waiting {
  public:
    explicit Waiting(PagerShared* shared) : shared_(shared) {
        shared_->waiting.fetch_add(1, std::memory_order_seq_cst);
        shared_->wake_watchdog();
    }
    ~Waiting() { shared_->waiting.fetch_sub(1, std::memory_order_relaxed); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

  private:
    PagerShared* const shared_;
};

}  // namespace weir::pager
