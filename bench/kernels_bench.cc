// Speed of the matrix kernels on one core, from a working set well beyond any cache (few tokens: bytes of
// weights per second) and from a cached one (many tokens: operations per second). WEIR_KERNELS forces a
// table.
//
//   kernels_bench --benchmark_filter='matmul/Q4_K/int8/.*'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/quantize_weights.h"

namespace {

using namespace weir::kernels;

constexpr size_t kColumns = 4096;
constexpr size_t kStreamBytes = size_t{128} << 20;  // four times the 32 MiB of a usual third-level cache
constexpr size_t kCachedRows = 1024;
constexpr size_t kFewTokens = 16;

const KernelSet* kernel_set() {
    static const KernelSet* set = select_kernels(std::getenv("WEIR_KERNELS"));
    return set;
}

std::vector<float> random_floats(size_t n, float scale) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> v(n);
    for (float& x : v) x = normal(generator) * scale;
    return v;
}

// Random weights of `rows` rows: one quantised, the others the same, which a kernel cannot tell.
std::vector<std::byte> weights_of(Type type, size_t rows) {
    const size_t bytes = row_bytes(type, kColumns);
    std::vector<std::byte> w(rows * bytes);
    quantize_weights(type, random_floats(kColumns, 0.02f).data(), w.data(), kColumns);
    for (size_t r = 1; r < rows; ++r)
        std::copy_n(w.begin(), bytes, w.begin() + static_cast<ptrdiff_t>(r * bytes));
    return w;
}

void matmul(benchmark::State& state, Type type, Activation a, size_t tokens) {
    const size_t rows = tokens <= kFewTokens ? kStreamBytes / row_bytes(type, kColumns) : kCachedRows;
    const std::vector<std::byte> w = weights_of(type, rows);
    const std::vector<float> x = random_floats(tokens * kColumns, 1.0f);
    const size_t stride = activation_bytes(a, kColumns);
    std::vector<std::byte> packed(tokens * stride);
    for (size_t t = 0; t < tokens; ++t) {
        kernel_set()->quantize(a, x.data() + t * kColumns, kColumns, packed.data() + t * stride);
    }
    std::vector<float> y(tokens * rows);
    for (auto _ : state) {
        kernel_set()->matmul(type, a, w.data(), rows, kColumns, packed.data(), stride, tokens, y.data(),
                             rows);
        benchmark::ClobberMemory();
    }
    const auto passes = static_cast<double>(state.iterations());
    state.counters["weights/s"] = benchmark::Counter(
        passes * static_cast<double>(w.size()), benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
    state.counters["op/s"] = benchmark::Counter(passes * 2.0 * static_cast<double>(rows * kColumns * tokens),
                                                benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void quantize(benchmark::State& state, Activation a) {
    const std::vector<float> x = random_floats(kColumns, 1.0f);
    std::vector<std::byte> packed(activation_bytes(a, kColumns));
    for (auto _ : state) {
        kernel_set()->quantize(a, x.data(), kColumns, packed.data());
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kColumns));
}

void softmax(benchmark::State& state) {
    const std::vector<float> x = random_floats(kColumns, 1.0f);
    std::vector<float> y = x;
    for (auto _ : state) {
        std::copy(x.begin(), x.end(), y.begin());
        kernel_set()->softmax(y.data(), y.size());
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kColumns));
}

const char* name_of(Activation a) {
    switch (a) {
        case Activation::kInt8:
            return "int8";
        case Activation::kFine:
            return "fine";
        case Activation::kF32:
            break;
    }
    return "f32";
}

}  // namespace

int main(int argc, char** argv) {
    if (kernel_set() == nullptr) {
        std::fprintf(stderr, "kernels_bench: WEIR_KERNELS names no kernels that run here\n");
        return 2;
    }
    for (const TypeTraits& t : all_traits()) {
        for (const Activation a : {Activation::kInt8, Activation::kFine, Activation::kF32}) {
            if (activation_for(t.type, kColumns, a) != a) continue;
            for (const size_t tokens : {size_t{1}, size_t{2}, size_t{4}, size_t{6}, size_t{8}, kFewTokens, size_t{64}}) {
                const std::string name =
                    std::string("matmul/") + t.name + "/" + name_of(a) + "/" + std::to_string(tokens);
                benchmark::RegisterBenchmark(name.c_str(), matmul, t.type, a, tokens)
                    ->Unit(benchmark::kMillisecond);
            }
        }
    }
    benchmark::RegisterBenchmark("quantize/int8", quantize, Activation::kInt8);
    benchmark::RegisterBenchmark("quantize/fine", quantize, Activation::kFine);
    benchmark::RegisterBenchmark("softmax", softmax);
    benchmark::AddCustomContext("kernels", kernel_set()->name);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
