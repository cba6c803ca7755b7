// How VNNI multiplies bytes: four products at a time straight into an int32, so that nothing has to fit an int16. One
// of the instruction sets (I) of avx2_matmul_codes.h and avx2_tile.h, in vectors of eight rows (Ymm) or sixteen (Zmm).
// Internal to kernels/.
//
// Within a cell, sums of groups are multiplied with the groups' integer scales as floats, which is exact: 16 codes to
// 63 times activations to 127 times scales to 128 stay below 2^24, and the sum of both halves is rounded once, by the
// fused multiply-add, as the sum of integers is by its conversion.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_tile.h"

namespace weir::kernels::avx2 {
namespace {

// The same instruction in two encodings: CPUs without AVX-512 know the one, some with it the other alone.
[[gnu::always_inline]] inline __m256i dot_bytes(__m256i sum, __m256i unsigned_bytes, __m256i signed_bytes) {
#ifdef __AVX512VNNI__
    return _mm256_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
#else
    return _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes);
#endif
}

struct Ymm {
    using Ints = __m256i;
    using Floats = __m256;
    static constexpr size_t kVectors = 2;
    static constexpr size_t kTokens = 4;

    [[gnu::always_inline]] static Ints ints(const __m256i (&rows)[2], size_t v) { return rows[v]; }
    [[gnu::always_inline]] static Ints zeros() { return _mm256_setzero_si256(); }
    [[gnu::always_inline]] static Ints all_of(int four_bytes) { return _mm256_set1_epi32(four_bytes); }
    [[gnu::always_inline]] static Ints magnitude(Ints w) { return _mm256_abs_epi8(w); }
    [[gnu::always_inline]] static Ints with_sign_of(Ints w, Ints a) { return _mm256_sign_epi8(a, w); }
    [[gnu::always_inline]] static Ints dot(Ints sum, Ints w, Ints a) { return dot_bytes(sum, w, a); }
    [[gnu::always_inline]] static Floats floats_of(Ints v) { return _mm256_cvtepi32_ps(v); }
    [[gnu::always_inline]] static Floats scales_of(Ints pairs) { return floats_of(_mm256_srai_epi32(pairs, 16)); }

    [[gnu::always_inline]] static Floats floats(const float* rows, size_t v) { return _mm256_load_ps(rows + 8 * v); }
    [[gnu::always_inline]] static void store(float* rows, size_t v, Floats f) { _mm256_store_ps(rows + 8 * v, f); }
    [[gnu::always_inline]] static Floats all(float f) { return _mm256_set1_ps(f); }
    [[gnu::always_inline]] static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    [[gnu::always_inline]] static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
};

#ifdef __AVX512VNNI__
// Eight tokens: sums in flight for a latency of five and two multiplications a cycle, and a broadcast is part of each.
struct Zmm {
    using Ints = __m512i;
    using Floats = __m512;
    static constexpr size_t kVectors = 1;
    static constexpr size_t kTokens = 8;

    [[gnu::always_inline]] static Ints ints(const __m256i (&rows)[2], size_t) { return _mm512_load_si512(rows); }
    [[gnu::always_inline]] static Ints zeros() { return _mm512_setzero_si512(); }
    [[gnu::always_inline]] static Ints all_of(int four_bytes) { return _mm512_set1_epi32(four_bytes); }
    [[gnu::always_inline]] static Ints magnitude(Ints w) { return _mm512_abs_epi8(w); }
    [[gnu::always_inline]] static Ints with_sign_of(Ints w, Ints a) {
        return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a);
    }
    [[gnu::always_inline]] static Ints dot(Ints sum, Ints w, Ints a) { return _mm512_dpbusd_epi32(sum, w, a); }
    [[gnu::always_inline]] static Floats floats_of(Ints v) { return _mm512_cvtepi32_ps(v); }
    [[gnu::always_inline]] static Floats scales_of(Ints pairs) { return floats_of(_mm512_srai_epi32(pairs, 16)); }

    [[gnu::always_inline]] static Floats floats(const float* rows, size_t) { return _mm512_load_ps(rows); }
    [[gnu::always_inline]] static void store(float* rows, size_t, Floats f) { _mm512_store_ps(rows, f); }
    [[gnu::always_inline]] static Floats all(float f) { return _mm512_set1_ps(f); }
    [[gnu::always_inline]] static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    [[gnu::always_inline]] static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
};
#endif

