// Products of quantised weights with integer activations, row by row: for few tokens. Included, as is avx2_tile.h for many,
// by the files that make a table's products: with the instructions that bytes are multiplied by (I: avx2_maddubs.h,
// dpbusd.h) and the form of the activations (X).
//
// The value of an output is defined once, for every path through this file. Accumulator lane b of a (row,
// token) pair belongs to the cells b of its 256-element stretches, which are taken in order:
//     lane[b] = fma(integer sum of cell b, scale_w[b] * scale_x[b], lane[b])
//     lane[b] = fma(min_w[b], sum_x[b], lane[b])          (types with groups of 16: low halves, then high ones)
// and sum_of_lanes() makes one float of them. Fine's sum is 128 * float(sum with high bytes) + float(sum with low
// bytes), and the latter is zero where no cell is fine. The integer sums are exact, so how they are made is free: one
// row at a time with horizontal adds (few tokens: bringing rows side by side is most of the work), or sixteen rows side by
// side, unpacked once for all tokens, where a vector holds four codes of each row and no horizontal add is needed.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/activation.h"
#include "kernels/avx2_unpacked.h"

namespace weir::kernels::avx2 {
namespace {

constexpr size_t kScaleAt = offsetof(Super, scale);
constexpr size_t kSumAt = offsetof(Super, sum);
constexpr size_t kSumLowAt = offsetof(Super, sum_low);
constexpr size_t kSumHighAt = offsetof(Super, sum_high);
constexpr size_t kCodesAt = offsetof(Super, codes);

// Four vectors whose lanes hold parts of cells P (low) and P + 4 (high), P = 0 to 3, into one: entry b is
// cell b's sum.
[[gnu::always_inline]] inline __m256i sums_of_cells(__m256i v0, __m256i v1, __m256i v2, __m256i v3) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(v0, v1), _mm256_hadd_epi32(v2, v3));
}

// The two integer forms of activations.
struct Int8 {
    static constexpr bool kTwoBytes = false;
};
struct Fine {
    static constexpr bool kTwoBytes = true;
};

// 256 elements of one row against one token: its Super, and its low bytes where there are any.
template <class W, class I, class S>
[[gnu::always_inline]] inline __m256 accumulate(const S& s, const char* x, bool two_bytes, const char* low, __m256 lanes) {
    const __m256 unit = _mm256_set1_ps(kHighUnit);
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(g.d), floats_at(x + kScaleAt));
        __m256 sums = I::template scaled_cells<W>(s, g.scale, x + kCodesAt);
        if (two_bytes) sums = _mm256_mul_ps(sums, unit);
        if (low != nullptr) sums = _mm256_add_ps(sums, I::template scaled_cells<W>(s, g.scale, low));
        lanes = _mm256_fmadd_ps(sums, scale, lanes);
        lanes = _mm256_fmadd_ps(g.min_low, floats_at(x + kSumLowAt), lanes);
        return _mm256_fmadd_ps(g.min_high, floats_at(x + kSumHighAt), lanes);
    } else {
        __m256 scale, min;
        W::scales(s, scale, min);
        scale = _mm256_mul_ps(scale, floats_at(x + kScaleAt));
        __m256 sums = _mm256_cvtepi32_ps(I::template cells<W>(s, x + kCodesAt));
        if (two_bytes) sums = _mm256_mul_ps(sums, unit);
        if (low != nullptr) sums = _mm256_add_ps(sums, _mm256_cvtepi32_ps(I::template cells<W>(s, low)));
        lanes = _mm256_fmadd_ps(sums, scale, lanes);
        return W::kSigned ? lanes : _mm256_fmadd_ps(min, floats_at(x + kSumAt), lanes);
    }
}

// How far ahead of the block in work the row's bytes are asked for. The hardware's prefetcher stops at page
// borders.
constexpr size_t kPrefetchBytes = 2048;

[[gnu::always_inline]] inline void ask_for(const char* at, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T0);
}

// The rows of one product.
struct Source {
    const char* at;
    size_t row_bytes;
    size_t super_bytes;  // of 256 elements
    Unpack unpack;
    size_t k;

