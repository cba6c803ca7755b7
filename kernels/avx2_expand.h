// Weights of any type to floats. The same bits as the scalar kernels': scale * code is exact or rounded once
// with the min, in both. Internal to kernels/.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/avx2_blocks.h"
#include "kernels/types.h"

namespace weir::kernels::avx2 {
namespace {

// How eight elements of a float type are read, and the last n < 8 of a row (the other lanes are zero).
struct LoadF32 {
    static constexpr size_t kBytes = 4;
    [[gnu::always_inline]] static __m256 eight(const char* p) { return floats_at(p); }
    [[gnu::always_inline]] static __m256 some(const char* p, size_t n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
        return _mm256_maskload_ps(reinterpret_cast<const float*>(p), mask);
    }
};

[[gnu::always_inline]] inline __m128i some_u16(const char* p, size_t n) {
    alignas(16) uint16_t values[8] = {};
    std::memcpy(values, p, 2 * n);
    return half_bytes_at(values);
}

struct LoadF16 {
    static constexpr size_t kBytes = 2;
    [[gnu::always_inline]] static __m256 eight(const char* p) { return _mm256_cvtph_ps(half_bytes_at(p)); }
    [[gnu::always_inline]] static __m256 some(const char* p, size_t n) {
        return _mm256_cvtph_ps(some_u16(p, n));
    }
};

struct LoadBF16 {
    static constexpr size_t kBytes = 2;
    [[gnu::always_inline]] static __m256 widen(__m128i v) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
    }
    [[gnu::always_inline]] static __m256 eight(const char* p) { return widen(half_bytes_at(p)); }
    [[gnu::always_inline]] static __m256 some(const char* p, size_t n) { return widen(some_u16(p, n)); }
};

template <class L>
void expand_floats(const char* src, float* dst, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, L::eight(src + i * L::kBytes));
    if (i == n) return;
    alignas(32) float last[8];
    _mm256_store_ps(last, L::some(src + i * L::kBytes, n - i));
    std::memcpy(dst + i, last, (n - i) * sizeof(float));
}

template <class W>
[[gnu::always_inline]] inline void expand_sixteen(__m128i codes, float scale, float min, float* dst) {
    for (size_t i = 0; i < 2; ++i) {
        const __m128i eight = i == 0 ? codes : _mm_srli_si128(codes, 8);
        const __m256i wide = W::kSigned ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
        _mm256_storeu_ps(dst + 8 * i, _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(scale),
                                                      _mm256_set1_ps(min)));
    }
}

template <class W, int P, int H, class S>
[[gnu::always_inline]] inline void expand_codes(const S& s, const float* scale, const float* min,
                                                float* dst) {
    const __m256i codes = W::template codes<P, H>(s);
    expand_sixteen<W>(_mm256_castsi256_si128(codes), scale[P], min[P], dst + 32 * P + 16 * H);
    expand_sixteen<W>(_mm256_extracti128_si256(codes, 1), scale[P + 4], min[P + 4],
                      dst + 32 * (P + 4) + 16 * H);
}

template <class W, class S>
[[gnu::always_inline]] inline void expand_super(const S& s, float* dst) {
    alignas(32) float scale[2][8], min[2][8];  // of low and of high halves of the cells
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        const __m256 d = _mm256_set1_ps(g.d);
        _mm256_store_ps(scale[0], _mm256_mul_ps(d, low_halves(g.scale)));
        _mm256_store_ps(scale[1], _mm256_mul_ps(d, high_halves(g.scale)));
        _mm256_store_ps(min[0], g.min_low);
        _mm256_store_ps(min[1], g.min_high);
    } else {
        __m256 cell_scale, cell_min;
        W::scales(s, cell_scale, cell_min);
        for (size_t h = 0; h < 2; ++h) {
            _mm256_store_ps(scale[h], cell_scale);
            _mm256_store_ps(min[h], cell_min);
        }
    }
    expand_codes<W, 0, 0>(s, scale[0], min[0], dst);
    expand_codes<W, 0, 1>(s, scale[1], min[1], dst);
    expand_codes<W, 1, 0>(s, scale[0], min[0], dst);
    expand_codes<W, 1, 1>(s, scale[1], min[1], dst);
    expand_codes<W, 2, 0>(s, scale[0], min[0], dst);
    expand_codes<W, 2, 1>(s, scale[1], min[1], dst);
    expand_codes<W, 3, 0>(s, scale[0], min[0], dst);
    expand_codes<W, 3, 1>(s, scale[1], min[1], dst);
}

template <class W>
void expand_row(const char* src, float* dst, size_t n) {
    using Block = typename W::Block;
    const auto* row = reinterpret_cast<const Block*>(src);
    for (; n >= kSuperElements; n -= kSuperElements) {
        expand_super<W>(Blocks<Block>{row}, dst);
        row += W::kBlocks;
        dst += kSuperElements;
    }
    if constexpr (W::kBlocks != 1) {
        if (n == 0) return;
        alignas(32) float last[kSuperElements];
        expand_super<W>(LastBlocks<Block>(row, n / kCellElements), last);
        std::memcpy(dst, last, n * sizeof(float));
    }
}

[[maybe_unused]] void expand_any(Type type, const char* src, float* dst, size_t n) {
    switch (type) {
        case Type::kF32:
            return expand_floats<LoadF32>(src, dst, n);
        case Type::kF16:
            return expand_floats<LoadF16>(src, dst, n);
        case Type::kBF16:
            return expand_floats<LoadBF16>(src, dst, n);
        case Type::kQ4_0:
            return expand_row<Q4_0>(src, dst, n);
        case Type::kQ4_1:
            return expand_row<Q4_1>(src, dst, n);
        case Type::kQ5_0:
            return expand_row<Q5_0>(src, dst, n);
        case Type::kQ5_1:
            return expand_row<Q5_1>(src, dst, n);
        case Type::kQ8_0:
            return expand_row<Q8_0>(src, dst, n);
        case Type::kQ2_K:
            return expand_row<Q2_K>(src, dst, n);
        case Type::kQ3_K:
            return expand_row<Q3_K>(src, dst, n);
        case Type::kQ4_K:
            return expand_row<Q4_K>(src, dst, n);
        case Type::kQ5_K:
            return expand_row<Q5_K>(src, dst, n);
        case Type::kQ6_K:
            return expand_row<Q6_K>(src, dst, n);
        case Type::kIQ4_NL:
            return expand_row<IQ4_NL>(src, dst, n);
        case Type::kIQ4_XS:
            return expand_row<IQ4_XS>(src, dst, n);
        case Type::kMXFP4:
            return expand_row<MXFP4>(src, dst, n);
        case Type::kTQ2_0:
            return expand_row<TQ2_0>(src, dst, n);
        case Type::kIQ2_XXS:
            return expand_row<IQ2_XXS>(src, dst, n);
        case Type::kIQ2_XS:
            return expand_row<IQ2_XS>(src, dst, n);
        case Type::kIQ3_XXS:
            return expand_row<IQ3_XXS>(src, dst, n);
        case Type::kIQ1_S:
            return expand_row<IQ1_S>(src, dst, n);
        case Type::kIQ3_S:
            return expand_row<IQ3_S>(src, dst, n);
        case Type::kIQ2_S:
            return expand_row<IQ2_S>(src, dst, n);
        case Type::kIQ1_M:
            return expand_row<IQ1_M>(src, dst, n);
        case Type::kTQ1_0:
            return expand_row<TQ1_0>(src, dst, n);
    }
}

}  // namespace
}  // namespace weir::kernels::avx2
