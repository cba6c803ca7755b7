#include "runtime/cli/watch_memory.h"

#include <chrono>
#include <utility>
#include <vector>

#include "runtime/cli/run_report.h"

namespace weir {

std::unique_ptr<PressureMonitor> watch_memory(const RunOptions& o, const Budget& budget, WeightStore* store,
                                              std::function<uint64_t(uint64_t)> set_budget) {
    if (o.store.mode != PagingMode::kUffd || (!o.pressure && o.budget_script.empty())) return nullptr;
    const uint64_t whole = read_memory_limits().whole();
    std::vector<BudgetStep> steps;
    for (const TimedSize& step : o.budget_script)
        steps.push_back({std::chrono::milliseconds(step.at_ms), frames_within(budget, step.size.of(whole))});
    PressureMonitor::Hooks hooks;
    hooks.set_budget = std::move(set_budget);
    if (!hooks.set_budget) hooks.set_budget = [store](uint64_t bytes) { return store->set_frame_bytes(bytes); };
    if (!o.quiet) {
        hooks.on_change = [&budget](uint64_t before, uint64_t now, const std::string& reason) {
            print_budget_change(budget, before, now, reason);
        };
    }
    const StoreStats s = store->stats();
    return std::make_unique<PressureMonitor>(s.frame_bytes, s.extent_bytes, o.pressure, std::move(steps), std::move(hooks));
}

}  // namespace weir
