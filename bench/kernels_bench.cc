// Speed of the matrix kernels on one core, from a working set well beyond any cache (few tokens: bytes of
// weights per second) and from a cached one (many tokens: operations per second). WEIR_KERNELS forces a
// table.
//
//   kernels_bench --benchmark_filter='matmul/Q4_K/int8/.*'
//   kernels_bench --benchmark_filter='nested/640/8/fine/.*'     rows of 640, level 8
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/nested.h"
#include "kernels/quantize_weights.h"

namespace {

using namespace weir::kernels;

constexpr size_t kColumns = 4096;
constexpr size_t kSuper = 256;  // weights of a super-block
constexpr size_t kStreamBytes = size_t{128} << 20;  // four times the 32 MiB of a usual third-level cache
constexpr size_t kCachedRows = 1024;
constexpr size_t kFewTokens = 16;
// Rows that end in a short super-block, and others of the same model (Gemma 3 270M).
constexpr size_t kNestedColumns[] = {640, 1024, 2048, kColumns};

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

// Activations as a gate leaves them: some 8 in 100 cells of the fine form are fine, where real models have 10 to 12.
std::vector<float> random_products(size_t n) {
    std::mt19937 generator(2);
    std::normal_distribution<float> normal;
    std::vector<float> v(n);
    for (float& x : v) x = normal(generator) * normal(generator);
    return v;
}

// Random weights of `rows` rows: one quantised, the others the same, which a kernel cannot tell.
std::vector<std::byte> repeat(const std::vector<std::byte>& row, size_t rows) {
    std::vector<std::byte> w(rows * row.size());
    for (size_t r = 0; r < rows; ++r)
        std::copy(row.begin(), row.end(), w.begin() + static_cast<ptrdiff_t>(r * row.size()));
    return w;
}

std::vector<std::byte> weights_of(Type type, size_t rows, size_t columns) {
    std::vector<std::byte> row(row_bytes(type, columns));
    quantize_weights(type, random_floats(columns, 0.02f).data(), row.data(), columns);
    return repeat(row, rows);
}

size_t rows_for(size_t tokens, size_t bytes_of_row) {
    return tokens <= kFewTokens ? kStreamBytes / bytes_of_row : kCachedRows;
}

// multiply(x, stride, y): one product with packed activations.
template <class Multiply>
void run_product(benchmark::State& state, Activation a, size_t rows, size_t columns, size_t tokens, size_t bytes_of_row,
                 Multiply&& multiply) {
    const std::vector<float> x = random_products(tokens * columns);
    const size_t stride = activation_bytes(a, columns);
    std::vector<std::byte> packed(tokens * stride);
    for (size_t t = 0; t < tokens; ++t) {
        kernel_set()->quantize(a, x.data() + t * columns, columns, packed.data() + t * stride);
    }
    std::vector<float> y(tokens * rows);
    for (auto _ : state) {
        multiply(packed.data(), stride, y.data());
        benchmark::ClobberMemory();
    }
    const auto passes = static_cast<double>(state.iterations());
    state.counters["weights/s"] = benchmark::Counter(passes * static_cast<double>(rows * bytes_of_row),
                                                     benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
    state.counters["op/s"] = benchmark::Counter(passes * 2.0 * static_cast<double>(rows * columns * tokens),
                                                benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void matmul(benchmark::State& state, Type type, Activation a, size_t columns, size_t tokens) {
    const size_t rows = rows_for(tokens, row_bytes(type, columns));
    const std::vector<std::byte> w = weights_of(type, rows, columns);
    const auto multiply = [&](const std::byte* x, size_t stride, float* y) {
        kernel_set()->matmul(type, a, w.data(), rows, columns, x, stride, tokens, y, rows);
    };
    run_product(state, a, rows, columns, tokens, row_bytes(type, columns), multiply);
}

void nested(benchmark::State& state, Level level, Activation a, size_t columns, size_t tokens) {
    const size_t rows = rows_for(tokens, level_row_bytes(level, columns));
    const std::vector<float> weights = random_floats(columns, 0.02f);
    std::vector<std::byte> row[kPlanes];
    std::byte* to[kPlanes];
    for (size_t p = 0; p < kPlanes; ++p) {
        row[p].resize(plane_row_bytes(static_cast<Plane>(p), columns));
        to[p] = row[p].data();
    }
    for (size_t at = 0; at < columns; at += kSuper) {
        NestedBlock block;
        fit_nested(weights.data() + at, std::min(kSuper, columns - at), &block);
        pack_nested(block, at / kSuper, columns, to);
    }
    std::vector<std::byte> planes[kPlanes];
    NestedRows w;
    for (size_t p = 0; p < kPlanes; ++p) {
        if (!reads_plane(level, static_cast<Plane>(p))) continue;
        planes[p] = repeat(row[p], rows);
        w.plane[p] = planes[p].data();
    }
    const auto multiply = [&](const std::byte* x, size_t stride, float* y) {
        kernel_set()->matmul_nested(level, a, w, rows, columns, x, stride, tokens, y, rows);
    };
    run_product(state, a, rows, columns, tokens, level_row_bytes(level, columns), multiply);
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
        case Activation::kWhole:
            return "whole";
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
        for (const Activation a : {Activation::kInt8, Activation::kFine, Activation::kWhole, Activation::kF32}) {
            if (activation_for(t.type, kColumns, a) != a) continue;
            for (const size_t tokens : {size_t{1}, size_t{2}, size_t{4}, size_t{6}, size_t{8}, kFewTokens, size_t{64}}) {
                const std::string name =
                    std::string("matmul/") + t.name + "/" + name_of(a) + "/" + std::to_string(tokens);
                benchmark::RegisterBenchmark(name.c_str(), matmul, t.type, a, kColumns, tokens)
                    ->Unit(benchmark::kMillisecond);
            }
        }
    }
    for (const size_t columns : kNestedColumns) {
        for (const Activation a : {Activation::kInt8, Activation::kFine, Activation::kWhole}) {
            for (const size_t tokens : {1, 2, 3, 4, 6, 8, 16, 64}) {
                const auto add = [&](const char* what, const std::string& which, auto run, auto type) {
                    const std::string name = std::string(what) + "/" + std::to_string(columns) + "/" + which + "/" +
                                             name_of(a) + "/" + std::to_string(tokens);
                    benchmark::RegisterBenchmark(name.c_str(), run, type, a, columns, tokens)
                        ->Unit(benchmark::kMillisecond);
                };
                for (const Level level : kLevels) {
                    add("nested", std::to_string(static_cast<int>(level)), nested, level);
                }
                // What a level is measured by.
                for (const Type type : {Type::kQ8_0, Type::kQ4_0, Type::kQ4_K}) {
                    if (columns % traits(type).block_elements == 0) add("rows", traits(type).name, matmul, type);
                }
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
