#include "bench/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pager/group_residency.h"
#include "pager/residency_policy.h"

namespace weir::bench {
namespace {

using pager::GroupResidency;

// The walk of two workers, as the engine's team has it on a small machine.
constexpr size_t kWorkers = 2;

std::vector<uint32_t> item_units(const Trace& trace) {
    std::vector<uint32_t> units;
    units.reserve(trace.n_items());
    for (const Place& p : trace.places) units.insert(units.end(), p.count, p.units);
    return units;
}

std::span<const uint32_t> items_of(const Trace& trace, const Event& e) { return {trace.items.data() + e.first, e.count}; }

// Counts what is read from a token on.
class Meter {
  public:
    explicit Meter(size_t warm_up) : warm_up_(warm_up) {}
    void token() {
        if (++token_ > warm_up_) ++reads_.tokens;
    }
    void read(uint64_t units) {
        if (token_ > warm_up_) reads_.units += units;
    }
    void wasted(uint64_t units) {
        if (token_ > warm_up_) reads_.for_hints += units;
    }
    size_t token_number() const { return token_; }
    const Reads& reads() const { return reads_; }

  private:
    size_t warm_up_;
    size_t token_ = 0;
    Reads reads_;
};

// Walks through the touches one by one; hints mean nothing to these policies.
template <typename Touch>
Reads touch_by_touch(const Trace& trace, size_t warm_up, Touch touch) {
    Meter meter(warm_up);
    for (const Event& e : trace.events) {
        if (e.kind == Event::kToken) meter.token();
        if (e.kind != Event::kUse) continue;
        for (uint32_t i = 0; i < e.count; ++i) meter.read(touch(trace.items[e.first + i], e.first + i, meter.token_number()));
    }
    return meter.reads();
}

using Key = std::pair<double, double>;

// Gives up what has the least key. key_of(item, index of the touch, token) says what the key is after a touch.
template <typename KeyOf>
Reads least_key_leaves(const Trace& trace, size_t capacity, size_t warm_up, KeyOf key_of) {
    const std::vector<uint32_t> units = item_units(trace);
    std::vector<Key> key(units.size());
    std::vector<uint8_t> here(units.size(), 0);
    std::set<std::pair<Key, uint32_t>> order;
    size_t used = 0;
    return touch_by_touch(trace, warm_up, [&](uint32_t item, uint32_t index, size_t token) -> uint64_t {
        const bool hit = here[item] != 0;
        if (hit) order.erase({key[item], item});
        while (!hit && used + units[item] > capacity) {
            const uint32_t out = order.begin()->second;
            order.erase(order.begin());
            here[out] = 0;
            used -= units[out];
        }
        key[item] = key_of(item, index, token);
        order.insert({key[item], item});
        if (hit) return 0;
        here[item] = 1;
        used += units[item];
        return units[item];
    });
}

Reads lru(const Trace& trace, size_t capacity, size_t warm_up) {
    return least_key_leaves(trace, capacity, warm_up, [](uint32_t, uint32_t index, size_t) { return Key{index, 0}; });
}

Reads lfu(const Trace& trace, size_t capacity, size_t warm_up, double half_life_tokens) {
    // Ageing by growing what a touch is worth; a double holds 1023 half-lives of it.
    std::vector<double> touches(trace.n_items(), 0);
    return least_key_leaves(trace, capacity, warm_up, [&](uint32_t item, uint32_t index, size_t token) {
        touches[item] += std::exp2(static_cast<double>(token) / half_life_tokens);
        return Key{touches[item], index};
    });
}

Reads belady(const Trace& trace, size_t capacity, size_t warm_up) {
    // Where each touch's item is touched next; hints lie between touches in `items` and are passed over.
    std::vector<double> next(trace.items.size(), HUGE_VAL);
    std::vector<double> seen(trace.n_items(), HUGE_VAL);
    for (size_t e = trace.events.size(); e-- > 0;) {
        if (trace.events[e].kind != Event::kUse) continue;
        for (uint32_t i = trace.events[e].first + trace.events[e].count; i-- > trace.events[e].first;) {
            next[i] = seen[trace.items[i]];
            seen[trace.items[i]] = i;
        }
    }
    return least_key_leaves(trace, capacity, warm_up,
                            [&](uint32_t, uint32_t index, size_t) { return Key{-next[index], 0}; });
}

Reads second_chance(const Trace& trace, size_t capacity, size_t warm_up) {
    struct Slot {
        uint32_t item;
        bool referenced;
    };
    const std::vector<uint32_t> units = item_units(trace);
    std::list<Slot> ring;
    std::vector<std::list<Slot>::iterator> slot_of(units.size(), ring.end());
    auto hand = ring.end();
    size_t used = 0;
    return touch_by_touch(trace, warm_up, [&](uint32_t item, uint32_t, size_t) -> uint64_t {
        if (slot_of[item] != ring.end()) {
            slot_of[item]->referenced = true;
            return 0;
        }
        while (used + units[item] > capacity) {
            if (hand == ring.end()) hand = ring.begin();
            if (std::exchange(hand->referenced, false)) {
                ++hand;
                continue;
            }
            used -= units[hand->item];
            slot_of[hand->item] = ring.end();
            hand = ring.erase(hand);
        }
        slot_of[item] = ring.insert(hand, {item, false});  // behind the hand: it is looked at last
        used += units[item];
        return units[item];
    });
}

// GroupResidency over the groups, items being numbered over all places.
class Groups {
  public:
    Groups(const Trace& trace, size_t capacity, Meter* meter)
        : units_(item_units(trace)), meter_(meter), group_of_(trace.n_items(), 0), hinted_(trace.n_items(), 0) {
        std::vector<pager::Group> groups;
        uint32_t place = 0;
        for (const Place& p : trace.places) {
            if (p.dense) continue;
            for (uint32_t i = 0; i < p.count; ++i) {
                group_of_[p.first + i] = static_cast<uint32_t>(groups.size());
                item_of_.push_back(p.first + i);
                groups.push_back({p.units, place});
            }
            ++place;
        }
        residency_ = std::make_unique<GroupResidency>(std::move(groups), capacity);
    }

