// Packing of activations (the same bits as the scalar kernels'), and quantised weights to floats.
#include <immintrin.h>

#include <cstring>

#include "kernels/activation.h"
#include "kernels/avx2.h"
#include "kernels/avx2_expand.h"

namespace weir::kernels::avx2 {
namespace {

[[gnu::always_inline]] inline void set_scales(char* out, size_t b, float scale, int low, int high) {
    const float values[4] = {scale, scale * static_cast<float>(low + high), scale * static_cast<float>(low),
                             scale * static_cast<float>(high)};
    std::memcpy(out + offsetof(Int8Super, scale) + 4 * b, &values[0], 4);
    std::memcpy(out + offsetof(Int8Super, sum) + 4 * b, &values[1], 4);
    std::memcpy(out + offsetof(Int8Super, sum_low) + 4 * b, &values[2], 4);
    std::memcpy(out + offsetof(Int8Super, sum_high) + 4 * b, &values[3], 4);
}

[[gnu::always_inline]] inline int sum_of_ints(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// Magnitudes compare as integers, so a NaN is the largest and is not lost.
[[gnu::always_inline]] inline float largest_magnitude(const __m256 (&x)[4]) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    for (size_t i = 0; i < 4; ++i) {
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

[[gnu::always_inline]] inline void store_bytes(char* out, size_t b, size_t half, __m256i int16s) {
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(int16s), _mm256_extracti128_si256(int16s, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + int8_place(b, 16 * half)), bytes);
}

// Sixteen codes as int16 in their order; `out` is a Super, zeroed.
[[gnu::always_inline]] inline void store_codes(Int8Super*, char* out, size_t b, size_t half, __m256i codes) {
    store_bytes(out + offsetof(Int8Super, codes), b, half, codes);
}

[[gnu::always_inline]] inline void store_codes(Int16Super*, char* out, size_t b, size_t half, __m256i codes) {
    const __m256i apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i sorted =
        _mm256_permute4x64_epi64(_mm256_shuffle_epi8(codes, apart), 0xd8);  // evens, then odds
    char* at = out + offsetof(Int16Super, codes) + sizeof(int16_t) * int16_place(b, 16 * half);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(sorted));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 32), _mm256_extracti128_si256(sorted, 1));
    const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(codes, _mm256_set1_epi16(128)), 8);
    store_bytes(out + offsetof(Int16Super, high), b, half, high);
    store_bytes(out + offsetof(Int16Super, low), b, half, _mm256_sub_epi16(codes, _mm256_slli_epi16(high, 8)));
}

template <class Super>
[[gnu::always_inline]] inline void pack_cell(const float* x, size_t b, float code_max, char* out) {
    __m256 v[4];
    for (size_t i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
    const float largest = largest_magnitude(v);
    if (!(largest <= 3.40282347e38f)) return set_scales(out, b, __builtin_nanf(""), 0, 0);
    if (largest < kSmallestMagnitude) return;
    const __m256 inverse = _mm256_set1_ps(code_max / largest);
    __m256i codes[4];
    for (size_t i = 0; i < 4; ++i) codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    set_scales(out, b, largest / code_max, sum_of_ints(_mm256_add_epi32(codes[0], codes[1])),
               sum_of_ints(_mm256_add_epi32(codes[2], codes[3])));
    for (size_t half = 0; half < 2; ++half) {
        // packs works within lanes: elements 0-3 8-11 4-7 12-15, put right by the permutation
        const __m256i packed = _mm256_packs_epi32(codes[2 * half], codes[2 * half + 1]);
        store_codes(static_cast<Super*>(nullptr), out, b, half, _mm256_permute4x64_epi64(packed, 0xd8));
    }
}

template <class Super>
void pack(const float* x, size_t k, float code_max, char* out) {
    const size_t cells = k / kCellElements;
    for (size_t first = 0; first < cells; first += kCellsPerSuper) {
        const size_t count = cells - first < kCellsPerSuper ? cells - first : kCellsPerSuper;
        std::memset(out, 0, sizeof(Super));
        for (size_t b = 0; b < count; ++b)
            pack_cell<Super>(x + (first + b) * kCellElements, b, code_max, out);
        out += sizeof(Super);
    }
}

}  // namespace

void quantize(Activation a, const float* x, size_t k, void* out) {
    switch (a) {
        case Activation::kF32:
            if (k != 0) std::memcpy(out, x, k * sizeof(float));
            return;
        case Activation::kInt8:
            return pack<Int8Super>(x, k, kInt8Max, static_cast<char*>(out));
        case Activation::kInt16:
            return pack<Int16Super>(x, k, kInt16Max, static_cast<char*>(out));
    }
}

void dequantize(Type type, const void* src, float* dst, size_t n) {
    expand_any(type, static_cast<const char*>(src), dst, n);
}

}  // namespace weir::kernels::avx2
