// What a decision costs: GroupResidency on experts' traces at half the memory, and dividing a dense model's frames.
//
//   policy_bench
//
// For groups an iteration is a token, `touch` is the time per touched group, hints and what is evicted for it included.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/paging_trace.h"
#include "pager/group_residency.h"
#include "pager/residency_policy.h"

namespace {

using namespace weir;

// Arguments: layers, experts, used.
void groups(benchmark::State& state) {
    bench::ExpertShape shape;
    shape.layers = static_cast<size_t>(state.range(0));
    shape.experts = static_cast<size_t>(state.range(1));
    shape.used = static_cast<size_t>(state.range(2));
    shape.tokens = 64;
    shape.skew = 0.8;
    const bench::Trace trace = bench::make_experts("bench", shape);
    std::vector<pager::Group> list;
    for (uint32_t p = 0; p < trace.places.size(); ++p) list.insert(list.end(), trace.places[p].count, {trace.places[p].units, p});
    pager::GroupResidency residency(list, list.size() / 2);
    size_t event = 0, touches = 0, misses = 0;
    const auto step = [&](const bench::Event& e) {
        const auto items = [&](uint32_t i) { return trace.items[e.first + i]; };
        for (uint32_t i = 0; i < e.count; ++i) {
            if (residency.touch(items(i)) != pager::GroupResidency::Answer::kRead) continue;
            residency.arrived(items(i));
            ++misses;
        }
        for (uint32_t i = 0; i < e.count; ++i) residency.release(items(i));
        touches += e.count;
    };
    for (auto _ : state) {
        do {
            const bench::Event& e = trace.events[event];
            if (e.kind == bench::Event::kUse) step(e);
            event = (event + 1) % trace.events.size();
        } while (trace.events[event].kind != bench::Event::kToken);
        residency.end_token();
    }
    state.counters["touch"] = benchmark::Counter(static_cast<double>(touches), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    state.counters["misses"] = static_cast<double>(misses) / static_cast<double>(touches);
}
BENCHMARK(groups)->ArgNames({"layers", "experts", "used"})->Args({16, 64, 8})->Args({48, 128, 8})->Args({58, 256, 8})
    ->Unit(benchmark::kMicrosecond)->MinTime(0.3)->UseRealTime();

void dense_residency(benchmark::State& state) {
    const auto n = static_cast<size_t>(state.range(0));
    for (auto _ : state) benchmark::DoNotOptimize(pager::choose_residency(n, n / 2, {2}));
}
BENCHMARK(dense_residency)->ArgName("extents")->Arg(950)->Arg(3700)->Unit(benchmark::kMicrosecond)->MinTime(0.2)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
