// Which groups of Extents stay where access is sparse: a group is what is read and given up as one (an expert of a
// mixture, a stretch of rows), and a token touches a few of many. Pure: numbers in, numbers out, no system calls, no
// allocation after construction. Owned and called by one thread, the pager's.
//
// How the pager uses it. touch() when a group is about to be used, hint() when it will probably be used: both say whether
// it must be read and, in evicted(), which groups have to give up their frames first. arrived() when the read is complete,
// release() when the use is over, cancel() when a hint turned out wrong, end_token() once a token.
//
// States of a group:
//     absent --touch or hint says kRead--> reading --arrived--> here --named in evicted()--> absent
//     reading --abandon (a failed or a called-off read)--> absent
// A group that is being read, or touched and not yet released, is never evicted.
//
// The order of eviction:
//  1. Groups that were read for a hint which was cancelled, or which nobody confirmed for a token.
//  2. The least of (chance that the next visit to its place uses the group) / (distance to that place in the walk): the
//     reads saved per frame and time.
//     The chance is an LFU's, touches that age; and what the token before used has another: of what one token uses, the
//     next uses some again, more than its frequency says. How much more is measured as the run goes: 0 where routing has
//     no memory, so that nothing is lost there. (policy_sim: where three in ten repeat, 14 to 21 % fewer reads than the
//     best of LRU, CLOCK, LFU and aged LFU; without repetition within 2 % of the best of them.)
//     Without the distance, equally likely groups leave just before their place comes as often as just after (policy_sim:
//     1 to 4 % more reads), and a cycle is read whole.
//  3. For a touch, when all else is in use: groups whose hint is open.
// Sizes do not enter: a group of twice the frames costs twice the bytes to read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weir::pager {

struct Group {
    uint32_t frames;  // at least one; or any other unit in which the capacity is given
    uint32_t place;   // in the walk: a token visits places 0, 1, 2, ... and uses groups of the place it is at
};

class GroupResidency {
  public:
    enum class Answer : uint8_t {
        kHere,    // nothing to read: it is here, or on its way
        kRead,    // what evicted() names leaves, then the group is to be read
        kNoRoom,  // all is in use or being read: nothing has changed; ask again after a release or an arrival
    };

    // Nothing is here at first. No group may be larger than capacity.
    GroupResidency(std::vector<Group> groups, size_t capacity);

    // The walk is at the group's place and uses it from now until release(). Touches are counted, so that as many
    // releases must follow; kNoRoom counts for nothing.
    Answer touch(uint32_t group) noexcept;
    void release(uint32_t group) noexcept;

    // The group will probably be touched within a token. Never evicts what other hints are waiting for.
    Answer hint(uint32_t group) noexcept;
    // It will not. Without an open hint: no effect. A group that was here before the hint keeps its worth.
    void cancel(uint32_t group) noexcept;

    void arrived(uint32_t group) noexcept;
    // The read is given up: the group is absent, its frames are free. Not while it is touched.
    void abandon(uint32_t group) noexcept;

    // An idle group leaves, whatever its worth. False where it is not idle.
    bool drop(uint32_t group) noexcept;

    // Ages all touches, measures repetition, and cancels hints that are older than a token.
    void end_token() noexcept;

    // The capacity changes. Growing takes effect at once; when it shrinks, evicted() names what leaves, and what is in
    // use stays: trim() again after releases, until used() is within capacity(). Not below least_capacity().
    void set_capacity(size_t capacity) noexcept;
    void trim() noexcept;

    // Groups that the last touch(), hint(), set_capacity() or trim() sent away, in that order; until the next call.
    std::span<const uint32_t> evicted() const { return evicted_; }

    bool resident(uint32_t group) const { return states_[group].resident; }  // here or being read
    bool reading(uint32_t group) const { return states_[group].reading; }
    bool read_for_hint(uint32_t group) const { return states_[group].read_for_hint; }  // and not touched since
    size_t used() const { return used_; }
    size_t capacity() const { return capacity_; }
    size_t least_capacity() const { return least_capacity_; }

  private:
    static constexpr uint32_t kNone = UINT32_MAX;

    enum class Hint : uint8_t { kNone, kOpen, kWrong };
    struct State {
        double touches = 0;  // aged, in units that grow, see end_token()
        uint32_t holds = 0;  // touches not yet released
        bool resident = false;
        bool reading = false;
        bool read_for_hint = false;  // and not touched since
        Hint hint = Hint::kNone;
        uint64_t hinted_at = 0;   // token
        uint64_t touched_at = 0;  // token; 0: never
        bool idle() const { return resident && !reading && holds == 0; }
    };

    template <typename Change>
    void change(uint32_t group, Change how) noexcept;
    bool make_room(size_t frames, bool touched) noexcept;
    uint32_t victim() noexcept;
    uint32_t farthest_hinted() const noexcept;
    uint32_t least_of(size_t place) const noexcept;
    double chance(uint32_t group) const noexcept;
    void count_repetition(const State& s) noexcept;
    void move_to(size_t place) noexcept;
    void evict(uint32_t group) noexcept;
    size_t distance(size_t place) const noexcept;
    void forget_hint(uint32_t group) noexcept;

    std::vector<Group> groups_;
    std::vector<State> states_;
    size_t capacity_;
    size_t least_capacity_ = 0;
    size_t used_ = 0;
    size_t idle_frames_ = 0;         // evictable
    size_t hinted_idle_frames_ = 0;  // evictable by touches alone
    size_t here_ = 0;                // place of the last touch
    size_t passed_ = 0;              // places below it have been passed in this token
    uint64_t token_ = 1;

    // Sums over tokens, aged as State::touches.
    double one_touch_ = 1;  // what a touch adds now
    double tokens_ = 0;     // what a group has that every token touched
    double touched_ = 0;    // groups touched, each once a token
    double repeated_ = 0;   // of these, those that the token before had touched
    double by_chance_ = 0;  // those that would have been, had frequency alone decided
    // Chance that what a token used is used by the next because of that; from the three above, once a token.
    double repetition_ = 0;

    std::vector<uint32_t> by_place_;        // groups, ordered by place
    std::vector<uint32_t> first_of_place_;  // places + 1 entries into by_place_
    std::vector<uint32_t> least_;           // per place, the idle group to evict first, or kNone
    std::vector<uint8_t> stale_;            // per place: least_ must be found anew
    std::vector<uint32_t> hinted_;          // groups with an open hint
    std::vector<uint32_t> evicted_;
};

}  // namespace weir::pager
