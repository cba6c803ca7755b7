// How AVX2 multiplies bytes: pairs into int16, which are added up there as far as they fit. One of the instruction sets
// (I) of avx2_matmul_codes.h and avx2_tile.h. Internal to kernels/.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_tile.h"

namespace weir::kernels::avx2 {
namespace {

[[gnu::always_inline]] inline __m256i add_pairs(__m256i int16s) {
    return _mm256_madd_epi16(int16s, _mm256_set1_epi16(1));
}

// Scale of group 2 * P + H in the low lane, of group 2 * (P + 4) + H in the high one, eight times each.
template <int P, int H>
[[gnu::always_inline]] inline __m256i group_scales(__m256i groups) {
    constexpr int kPair = (4 * P + 2 * H) | (4 * P + 2 * H + 1) << 8;
    return _mm256_shuffle_epi8(groups, _mm256_set1_epi16(static_cast<int16_t>(kPair)));
}

// How many steps of four columns, of 2 * 127 * kMaxCode each, an int16 sum may take within one scale.
template <class C>
constexpr size_t kSteps = C::kMaxCode <= 7    ? 4
                          : C::kMaxCode <= 15 ? 8
                          : C::kMaxCode <= 31 ? 4
                          : C::kMaxCode <= 63 ? 2
                                              : 1;

struct Maddubs {
    template <class W>
    static constexpr bool kOwnPath = kIsAnyOf<W, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K>;

    // ---- a row

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

    // ---- a tile: two vectors of eight rows. A broadcast of four activations is used for each of them, which keeps the
    // loads below the multiplications and leaves registers for four tokens (one vector: 80, two 106, three 110 GMAC/s,
    // Q4_0 in int8 from cache).
    using Floats = __m256;
    static constexpr size_t kVectors = 2;
    static constexpr size_t kTokens = 4;

    [[gnu::always_inline]] static Floats floats(const float* rows, size_t v) { return _mm256_load_ps(rows + 8 * v); }
    [[gnu::always_inline]] static void store(float* rows, size_t v, Floats f) { _mm256_store_ps(rows + 8 * v, f); }
    [[gnu::always_inline]] static Floats all(float f) { return _mm256_set1_ps(f); }
    [[gnu::always_inline]] static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    [[gnu::always_inline]] static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

    // A code w below zero times a is |w| * ~a + |w|. To flip bits is for any port, to change signs for the two that
    // multiply, too, and they are what bounds (a cell of 16 rows and four tokens of Q8_0: 85 cycles by signs, 80 so).
    // What has to be added is the same for all tokens. ~a reaches -128, and two products of -128 * 128 just fit an
    // int16.
    template <class C>
    static constexpr bool kFlips = C::kSigned && !C::kGroups && kSteps<C> == 1;

    // Sums of pairs are widened at each step.
    template <class C>
    static constexpr bool kWidens = kSteps<C> == 1;

    // Codes of a step of four columns and of each row, times four activations; `magnitude` of signed codes. `sign`: the
    // codes, or where they are below zero.
    template <class C>
    [[gnu::always_inline]] static __m256i products(__m256i sign, __m256i magnitude, __m256i a) {
        if constexpr (kFlips<C>) return _mm256_maddubs_epi16(magnitude, _mm256_xor_si256(a, sign));
        if constexpr (C::kSigned) return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, sign));
        return _mm256_maddubs_epi16(magnitude, a);
    }

    // Cells `b` of the tile's rows against T tokens whose bytes for the 256 columns start at x[t] + bytes_at: sums with
    // the groups' scales in them.
    template <class C, size_t T>
    [[gnu::always_inline]] static void sum_cells(const RowTile& tile, size_t super, size_t b, const char* const (&x)[T],
                                                 size_t bytes_at, Floats (&out)[T][kVectors]) {
        const auto& codes = tile.codes[super][b];
        const size_t place = bytes_at + int8_place(b, 0);
        const auto factor = [&](size_t step, size_t v) __attribute__((always_inline)) {
            return C::kGroups ? tile.group[super][2 * b + step / 4][v] : _mm256_set1_epi16(1);
        };
        __m256i part[T][kVectors], sum[T][kVectors];
#pragma GCC unroll 8
        for (size_t step = 0; step < 8; ++step) {
            __m256i w[kVectors], magnitude[kVectors];
            for (size_t v = 0; v < kVectors; ++v) {
                w[v] = codes[step][v];
                magnitude[v] = C::kSigned ? _mm256_abs_epi8(w[v]) : w[v];
                if (kFlips<C>) w[v] = _mm256_cmpgt_epi8(_mm256_setzero_si256(), w[v]);
            }
#pragma GCC unroll 8
            for (size_t t = 0; t < T; ++t) {
                const __m256i a = _mm256_set1_epi32(i32_at(x[t] + place + int8_place(0, step / 4 * 16) + step % 4 * 4));
                for (size_t v = 0; v < kVectors; ++v) {
                    __m256i p = products<C>(w[v], magnitude[v], a);
                    if constexpr (kSteps<C> > 1) {
                        part[t][v] = step % kSteps<C> == 0 ? p : _mm256_add_epi16(part[t][v], p);
                        keep_order(part[t][v]);
                        p = part[t][v];
                    }
                    if ((step + 1) % kSteps<C> != 0) continue;
                    const __m256i wide = _mm256_madd_epi16(p, factor(step, v));
                    if (kFlips<C> && step == 0) sum[t][v] = _mm256_add_epi32(tile.below[super][b][v], wide);
                    else sum[t][v] = step < kSteps<C> ? wide : _mm256_add_epi32(sum[t][v], wide);
                    keep_order(sum[t][v]);
                }
            }
            keep_loads();
        }
        for (size_t t = 0; t < T; ++t) {
            for (size_t v = 0; v < kVectors; ++v) out[t][v] = _mm256_cvtepi32_ps(sum[t][v]);
        }
    }
};

}  // namespace
}  // namespace weir::kernels::avx2
