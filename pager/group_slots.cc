#include "pager/group_slots.h"

#include <unistd.h>

#include <algorithm>

#include "pager/check.h"
#include "pager/system.h"

namespace weir::pager {
namespace {

// One in use and one on its way.
constexpr size_t kLeastSlots = 2;

std::vector<Group> groups_of(const GroupLayout& layout) {
    std::vector<Group> groups;
    for (const uint32_t place : layout.places) groups.push_back({1, place});
    return groups;
}

size_t frames_for(size_t slots, const GroupLayout& layout, size_t frame_bytes) {
    return (slots * layout.slots.extent_bytes + frame_bytes - 1) / frame_bytes;
}

}  // namespace

size_t GroupSlots::least_frames(const GroupLayout& layout, size_t frame_bytes) {
    return frames_for(std::min(kLeastSlots, layout.slots.n_extents()), layout, frame_bytes);
}

size_t GroupSlots::all_frames(const GroupLayout& layout, size_t frame_bytes) {
    return frames_for(layout.slots.n_extents(), layout, frame_bytes);
}

GroupSlots::GroupSlots(GroupLayout layout, size_t frames, size_t frame_bytes, PagerShared* shared, size_t first_word,
                       std::function<void()> on_mail)
    : layout_(std::move(layout)),
      frame_bytes_(frame_bytes),
      shared_(shared),
      first_word_(first_word),
      on_mail_(std::move(on_mail)),
      pool_(all_frames(layout_, frame_bytes), frames, frame_bytes, nullptr,
            [shared] { shared->tell_group_news(); }),
      residency_(groups_of(layout_), 1),
      frames_(frames),
      target_(std::min(frames * frame_bytes / slot_bytes(), layout_.slots.n_extents())) {
    CHECK(frames >= least_frames(layout_, frame_bytes) && frames <= all_frames(layout_, frame_bytes));
    const size_t n = layout_.slots.n_extents();
    has_frame_.assign(pool_.room(), 0);
    slot_of_.assign(n, kNone);
    group_in_.assign(n, kNone);
    free_.reserve(n);
    reading_.reserve(n);
    bytes_.assign(n, 0);
    for (size_t g = 0; g < n; ++g)
        for (const Segment& s : layout_.slots.extent(g)) bytes_[g] += s.bytes;
}

bool GroupSlots::use(uint32_t group) noexcept {
    const std::lock_guard lock(mutex_);
    take_news();
    if (usable_ == 0) return false;
    const bool foreseen = residency_.resident(group) && residency_.read_for_hint(group);
    const GroupResidency::Answer answer = residency_.touch(group);
    if (answer == GroupResidency::Answer::kNoRoom) return false;
    ++stats_.uses;
    if (answer == GroupResidency::Answer::kRead) begin_read(group);
    const bool absent = answer == GroupResidency::Answer::kRead || foreseen;
    if (absent) stats_.absent_bytes += bytes_[group];
    if (foreseen) ++stats_.foreseen;
    if (!absent) ++stats_.here;
    return true;
}

void GroupSlots::release(uint32_t group) noexcept {
    const std::lock_guard lock(mutex_);
    residency_.release(group);
    take_news();
}

bool GroupSlots::hint(uint32_t group) noexcept {
    const std::lock_guard lock(mutex_);
    take_news();
    if (usable_ == 0 || residency_.hint(group) != GroupResidency::Answer::kRead) return false;
    ++stats_.hints_read;
    begin_read(group);
    return true;
}

void GroupSlots::cancel(uint32_t group) noexcept {
    const std::lock_guard lock(mutex_);
    residency_.cancel(group);
}

void GroupSlots::end_token() noexcept {
    const std::lock_guard lock(mutex_);
    residency_.end_token();
}

bool GroupSlots::resident(uint32_t group) const noexcept {
    const std::lock_guard lock(mutex_);
    return residency_.resident(group);
}

bool GroupSlots::lacks() const noexcept {
    const std::lock_guard lock(mutex_);
    return target_ < layout_.slots.n_extents();
}

bool GroupSlots::here(uint32_t group) const noexcept {
    return state_of(word(group).load(std::memory_order_acquire)) == kPresent;
}

void GroupSlots::wait_for_news(uint32_t seen) const noexcept {
    const Waiting waiting(shared_);
    while (news() == seen && !shared_->failed.load(std::memory_order_acquire))
        shared_->group_news.wait(seen, std::memory_order_acquire);
}

const std::byte* GroupSlots::acquire(size_t worker, uint32_t group) noexcept {
    std::atomic<uint32_t>& state = word(group);
    uint32_t now = state.load(std::memory_order_acquire);
    if (state_of(now) != kPresent) {
        WorkerSlot& slot = shared_->workers[worker];
        const Waiting waiting(shared_);
        slot.waits.fetch_add(1, std::memory_order_relaxed);
        const uint64_t begin = monotonic_ns();
        for (; state_of(now) == kReading; now = state.load(std::memory_order_acquire)) state.wait(now, std::memory_order_acquire);
        slot.wait_ns.fetch_add(monotonic_ns() - begin, std::memory_order_relaxed);
        if (state_of(now) != kPresent) return nullptr;
    }
    return pool_.frame(0) + slot_of_[group] * slot_bytes();  // stays as it is while the group is in use
}

void GroupSlots::set_frames(size_t frames) {
    const std::lock_guard lock(mutex_);
    CHECK(frames >= least_frames(layout_, frame_bytes_) && frames <= pool_.room());
    frames_ = frames;
    target_ = std::min(frames * frame_bytes_ / slot_bytes(), layout_.slots.n_extents());
    std::erase_if(free_, [this](uint32_t slot) { return slot >= target_; });
    for (size_t slot = 0; slot < std::min(usable_, target_); ++slot) {  // that an earlier, smaller budget had given up
        if (group_in_[slot] == kNone && std::find(free_.begin(), free_.end(), slot) == free_.end())
            free_.push_back(static_cast<uint32_t>(slot));
    }
    pool_.want(frames_of(target_));
    take_news();
}

int GroupSlots::look_after() {
    const std::lock_guard lock(mutex_);
    take_news();
    return pool_.error();
}

size_t GroupSlots::frames() const {
    const std::lock_guard lock(mutex_);
    return frames_;
}

GroupStats GroupSlots::stats() const {
    const std::lock_guard lock(mutex_);
    GroupStats s = stats_;
    s.slots = std::min(usable_, target_);
    s.frames = frames_;
    s.held_frames = pool_.backed();
    return s;
}

void GroupSlots::look(std::span<Whereabouts> groups) const {
    const std::lock_guard lock(mutex_);
    for (size_t g = 0; g < groups.size(); ++g) {
        if (slot_of_[g] == kNone) continue;
        groups[g] = here(static_cast<uint32_t>(g)) ? Whereabouts::kStays : Whereabouts::kReading;
    }
}

// ---- with the mutex held ----

void GroupSlots::take_news() noexcept {
    std::erase_if(reading_, [this](uint32_t group) {
        if (!here(group)) return false;
        residency_.arrived(group);
        return true;
    });
    uint32_t frame;
    while (pool_.take(&frame)) {
        has_frame_[frame] = 1;
        ++n_frames_;
    }
    while (first_hole_ < has_frame_.size() && has_frame_[first_hole_] != 0) ++first_hole_;
    const size_t usable = std::min(first_hole_ * frame_bytes_ / slot_bytes(), target_);
    for (; usable_ < usable; ++usable_) free_.push_back(static_cast<uint32_t>(usable_));
    const size_t capacity = std::max<size_t>(1, std::min(usable_, target_));
    if (capacity != residency_.capacity()) {
        residency_.set_capacity(capacity);
        vacate(residency_.evicted());
    } else if (residency_.used() > capacity) {
        residency_.trim();
        vacate(residency_.evicted());
    }
    settle();
}

// What lies beyond the slots in force leaves as it comes to rest; then its memory goes.
void GroupSlots::settle() noexcept {
    for (size_t slot = target_; slot < usable_; ++slot) {
        const uint32_t group = group_in_[slot];
        if (group != kNone && residency_.drop(group)) vacate({&group, 1});
    }
    while (usable_ > target_ && group_in_[usable_ - 1] == kNone) --usable_;
    const size_t needed = std::max(frames_of(target_), frames_of(usable_));
    for (size_t frame = has_frame_.size(); n_frames_ > needed; --frame) {
        if (has_frame_[frame - 1] == 0) continue;
        has_frame_[frame - 1] = 0;
        --n_frames_;
        pool_.give(static_cast<uint32_t>(frame - 1));
    }
    first_hole_ = std::min(first_hole_, needed);
}

void GroupSlots::vacate(std::span<const uint32_t> groups) noexcept {
    for (const uint32_t group : groups) {
        const uint32_t slot = slot_of_[group];
        slot_of_[group] = group_in_[slot] = kNone;
        if (slot < target_) free_.push_back(slot);
    }
}

void GroupSlots::begin_read(uint32_t group) noexcept {
    vacate(residency_.evicted());
    CHECK(!free_.empty());
    const uint32_t slot = free_.back();
    free_.pop_back();
    slot_of_[group] = slot;
    group_in_[slot] = group;
    reading_.push_back(group);
    // The pager's thread leaves the word alone until it has the message, but for fail(): one of the two sees the other.
    std::atomic<uint32_t>& state = word(group);
    uint32_t now = state.load(std::memory_order_relaxed);
    while (state_of(now) != kFailed && !state.compare_exchange_weak(now, next_word(now, kReading), std::memory_order_seq_cst)) {
    }
    const Message m = {Message::kGroupRead, group, 0, 0, pool_.frame(0) + slot * slot_bytes()};
    while (!shared_->failed.load(std::memory_order_seq_cst) && !shared_->messages.push(m)) {
        on_mail_();
        ::usleep(100);  // as in read_small()
    }
    if (shared_->failed.load(std::memory_order_seq_cst)) state.store(next_word(now, kFailed), std::memory_order_release);
    on_mail_();
}

}  // namespace weir::pager
