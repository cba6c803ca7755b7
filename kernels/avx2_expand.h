// Weights of float types to floats. Internal to kernels/.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/avx2_blocks.h"

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

}  // namespace
}  // namespace weir::kernels::avx2
