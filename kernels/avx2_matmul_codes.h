// Products of quantised weights with integer activations. Included by one file per activation form.
//
// The value of an output is defined once, for every path through this file. Accumulator lane b of a (row,
// token) pair belongs to the cells b of its 256-element stretches, which are taken in order:
//     lane[b] = fma(float(integer sum of cell b), scale_w[b] * scale_x[b], lane[b])
//     lane[b] = fma(min_w[b], sum_x[b], lane[b])          (types with groups of 16: low halves, then high
//     ones)
// and sum_of_lanes() makes one float of them. The integer sums are exact, so how they are made is free: one
// row at a time with horizontal adds (few tokens: unpacking is most of the work), or eight rows side by side,
// unpacked once for all tokens, where a vector holds four codes of each row and no horizontal add is needed.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"
#include "kernels/avx2_blocks.h"

namespace weir::kernels::avx2 {
namespace {

static_assert(offsetof(Int8Super, scale) == offsetof(Int16Super, scale) &&
              offsetof(Int8Super, sum) == offsetof(Int16Super, sum) &&
              offsetof(Int8Super, sum_low) == offsetof(Int16Super, sum_low) &&
              offsetof(Int8Super, sum_high) == offsetof(Int16Super, sum_high) &&
              offsetof(Int8Super, codes) == offsetof(Int16Super, codes));
constexpr size_t kScaleAt = offsetof(Int8Super, scale);
constexpr size_t kSumAt = offsetof(Int8Super, sum);
constexpr size_t kSumLowAt = offsetof(Int8Super, sum_low);
constexpr size_t kSumHighAt = offsetof(Int8Super, sum_high);
constexpr size_t kCodesAt = offsetof(Int8Super, codes);

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

// The integer sums of eight cells, for int8 and for int16 activations at `x` (a Super's codes).
struct Int8 {
    using Super = Int8Super;

    // Cell P (low lane) and P + 4 (high): products of unsigned codes, added in pairs; at most 2 * 128 * 127 =
    // 32512. (Int16 comes with bytes down to -128, for codes up to 31.)
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
        if constexpr (W::kMaxCode <= 15) {  // sixteen products of 15 * 128 fit an int16
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

struct Int16 {
    using Super = Int16Super;
    static constexpr size_t kHighAt = offsetof(Int16Super, high) - kCodesAt;
    static constexpr size_t kLowAt = offsetof(Int16Super, low) - kCodesAt;

    // Codes of even and of odd elements as int16, the order in which int16_place() puts activations.
    template <class W>
    [[gnu::always_inline]] static __m256i even(__m256i codes) {
        if constexpr (W::kSigned) return _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8);
        return _mm256_and_si256(codes, _mm256_set1_epi16(255));
    }
    template <class W>
    [[gnu::always_inline]] static __m256i odd(__m256i codes) {
        if constexpr (W::kSigned) return _mm256_srai_epi16(codes, 8);
        return _mm256_srli_epi16(codes, 8);
    }

    template <class W, int P, int H, class S>
    [[gnu::always_inline]] static __m256i products(const S& s, const char* x) {
        const __m256i w = W::template codes<P, H>(s);
        const char* a = x + sizeof(int16_t) * int16_place(P, 16 * H);
        return _mm256_add_epi32(_mm256_madd_epi16(even<W>(w), bytes_at(a)),
                                _mm256_madd_epi16(odd<W>(w), bytes_at(a + 32)));
    }

    template <class W, int P, class S>
    [[gnu::always_inline]] static __m256i cell(const S& s, const char* x) {
        return _mm256_add_epi32(products<W, P, 0>(s, x), products<W, P, 1>(s, x));
    }

    // Small codes are multiplied with the two bytes of the activations: that takes no unpacking to int16, and int16 holds
    // the sums. (Q4_0, one token, from cache: 11.3 to 14.7 GB/s of weights.)
    template <class W, class S>
    [[gnu::always_inline]] static __m256i cells(const S& s, const char* x) {
        if constexpr (W::kMaxCode <= 31) {
            const __m256i high = Int8::cells<W>(s, x + kHighAt);
            return _mm256_add_epi32(_mm256_slli_epi32(high, 8), Int8::cells<W>(s, x + kLowAt));
        } else {
            return sums_of_cells(cell<W, 0>(s, x), cell<W, 1>(s, x), cell<W, 2>(s, x), cell<W, 3>(s, x));
        }
    }

    // The scales of groups would overflow the integers, so each half's sum is scaled as a float.
    template <class W, class S>
    [[gnu::always_inline]] static __m256 scaled_cells(const S& s, __m256i groups, const char* x) {
        const __m256i low = sums_of_cells(products<W, 0, 0>(s, x), products<W, 1, 0>(s, x),
                                          products<W, 2, 0>(s, x), products<W, 3, 0>(s, x));
        const __m256i high = sums_of_cells(products<W, 0, 1>(s, x), products<W, 1, 1>(s, x),
                                           products<W, 2, 1>(s, x), products<W, 3, 1>(s, x));
        const __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(low), low_halves(groups));
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), high_halves(groups), part);
    }
};

// 256 elements of one row against one token.
template <class W, class X, class S>
[[gnu::always_inline]] inline __m256 accumulate(const S& s, const char* x, __m256 lanes) {
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(g.d), floats_at(x + kScaleAt));
        lanes = _mm256_fmadd_ps(X::template scaled_cells<W>(s, g.scale, x + kCodesAt), scale, lanes);
        lanes = _mm256_fmadd_ps(g.min_low, floats_at(x + kSumLowAt), lanes);
        return _mm256_fmadd_ps(g.min_high, floats_at(x + kSumHighAt), lanes);
    } else {
        __m256 scale, min;
        W::scales(s, scale, min);
        scale = _mm256_mul_ps(scale, floats_at(x + kScaleAt));
        lanes = _mm256_fmadd_ps(_mm256_cvtepi32_ps(X::template cells<W>(s, x + kCodesAt)), scale, lanes);
        return W::kSigned ? lanes : _mm256_fmadd_ps(min, floats_at(x + kSumAt), lanes);
    }
}

// How far ahead of the block in work the row's bytes are asked for. The hardware's prefetcher stops at page
// borders.
constexpr size_t kPrefetchBytes = 2048;

template <class W, class X>
float dot(const typename W::Block* row, size_t k, const char* x) {
    using Block = typename W::Block;
    __m256 lanes = _mm256_setzero_ps();
    const size_t supers = k / kSuperElements;
    for (size_t i = 0; i < supers; ++i) {
        const char* ahead = reinterpret_cast<const char*>(row) + kPrefetchBytes;
        for (size_t line = 0; line < sizeof(Block) * W::kBlocks; line += 64)
            _mm_prefetch(ahead + line, _MM_HINT_T0);
        lanes = accumulate<W, X>(Blocks<Block>{row}, x, lanes);
        row += W::kBlocks;
        x += sizeof(typename X::Super);
    }
    const size_t left = k % kSuperElements / kCellElements;
    if (left != 0) lanes = accumulate<W, X>(LastBlocks<Block>(row, left), x, lanes);
    return sum_of_lanes(lanes);
}

}  // namespace
}  // namespace weir::kernels::avx2
