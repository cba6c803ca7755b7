// Products of quantised weights with integer activations. Included by one file per activation form.
//
// The value of an output is defined once, for every path through this file. Accumulator lane b of a (row,
// token) pair belongs to the cells b of its 256-element stretches, which are taken in order:
//     lane[b] = fma(integer sum of cell b, scale_w[b] * scale_x[b], lane[b])
//     lane[b] = fma(min_w[b], sum_x[b], lane[b])          (types with groups of 16: low halves, then high
//     ones)
// and sum_of_lanes() makes one float of them. Fine's sum is 128 * float(sum with high bytes) + float(sum with low
// bytes), and the latter is zero where no cell is fine. The integer sums are exact, so how they are made is free: one
// row at a time with horizontal adds (few tokens: bringing rows side by side is most of the work), or eight rows side by
// side, unpacked once for all tokens, where a vector holds four codes of each row and no horizontal add is needed.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/activation.h"
#include "kernels/avx2_blocks.h"

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

[[gnu::always_inline]] inline __m256i add_pairs(__m256i int16s) {
    return _mm256_madd_epi16(int16s, _mm256_set1_epi16(1));
}

// Scale of group 2 * P + H in the low lane, of group 2 * (P + 4) + H in the high one, eight times each.
template <int P, int H>
[[gnu::always_inline]] inline __m256i group_scales(__m256i groups) {
    constexpr int kPair = (4 * P + 2 * H) | (4 * P + 2 * H + 1) << 8;
    return _mm256_shuffle_epi8(groups, _mm256_set1_epi16(static_cast<int16_t>(kPair)));
}

// The sums of eight cells over bytes at `x`, which int8_place() put there.
struct Bytes {
    // Cell P (low lane) and P + 4 (high): products of unsigned codes, added in pairs; at most 2 * 128 * 127 =
    // 32512.
    template <class W, int P, int H, class S>
    [[gnu::always_inline]] static __m256i products(const S& s, const char* x) {
        const __m256i w = W::template codes<P, H>(s);
        const __m256i a = bytes_at(x + int8_place(P, 16 * H));
        if constexpr (W::kSigned) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
        return _mm256_maddubs_epi16(w, a);
    }

    template <class W, int P, class S>
    [[gnu::always_inline]] static __m256i cell16(const S& s, const char* x) {
        return _mm256_add_epi16(products<W, P, 0>(s, x), products<W, P, 1>(s, x));
    }

    template <class W, int P, class S>
    [[gnu::always_inline]] static __m256i cell32(const S& s, const char* x) {
        return _mm256_add_epi32(add_pairs(products<W, P, 0>(s, x)), add_pairs(products<W, P, 1>(s, x)));
    }

    template <class W, class S>
    [[gnu::always_inline]] static __m256i cells(const S& s, const char* x) {
        if constexpr (W::kMaxCode <= 15) {  // sixteen products of 15 * 127 fit an int16
            const __m256i v01 = _mm256_hadd_epi16(cell16<W, 0>(s, x), cell16<W, 1>(s, x));
            const __m256i v23 = _mm256_hadd_epi16(cell16<W, 2>(s, x), cell16<W, 3>(s, x));
            return add_pairs(_mm256_hadd_epi16(v01, v23));
        } else if constexpr (W::kMaxCode <= 31) {  // eight do
            const __m256i v01 = _mm256_hadd_epi16(cell16<W, 0>(s, x), cell16<W, 1>(s, x));
            const __m256i v23 = _mm256_hadd_epi16(cell16<W, 2>(s, x), cell16<W, 3>(s, x));
            return _mm256_hadd_epi32(add_pairs(v01), add_pairs(v23));
        } else {
            return sums_of_cells(cell32<W, 0>(s, x), cell32<W, 1>(s, x), cell32<W, 2>(s, x),
                                 cell32<W, 3>(s, x));
        }
    }

    template <class W, int P, class S>
    [[gnu::always_inline]] static __m256i scaled_cell(const S& s, __m256i groups, const char* x) {
        return _mm256_add_epi32(_mm256_madd_epi16(products<W, P, 0>(s, x), group_scales<P, 0>(groups)),
                                _mm256_madd_epi16(products<W, P, 1>(s, x), group_scales<P, 1>(groups)));
    }

    // Sums of the cells with the groups' integer scales in them; at most 32 * 63 * 127 * 128.
    template <class W, class S>
    [[gnu::always_inline]] static __m256 scaled_cells(const S& s, __m256i groups, const char* x) {
        return _mm256_cvtepi32_ps(
            sums_of_cells(scaled_cell<W, 0>(s, groups, x), scaled_cell<W, 1>(s, groups, x),
                          scaled_cell<W, 2>(s, groups, x), scaled_cell<W, 3>(s, groups, x)));
    }
};

// The two integer forms of activations.
struct Int8 {
    static constexpr bool kTwoBytes = false;
};
struct Fine {
    static constexpr bool kTwoBytes = true;
};

