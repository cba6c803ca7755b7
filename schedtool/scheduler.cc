#include "schedtool/scheduler.h"

#include <algorithm>

namespace weir::sched {

size_t Scheduler::next(const Signal& signal) {
    const size_t before = rung_;
    const bool unsure = signal.entropy > options_.raise_above || signal.margin < options_.unsure_margin;
    if (unsure) {
        sure_ = 0;
        if (rung_ > 0) --rung_;
    } else if (signal.entropy >= options_.lower_below) {
        sure_ = 0;
    } else if (++sure_ >= options_.sure_tokens) {
        sure_ = 0;
        rung_ = std::min(rung_ + 1, rungs_ - 1);
    }
    if (rung_ != before) ++switches_;
    return rung_;
}

std::vector<RatedPlan> make_ladder(const std::vector<RatedPlan>& list, size_t rungs, double most_kl) {
    size_t last = 0;
    while (last + 1 < list.size() && list[last + 1].kl <= most_kl) ++last;
    std::vector<RatedPlan> ladder{list.front()};
    const double step = static_cast<double>(list.front().bytes - list[last].bytes) /
                        static_cast<double>(std::max<size_t>(1, rungs - 1));
    for (size_t i = 1; i <= last; ++i) {
        const double wanted = static_cast<double>(list.front().bytes) - step * static_cast<double>(ladder.size());
        const bool more = ladder.size() + 1 < rungs;
        if (more ? static_cast<double>(list[i].bytes) <= wanted : ladder.size() < rungs && i == last)
            ladder.push_back(list[i]);
    }
    if (rungs > 1 && last > 0 && ladder.back().bytes != list[last].bytes) ladder.push_back(list[last]);
    return ladder;
}

}  // namespace weir::sched
