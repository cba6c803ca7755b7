#include "pager/group_residency.h"

#include <algorithm>
#include <cmath>

#include "pager/check.h"

namespace weir::pager {
namespace {

// Tokens after which a touch counts half. Long enough to tell frequencies apart that differ by a factor of two, short
// enough to follow a change of subject; policy_sim shows what other values read.
constexpr double kHalfLifeTokens = 64;
// Touches that every group is credited with, so that few touches of one say less than its place does.
constexpr double kPrior = 0.5;
// Touches are scaled back before they leave a double's range.
constexpr double kScaleBackAt = 1e100;

}  // namespace

GroupResidency::GroupResidency(std::vector<Group> groups, size_t capacity)
    : groups_(std::move(groups)), states_(groups_.size()), capacity_(capacity) {
    size_t places = 1;
    for (const Group& g : groups_) {
        CHECK(g.frames > 0);
        places = std::max(places, size_t{g.place} + 1);
        least_capacity_ = std::max(least_capacity_, size_t{g.frames});
    }
    CHECK(capacity >= least_capacity_);
    first_of_place_.assign(places + 1, 0);
    for (const Group& g : groups_) ++first_of_place_[g.place + 1];
    for (size_t p = 0; p < places; ++p) first_of_place_[p + 1] += first_of_place_[p];
    by_place_.resize(groups_.size());
    std::vector<uint32_t> next(first_of_place_.begin(), first_of_place_.end() - 1);
    for (uint32_t g = 0; g < groups_.size(); ++g) by_place_[next[groups_[g].place]++] = g;
    least_.assign(places, kNone);
    stale_.assign(places, 0);
    hinted_.reserve(groups_.size());
    evicted_.reserve(groups_.size());
}

// Every change of a group's state goes through here, which keeps the sums and marks the place.
template <typename Change>
void GroupResidency::change(uint32_t group, Change how) noexcept {
    State& s = states_[group];
    const size_t frames = groups_[group].frames;
    const auto sum = [&]() -> size_t& { return s.hint == Hint::kOpen ? hinted_idle_frames_ : idle_frames_; };
    if (s.idle()) sum() -= frames;
    how(s);
    if (s.idle()) sum() += frames;
    stale_[groups_[group].place] = 1;
}

GroupResidency::Answer GroupResidency::touch(uint32_t group) noexcept {
    evicted_.clear();
    here_ = groups_[group].place;
    const bool absent = !states_[group].resident;
    if (absent && !make_room(groups_[group].frames, true)) return Answer::kNoRoom;
    if (states_[group].hint == Hint::kOpen) forget_hint(group);
    change(group, [&](State& s) {
        s.touches += one_touch_;
        ++s.holds;
        s.hint = Hint::kNone;
        s.read_for_hint = false;
        s.reading |= absent;
        s.resident = true;
    });
    if (!absent) return Answer::kHere;
    used_ += groups_[group].frames;
    return Answer::kRead;
}

void GroupResidency::release(uint32_t group) noexcept {
    CHECK(states_[group].holds > 0);
    change(group, [](State& s) { --s.holds; });
}

GroupResidency::Answer GroupResidency::hint(uint32_t group) noexcept {
    evicted_.clear();
    const bool absent = !states_[group].resident;
    if (absent && !make_room(groups_[group].frames, false)) return Answer::kNoRoom;
    if (states_[group].hint != Hint::kOpen) hinted_.push_back(group);
    change(group, [&](State& s) {
        s.hint = Hint::kOpen;
        s.hinted_at = token_;
        s.read_for_hint |= absent;
        s.reading |= absent;
        s.resident = true;
    });
    if (!absent) return Answer::kHere;
    used_ += groups_[group].frames;
    return Answer::kRead;
}

void GroupResidency::cancel(uint32_t group) noexcept {
    if (states_[group].hint != Hint::kOpen) return;
    forget_hint(group);
    change(group, [](State& s) { s.hint = s.read_for_hint ? Hint::kWrong : Hint::kNone; });
}

void GroupResidency::arrived(uint32_t group) noexcept {
    CHECK(states_[group].reading);
    change(group, [](State& s) { s.reading = false; });
}

void GroupResidency::abandon(uint32_t group) noexcept {
    CHECK(states_[group].reading && states_[group].holds == 0);
    change(group, [](State& s) { s.reading = false; });
    evict(group);
}

void GroupResidency::end_token() noexcept {
    // Instead of ageing every group, what a touch is worth grows.
    static const double growth = std::exp2(1 / kHalfLifeTokens);
    one_touch_ *= growth;
    if (one_touch_ > kScaleBackAt) {
        for (State& s : states_) s.touches /= one_touch_;
        one_touch_ = 1;
    }
    for (size_t i = hinted_.size(); i-- > 0;)
        if (states_[hinted_[i]].hinted_at < token_) cancel(hinted_[i]);
    ++token_;
}

void GroupResidency::set_capacity(size_t capacity) noexcept {
    CHECK(capacity >= least_capacity_);
    capacity_ = capacity;
    trim();
}

void GroupResidency::trim() noexcept {
    evicted_.clear();
    while (used_ > capacity_ && idle_frames_ + hinted_idle_frames_ > 0) {
        const uint32_t group = victim();
        evicted_.push_back(group != kNone ? group : farthest_hinted());
        evict(evicted_.back());
    }
}

bool GroupResidency::make_room(size_t frames, bool touched) noexcept {
    const size_t evictable = idle_frames_ + (touched ? hinted_idle_frames_ : 0);
    if (used_ + frames > capacity_ + evictable) return false;
    while (used_ + frames > capacity_) {
        const uint32_t group = victim();
        evicted_.push_back(group != kNone ? group : farthest_hinted());
        evict(evicted_.back());
    }
    return true;
}

// Steps until the walk is at the place again, at least 1: the place it is at comes first, the one before it last.
size_t GroupResidency::distance(size_t place) const noexcept {
    const size_t places = least_.size();
    return (place + places - here_) % places + 1;
}

// The idle group without an open hint that should leave first; kNone where there is none.
uint32_t GroupResidency::victim() noexcept {
    uint32_t best = kNone;
    double best_worth = 0;
    for (size_t p = 0; p < least_.size(); ++p) {
        if (stale_[p] != 0) {
            least_[p] = least_of(p);
            stale_[p] = 0;
        }
        const uint32_t group = least_[p];
        if (group == kNone) continue;
        if (states_[group].hint == Hint::kWrong) return group;
        const double worth = (states_[group].touches + kPrior * one_touch_) / static_cast<double>(distance(p));
        if (best != kNone && worth >= best_worth) continue;
        best = group;
        best_worth = worth;
    }
    return best;
}

uint32_t GroupResidency::least_of(size_t place) const noexcept {
    uint32_t least = kNone;
    for (uint32_t i = first_of_place_[place]; i < first_of_place_[place + 1]; ++i) {
        const uint32_t group = by_place_[i];
        const State& s = states_[group];
        if (!s.idle() || s.hint == Hint::kOpen) continue;
        if (s.hint == Hint::kWrong) return group;
        if (least == kNone || s.touches < states_[least].touches) least = group;
    }
    return least;
}

uint32_t GroupResidency::farthest_hinted() const noexcept {
    uint32_t farthest = kNone;
    for (const uint32_t group : hinted_) {
        if (!states_[group].idle()) continue;
        if (farthest == kNone || distance(groups_[group].place) > distance(groups_[farthest].place)) farthest = group;
    }
    CHECK(farthest != kNone);
    return farthest;
}

void GroupResidency::evict(uint32_t group) noexcept {
    if (states_[group].hint == Hint::kOpen) forget_hint(group);
    change(group, [](State& s) {
        s.resident = false;
        s.read_for_hint = false;
        s.hint = Hint::kNone;
    });
    used_ -= groups_[group].frames;
}

void GroupResidency::forget_hint(uint32_t group) noexcept {
    hinted_.erase(std::find(hinted_.begin(), hinted_.end(), group));
}

}  // namespace weir::pager