// 256 elements of one row against one token: its Super, and its low bytes where there are any.
template <class W, class S>
[[gnu::always_inline]] inline __m256 accumulate(const S& s, const char* x, bool two_bytes, const char* low, __m256 lanes) {
    const __m256 unit = _mm256_set1_ps(kHighUnit);
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(g.d), floats_at(x + kScaleAt));
        __m256 sums = Bytes::scaled_cells<W>(s, g.scale, x + kCodesAt);
        if (two_bytes) sums = _mm256_mul_ps(sums, unit);
        if (low != nullptr) sums = _mm256_add_ps(sums, Bytes::scaled_cells<W>(s, g.scale, low));
        lanes = _mm256_fmadd_ps(sums, scale, lanes);
        lanes = _mm256_fmadd_ps(g.min_low, floats_at(x + kSumLowAt), lanes);
        return _mm256_fmadd_ps(g.min_high, floats_at(x + kSumHighAt), lanes);
    } else {
        __m256 scale, min;
        W::scales(s, scale, min);
        scale = _mm256_mul_ps(scale, floats_at(x + kScaleAt));
        __m256 sums = _mm256_cvtepi32_ps(Bytes::cells<W>(s, x + kCodesAt));
        if (two_bytes) sums = _mm256_mul_ps(sums, unit);
        if (low != nullptr) sums = _mm256_add_ps(sums, _mm256_cvtepi32_ps(Bytes::cells<W>(s, low)));
        lanes = _mm256_fmadd_ps(sums, scale, lanes);
        return W::kSigned ? lanes : _mm256_fmadd_ps(min, floats_at(x + kSumAt), lanes);
    }
}

// How far ahead of the block in work the row's bytes are asked for. The hardware's prefetcher stops at page
// borders.
constexpr size_t kPrefetchBytes = 2048;

// 256 elements of one row, unpacked: a type like W, for which unpacking costs nothing any more.
template <class W>
struct Ready {
    static constexpr int kMaxCode = W::kMaxCode;
    static constexpr bool kSigned = W::kSigned, kGroups = W::kGroups;

    __m256i code[kCellsPerSuper];  // [2 * P + H], see codes<P, H>()
    __m256 scale, min;
    Groups group;

    template <class S>
    [[gnu::always_inline]] explicit Ready(const S& s)
        : code{W::template codes<0, 0>(s), W::template codes<0, 1>(s), W::template codes<1, 0>(s), W::template codes<1, 1>(s),
               W::template codes<2, 0>(s), W::template codes<2, 1>(s), W::template codes<3, 0>(s), W::template codes<3, 1>(s)} {
        if constexpr (W::kGroups) {
            group = W::groups(s);
        } else {
            W::scales(s, scale, min);
        }
    }
    template <int P, int H>
    [[gnu::always_inline]] static __m256i codes(const Ready& s) {
        return s.code[2 * P + H];
    }
    [[gnu::always_inline]] static void scales(const Ready& s, __m256& scale, __m256& min) {
        scale = s.scale;
        min = s.min;
    }
    [[gnu::always_inline]] static Groups groups(const Ready& s) { return s.group; }
};

// One row against T tokens, each value `y_stride` behind the one before.
template <class W, class X, size_t T>
void dot(const typename W::Block* row, size_t k, const char* x, size_t x_stride, float* y, size_t y_stride) {
    using Block = typename W::Block;
    __m256 lanes[T];
    for (__m256& lane : lanes) lane = _mm256_setzero_ps();
    const size_t supers = k / kSuperElements;
    const size_t left = k % kSuperElements / kCellElements;
    const size_t all = supers + (left != 0 ? 1 : 0);
    const char* const lows = x + low_at(all);
    const char* const fine = x + fine_at(all);
    const auto add = [&](const auto& blocks, size_t i) __attribute__((always_inline)) {
        const auto token = [&](const auto& s, size_t t) __attribute__((always_inline)) {
            using Weights = std::conditional_t<T == 1, W, Ready<W>>;
            const char* const low = X::kTwoBytes && fine[t * x_stride + i] != 0 ? lows + t * x_stride + i * kSuperElements : nullptr;
            lanes[t] = accumulate<Weights>(s, x + t * x_stride + i * sizeof(Super), X::kTwoBytes, low, lanes[t]);
        };
        if constexpr (T == 1) {
            token(blocks, 0);
        } else {
            const Ready<W> ready(blocks);
#pragma GCC unroll 4
            for (size_t t = 0; t < T; ++t) token(ready, t);
        }
    };
    for (size_t i = 0; i < supers; ++i) {
        const char* ahead = reinterpret_cast<const char*>(row) + kPrefetchBytes;
        for (size_t line = 0; line < sizeof(Block) * W::kBlocks; line += 64)
            _mm_prefetch(ahead + line, _MM_HINT_T0);
        add(Blocks<Block>{row}, i);
        row += W::kBlocks;
    }
    if (left != 0) add(LastBlocks<Block>(row, left), supers);
    for (size_t t = 0; t < T; ++t) y[t * y_stride] = sum_of_lanes(lanes[t]);
}

}  // namespace
}  // namespace weir::kernels::avx2