template <class V>
struct Dpbusd : V {
    using typename V::Floats;
    using typename V::Ints;
    using V::kVectors;
    template <class W>
    static constexpr bool kOwnPath = kIsAnyOf<W, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K>;
    template <class C>
    static constexpr bool kFlips = false;
    template <class C>
    static constexpr bool kWidens = false;

    // ---- a row: in 32 bytes whatever V is, as the activations lie

    template <class W, int P, int H, class S>
    [[gnu::always_inline]] static __m256i add_products(__m256i sum, const S& s, const char* x) {
        const __m256i w = W::template codes<P, H>(s);
        const __m256i a = bytes_at(x + int8_place(P, 16 * H));
        if constexpr (W::kSigned) return dot_bytes(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
        return dot_bytes(sum, w, a);
    }

    template <class W, int H, class S>
    [[gnu::always_inline]] static __m256i half_cells(const S& s, const char* x) {
        const __m256i zero = _mm256_setzero_si256();
        return sums_of_cells(add_products<W, 0, H>(zero, s, x), add_products<W, 1, H>(zero, s, x),
                             add_products<W, 2, H>(zero, s, x), add_products<W, 3, H>(zero, s, x));
    }

    template <class W, int P, class S>
    [[gnu::always_inline]] static __m256i cell(const S& s, const char* x) {
        return add_products<W, P, 1>(add_products<W, P, 0>(_mm256_setzero_si256(), s, x), s, x);
    }

    // Sums of eight cells over bytes at `x`, which int8_place() put there.
    template <class W, class S>
    [[gnu::always_inline]] static __m256i cells(const S& s, const char* x) {
        return sums_of_cells(cell<W, 0>(s, x), cell<W, 1>(s, x), cell<W, 2>(s, x), cell<W, 3>(s, x));
    }

    // The same with the groups' integer scales in them.
    template <class W, class S>
    [[gnu::always_inline]] static __m256 scaled_cells(const S& s, __m256i groups, const char* x) {
        const __m256 low = _mm256_mul_ps(_mm256_cvtepi32_ps(half_cells<W, 0>(s, x)), low_halves(groups));
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(half_cells<W, 1>(s, x)), high_halves(groups), low);
    }

    // ---- a tile

    // Cells `b` of the tile's rows against T tokens whose bytes for the 256 columns start at x[t] + bytes_at: sums with
    // the groups' scales in them.
    template <class C, size_t T>
    [[gnu::always_inline]] static void sum_cells(const RowTile& tile, size_t super, size_t b, const char* const (&x)[T],
                                                 size_t bytes_at, Floats (&out)[T][kVectors]) {
        Ints sum[T][kVectors];
#pragma GCC unroll 2
        for (size_t half = 0; half < 2; ++half) {
            const size_t place = bytes_at + int8_place(b, 16 * half);
#pragma GCC unroll 4
            for (size_t step = 0; step < 4; ++step) {
                Ints w[kVectors], magnitude[kVectors];
                for (size_t v = 0; v < kVectors; ++v) {
                    w[v] = V::ints(tile.codes[super][b][4 * half + step], v);
                    magnitude[v] = C::kSigned ? V::magnitude(w[v]) : w[v];
                }
                const bool first = step == 0 && (C::kGroups || half == 0);
#pragma GCC unroll 8
                for (size_t t = 0; t < T; ++t) {
                    const Ints a = V::all_of(i32_at(x[t] + place + 4 * step));
                    for (size_t v = 0; v < kVectors; ++v) {
                        const Ints factor = C::kSigned ? V::with_sign_of(w[v], a) : a;
                        sum[t][v] = V::dot(first ? V::zeros() : sum[t][v], magnitude[v], factor);
                    }
                }
                keep_loads();
            }
            if (!C::kGroups) continue;
            for (size_t v = 0; v < kVectors; ++v) {
                const Floats scale = V::scales_of(V::ints(tile.group[super][2 * b + half], v));
                for (size_t t = 0; t < T; ++t) {
                    const Floats f = V::floats_of(sum[t][v]);
                    out[t][v] = half == 0 ? V::multiply(f, scale) : V::multiply_add(f, scale, out[t][v]);
                }
            }
        }
        if (C::kGroups) return;
        for (size_t t = 0; t < T; ++t) {
            for (size_t v = 0; v < kVectors; ++v) out[t][v] = V::floats_of(sum[t][v]);
        }
    }
};

}  // namespace
}  // namespace weir::kernels::avx2