    void use(std::span<const uint32_t> items) {
        for (const uint32_t item : items) {
            const GroupResidency::Answer answer = residency_->touch(group_of_[item]);
            if (answer == GroupResidency::Answer::kNoRoom) throw std::runtime_error("the largest use is larger than its budget");
            read_if(answer, item);
            hinted_[item] = 0;
        }
        for (const uint32_t item : items) residency_->release(group_of_[item]);
    }
    void hint(std::span<const uint32_t> items) {
        for (const uint32_t item : items) {
            const GroupResidency::Answer answer = residency_->hint(group_of_[item]);
            read_if(answer, item);
            if (answer == GroupResidency::Answer::kRead) hinted_[item] = 1;
        }
    }
    void cancel(std::span<const uint32_t> items) {
        for (const uint32_t item : items) residency_->cancel(group_of_[item]);
    }
    void end_token() { residency_->end_token(); }

  private:
    void read_if(GroupResidency::Answer answer, uint32_t item) {
        for (const uint32_t g : residency_->evicted()) {
            if (hinted_[item_of_[g]] != 0) meter_->wasted(units_[item_of_[g]]);
            hinted_[item_of_[g]] = 0;
        }
        if (answer != GroupResidency::Answer::kRead) return;
        residency_->arrived(group_of_[item]);
        meter_->read(units_[item]);
    }

    std::vector<uint32_t> units_;
    Meter* meter_;
    std::vector<uint32_t> group_of_;  // by item
    std::vector<uint32_t> item_of_;   // by group
    std::vector<uint8_t> hinted_;     // read for a hint, and not used yet
    std::unique_ptr<GroupResidency> residency_;
};

size_t dense_units(const Trace& trace) {
    size_t units = 0;
    for (const Place& p : trace.places) units += p.dense ? p.count : 0;
    return units;
}

// What streams of the dense places, and through how many frames. pinned is by dense unit, in the walk's order.
pager::Residency dense_residency(const Trace& trace, size_t units) {
    const size_t n = dense_units(trace);
    const size_t budget = split_budget(trace, units).dense;
    if (n > budget && budget < pager::least_frames(kWorkers))
        throw std::runtime_error(std::to_string(units) + " units are too few for two workers");
    return pager::choose_residency(n, budget, {kWorkers});
}

Reads ours(const Trace& trace, size_t units, size_t warm_up) {
    Meter meter(warm_up);
    const Budget budget = split_budget(trace, units);
    const pager::Residency dense = dense_residency(trace, units);
    std::vector<size_t> dense_index(trace.n_items(), SIZE_MAX);
    size_t n = 0;
    for (const Place& p : trace.places)
        for (uint32_t i = 0; p.dense && i < p.count; ++i) dense_index[p.first + i] = n++;
    std::vector<uint8_t> here(n, 0);
    std::unique_ptr<Groups> groups;
    if (n < trace.n_items()) groups = std::make_unique<Groups>(trace, budget.groups, &meter);

    bool begun = false;
    for (const Event& e : trace.events) {
        const auto items = items_of(trace, e);
        if (e.kind == Event::kToken) {
            if (groups && begun) groups->end_token();
            begun = true;
            meter.token();
        } else if (e.kind == Event::kHint) {
            groups->hint(items);
        } else if (e.kind == Event::kCancel) {
            groups->cancel(items);
        } else if (e.count > 0 && dense_index[items[0]] != SIZE_MAX) {
            const size_t d = dense_index[items[0]];
            if (here[d] == 0) meter.read(1);
            here[d] = dense.pinned[d];
        } else {
            groups->use(items);
        }
    }
    return meter.reads();
}

}  // namespace

const char* policy_name(Policy policy) {
    static constexpr std::array kNames = {"LRU", "CLOCK", "LFU", "aged LFU", "ours", "optimum"};
    return kNames[static_cast<size_t>(policy)];
}

Budget split_budget(const Trace& trace, size_t units) {
    size_t largest = 0;  // units of a use of groups
    for (const Event& e : trace.events) {
        if (e.kind != Event::kUse || e.count == 0) continue;
        const Place& place = trace.place_of(trace.items[e.first]);
        if (!place.dense) largest = std::max(largest, size_t{e.count} * place.units);
    }
    Budget b;
    b.dense = std::min(dense_units(trace), units - std::min(units, 2 * largest));
    b.groups = units - b.dense;
    return b;
}

size_t ring_units(const Trace& trace, size_t units) { return dense_residency(trace, units).ring; }

Reads replay(const Trace& trace, Policy policy, size_t units, size_t warm_up) {
    const std::vector<uint32_t> sizes = item_units(trace);
    if (sizes.empty() || units < *std::max_element(sizes.begin(), sizes.end()))
        throw std::runtime_error("a budget of " + std::to_string(units) + " units holds no item");
    switch (policy) {
        case Policy::kLru: return lru(trace, units, warm_up);
        case Policy::kClock: return second_chance(trace, units, warm_up);
        case Policy::kLfu: return lfu(trace, units, warm_up, HUGE_VAL);
        case Policy::kAgedLfu: return lfu(trace, units, warm_up, kAgedLfuTokens);
        case Policy::kOurs: return ours(trace, units, warm_up);
        case Policy::kBelady: return belady(trace, units, warm_up);
    }
    throw std::runtime_error("no such policy");
}

}  // namespace weir::bench
