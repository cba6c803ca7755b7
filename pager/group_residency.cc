#include "pager/group_residency.h"

#include <algorithm>
#include <cmath>

#include "pager/check.h"

namespace weir::pager {
namespace {

// Tokens after which a touch counts half. On policy_sim's traces: 16 reads 2 % more on the whole, and up to 10 % more where
// frequencies are steady; 256 reads 2 % more on the whole, up to 1 % less where they are steady and 10 % more where they
// drift.
constexpr double kHalfLifeTokens = 64;
// Touches that every group is credited with, so that few touches of one say less than its place does. (Anything from 0 to
// 2 reads the same within 0.2 %.)
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
    move_to(groups_[group].place);
    const bool absent = !states_[group].resident;
    if (absent && !make_room(groups_[group].frames, true)) return Answer::kNoRoom;
    if (states_[group].hint == Hint::kOpen) forget_hint(group);
    if (states_[group].touched_at != token_) count_repetition(states_[group]);
    change(group, [&](State& s) {
        s.touches += one_touch_;
        s.touched_at = token_;
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

bool GroupResidency::drop(uint32_t group) noexcept {
    if (!states_[group].idle()) return false;
    evict(group);
    return true;
}

void GroupResidency::end_token() noexcept {
    tokens_ += one_touch_;
    const double left = touched_ - by_chance_;
    repetition_ = left > 0 ? std::clamp((repeated_ - by_chance_) / left, 0.0, 1.0) : 0;
    // Instead of ageing every group, what a touch is worth grows.
    one_touch_ *= std::exp2(1 / kHalfLifeTokens);
    if (one_touch_ > kScaleBackAt) {
        for (State& s : states_) s.touches /= one_touch_;
        for (double* sum : {&tokens_, &touched_, &repeated_, &by_chance_}) *sum /= one_touch_;
        one_touch_ = 1;
    }
    std::fill(stale_.begin(), stale_.end(), 1);
    passed_ = 0;
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

// What is behind is no longer what its place's last visit used, unless this token used it.
void GroupResidency::move_to(size_t place) noexcept {
    here_ = place;
    for (; passed_ < place; ++passed_) stale_[passed_] = 1;
}

// Before the token's first touch of a group is added.
void GroupResidency::count_repetition(const State& s) noexcept {
    if (tokens_ == 0) return;
    touched_ += one_touch_;
    by_chance_ += one_touch_ * std::min(1.0, s.touches / tokens_);
    if (s.touched_at != 0 && s.touched_at + 1 == token_) repeated_ += one_touch_;
}

// That the next visit to its place uses the group, times tokens_.
double GroupResidency::chance(uint32_t group) const noexcept {
    const State& s = states_[group];
    // Used when its place was last visited: in this token, or in the one before and the walk is not past it yet.
    const bool just_used = s.touched_at != 0 && (s.touched_at == token_ || (s.touched_at + 1 == token_ &&
                                                                            groups_[group].place >= passed_));
    return (1 - repetition_) * (s.touches + kPrior * one_touch_) + (just_used ? repetition_ * tokens_ : 0);
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
        const double worth = chance(group) / static_cast<double>(distance(p));
        if (best != kNone && worth >= best_worth) continue;
        best = group;
        best_worth = worth;
    }
    return best;
}

uint32_t GroupResidency::least_of(size_t place) const noexcept {
    uint32_t least = kNone;
    double least_chance = 0;
    for (uint32_t i = first_of_place_[place]; i < first_of_place_[place + 1]; ++i) {
        const uint32_t group = by_place_[i];
        const State& s = states_[group];
        if (!s.idle() || s.hint == Hint::kOpen) continue;
        if (s.hint == Hint::kWrong) return group;
        const double c = chance(group);
        if (least != kNone && c >= least_chance) continue;
        least = group;
        least_chance = c;
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
