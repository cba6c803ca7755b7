// Slots: where access is sparse, memory of the exact size of what is read and given up as one. A group is some stretches of
// the file that are used together (an expert's slices of three tensors); a slot holds one group, and whoever uses it asks
// where. Slots are carved out of frames that nothing is moved into or out of: reads land where the bytes stay, and no page
// table changes hands. An address that nobody asked for does not exist here, so there is nothing for a fault to serve.
//
// Who decides. What is used is known to the leader alone and at once, and what it computes first depends on what is here; so
// the policy (GroupResidency) is asked where the choice is made, under a mutex that only a change of the budget contends for,
// and whoever looks on.
// The pager's thread never takes it: it gets reads as messages, does them, and marks the words of groups that have landed.
//
// A group's word, as an Extent's (pager_shared.h):
//     absent, present --use() or hint() that reads: leader--> reading --all here: pager--> present
//     reading --a read failed for good: pager--> failed
// Present says that the last read has landed, not that the group has a slot still: that is known of groups in use alone.
//
// A smaller budget: what is idle in the slots beyond it leaves at once, what is in use or being read as soon as it is not,
// and then their frames go back to the kernel. Failure is data: acquire() returns nullptr, Pager::failure() has the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "pager/frame_pool.h"
#include "pager/group_residency.h"
#include "pager/layout.h"
#include "pager/pager_shared.h"

namespace weir::pager {

struct GroupLayout {
    Layout slots;                  // its Extents are the groups, extent_bytes the size of a slot
    std::vector<uint32_t> places;  // of each group, see Group
};

struct GroupStats {
    uint64_t uses = 0;
    uint64_t here = 0;          // of these, that were here already when they were used, and not by a hint
    uint64_t foreseen = 0;      // that a hint had begun to read
    uint64_t absent_bytes = 0;  // of the groups used that were not here, or by a hint: to be read by any reader
    uint64_t hints_read = 0;    // hints that a read was begun for
    size_t slots = 0;           // that hold memory and may be used
    size_t frames = 0;          // in force
    size_t held_frames = 0;     // that hold memory now
};

class GroupSlots {
  public:
    // Slots in `frames` frames at first. first_word: of the groups' words in shared->states. on_mail: wakes the pager's thread.
    GroupSlots(GroupLayout layout, size_t frames, size_t frame_bytes, PagerShared* shared, size_t first_word,
               std::function<void()> on_mail);
    GroupSlots(const GroupSlots&) = delete;
    GroupSlots& operator=(const GroupSlots&) = delete;

    // The least that anything can be done with, and what holds every group.
    static size_t least_frames(const GroupLayout& layout, size_t frame_bytes);
    static size_t all_frames(const GroupLayout& layout, size_t frame_bytes);

    // Leader: the group is used from now until release(), and read where it is not here. False where there is no room before
    // something is released, lands, or memory comes: wait_for_news().
    bool use(uint32_t group) noexcept;
    void release(uint32_t group) noexcept;
    // Leader: will probably be used soon, or after all not. True where a read was begun.
    bool hint(uint32_t group) noexcept;
    void cancel(uint32_t group) noexcept;
    void end_token() noexcept;
    // Leader: not absent; it may still be being read.
    bool resident(uint32_t group) const noexcept;
    // Leader: there are fewer slots than groups.
    bool lacks() const noexcept;
    // Leader, of a group in use: its bytes are here.
    bool here(uint32_t group) const noexcept;
    // Leader: counts landings, populated frames and failure. wait_for_news() returns when it is no longer `seen`.
    uint32_t news() const noexcept { return shared_->group_news.load(std::memory_order_acquire); }
    void wait_for_news(uint32_t seen) const noexcept;

    // Worker, of a group in use: where its slot lies, once its bytes are here; nullptr after a failure.
    const std::byte* acquire(size_t worker, uint32_t group) noexcept;

    // Any thread.
    void set_frames(size_t frames);
    // Gives back what a smaller budget has left behind; and what errno the pool met, 0: none.
    int look_after();
    GroupStats stats() const;
    void look(std::span<Whereabouts> groups) const;  // see Pager::look()
    size_t slot_bytes() const { return layout_.slots.extent_bytes; }
    size_t frames() const;

  private:
    static constexpr uint32_t kNone = UINT32_MAX;

    std::atomic<uint32_t>& word(uint32_t group) const noexcept { return shared_->states[first_word_ + group]; }
    void take_news() noexcept;
    void settle() noexcept;
    void vacate(std::span<const uint32_t> groups) noexcept;
    void begin_read(uint32_t group) noexcept;
    size_t frames_of(size_t slots) const { return (slots * slot_bytes() + frame_bytes_ - 1) / frame_bytes_; }

    const GroupLayout layout_;
    const size_t frame_bytes_;
    PagerShared* const shared_;
    const size_t first_word_;
    const std::function<void()> on_mail_;

    mutable std::mutex mutex_;  // guards all below; FramePool's pager side belongs to whoever holds it
    FramePool pool_;
    GroupResidency residency_;
    size_t frames_ = 0;                // in force
    size_t target_ = 0;                // slots that frames_ come to
    size_t usable_ = 0;                // slots [0, usable_) have memory; more than target_ for a moment after it shrank
    size_t first_hole_ = 0;            // frames [0, first_hole_) are ours
    size_t n_frames_ = 0;              // that are ours
    std::vector<uint8_t> has_frame_;   // per frame
    std::vector<uint32_t> slot_of_;    // per group, or kNone
    std::vector<uint32_t> group_in_;   // per slot, or kNone
    std::vector<uint32_t> free_;       // slots below target_ with memory and without a group
    std::vector<uint32_t> reading_;    // groups
    std::vector<uint32_t> bytes_;      // per group, as it is read
    GroupStats stats_;
};

}  // namespace weir::pager