    const char* row(size_t r) const { return at + r * row_bytes; }
    size_t supers() const { return (k + kSuperElements - 1) / kSuperElements; }
    // How many cells there are from 256 elements on, at most as many as those have.
    size_t cells_from(size_t super) const {
        const size_t left = k / kCellElements - super * kCellsPerSuper;
        return left < kCellsPerSuper ? left : kCellsPerSuper;
    }
};

// The activations of a few tokens.
struct Tokens {
    const char* x;
    size_t stride;
    size_t supers;

    const char* super(size_t t, size_t i) const { return x + t * stride + i * sizeof(Super); }
    // nullptr where no cell is fine.
    template <class X>
    [[gnu::always_inline]] const char* low(size_t t, size_t i) const {
        const char* const row = x + t * stride;
        return X::kTwoBytes && row[fine_at(supers) + i] != 0 ? row + low_at(supers) + i * kSuperElements : nullptr;
    }
};

// One row against T tokens, each value `y_stride` behind the one before: for the types that are worth it.
template <class W, class I, class X, size_t T>
void dot(const Source& w, size_t r, const Tokens& tokens, float* y, size_t y_stride) {
    using Block = typename W::Block;
    const auto* row = reinterpret_cast<const Block*>(w.row(r));
    LastBlocks<Block> last;
    __m256 lanes[T];
    for (__m256& lane : lanes) lane = _mm256_setzero_ps();
    for (size_t i = 0; i < tokens.supers; ++i, row += W::kBlocks) {
        if (W::kBlocks != 1 && w.cells_from(i) < kCellsPerSuper) row = last.fill(row, w.cells_from(i));
        ask_for(reinterpret_cast<const char*>(row) + kPrefetchBytes, sizeof(Block) * W::kBlocks);
        const Blocks<Block> s{row};
        const auto add = [&]<class R>(const auto& weights, size_t t) __attribute__((always_inline)) {
            const char* const low = tokens.low<X>(t, i);
            lanes[t] = accumulate<R, I>(weights, tokens.super(t, i), X::kTwoBytes, low, lanes[t]);
        };
        if constexpr (T == 1) {
            add.template operator()<W>(s, 0);
        } else {
            Unpacked unpacked;
            unpack_whole<W>(s, unpacked);
#pragma GCC unroll 4
            for (size_t t = 0; t < T; ++t) add.template operator()<ReadyOf<W>>(unpacked, t);
        }
    }
    for (size_t t = 0; t < T; ++t) y[t * y_stride] = sum_of_lanes(lanes[t]);
}

// The same for all types of a class, which a call unpacks. Where the call stands in the way of four tokens, it costs up to
// the time of the products (Q6_K, fine: 35 to 81 ms).
template <class R, class I, class X, size_t T>
void dot_unpacked(const Source& w, size_t r, const Tokens& tokens, float* y, size_t y_stride) {
    __m256 lanes[T];
    for (__m256& lane : lanes) lane = _mm256_setzero_ps();
    const char* row = w.row(r);
    Unpacked unpacked;
    for (size_t i = 0; i < tokens.supers; ++i, row += w.super_bytes) {
        ask_for(row + kPrefetchBytes, w.super_bytes);
        w.unpack(row, w.cells_from(i), unpacked);
#pragma GCC unroll 4
        for (size_t t = 0; t < T; ++t) {
            lanes[t] = accumulate<R, I>(unpacked, tokens.super(t, i), X::kTwoBytes, tokens.low<X>(t, i), lanes[t]);
        }
    }
    for (size_t t = 0; t < T; ++t) y[t * y_stride] = sum_of_lanes(lanes[t]);
}

using Dot = void (*)(const Source& w, size_t r, const Tokens& tokens, float* y, size_t y_stride);

// For one token, two and four.
struct Dots {
    Dot one, two, four;
};

inline void multiply_few(const Dots& dots, const Source& w, size_t rows, const Tokens& all, size_t tokens, float* y,
                         size_t y_stride) {
    for (size_t r = 0; r < rows; ++r) {
        for (size_t t = 0; t < tokens;) {
            const size_t step = tokens - t >= 4 ? 4 : tokens - t >= 2 ? 2 : 1;
            const Dot dot_of = step == 4 ? dots.four : step == 2 ? dots.two : dots.one;
            dot_of(w, r, {all.x + t * all.stride, all.stride, all.supers}, y + t * y_stride + r, y_stride);
            t += step;
        }
    }
}

}  // namespace
}  // namespace weir::kernels::avx2
