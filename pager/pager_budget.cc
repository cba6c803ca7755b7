// The part of the loop that follows a budget which changes while workers walk.
//
// A new budget comes as a residency, made by whoever ordered it: pinned sets nest, so a smaller one unpins Extents that are
// here and a larger one pins Extents that stream by. What is unpinned joins the ring, where there may be more than the ring
// holds now; shed() evicts of those what is used last, never what a worker may hold, and gives frames back to the pool
// until it has what the budget says. Reads in flight keep their frames until they have landed.
#include "pager/pager_loop.h"

#include <algorithm>

namespace weir::pager {

void PagerLoop::take_budget() noexcept {
    BudgetOrder* const order = shared_->order.exchange(nullptr, std::memory_order_acquire);
    if (order == nullptr) return;
    std::swap(residency_, order->residency);
    const Residency& before = order->residency;
    std::erase_if(ring_, [this](const Resident& r) { return residency_.pinned[r.extent]; });
    for (uint32_t e = 0; e < layout_.n_extents(); ++e) {
        const bool here = state(e) == kReading || state(e) == kPresent;
        if (here && before.pinned[e] && !residency_.pinned[e]) ring_.push_back({e, next_use(e).value_or(use_at(e, kNever))});
    }
    ring_cap_ = residency_.ring - residency_.staging;
    pool_->want(pool_frames());
    order->taken.store(true, std::memory_order_release);  // acquire in set_budget()
}

void PagerLoop::shed() noexcept {
    while (ring_.size() > ring_cap_ && (evict_consumed() || drop_farthest(beyond_use()))) {
    }
    while (frames_ > pool_frames() && !free_frames_.empty()) {
        pool_->give(free_frames_.back());
        free_frames_.pop_back();
        --frames_;
    }
}

}  // namespace weir::pager
