// Packing of activations: the same bits as the scalar kernels'.
#include <immintrin.h>

#include <cstring>

#include "kernels/activation.h"
#include "kernels/avx2.h"

namespace weir::kernels::avx2 {
namespace {

[[gnu::always_inline]] inline void set_scales(char* out, size_t b, float scale, int low, int high) {
    const float values[4] = {scale, scale * static_cast<float>(low + high), scale * static_cast<float>(low),
                             scale * static_cast<float>(high)};
    std::memcpy(out + offsetof(Super, scale) + 4 * b, &values[0], 4);
    std::memcpy(out + offsetof(Super, sum) + 4 * b, &values[1], 4);
    std::memcpy(out + offsetof(Super, sum_low) + 4 * b, &values[2], 4);
    std::memcpy(out + offsetof(Super, sum_high) + 4 * b, &values[3], 4);
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

[[gnu::always_inline]] inline float largest_of_cell(const float* x) {
    __m256 v[4];
    for (size_t i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
    return largest_magnitude(v);
}

// One cell; `out` is its Super, zeroed. Codes are whole multiples of `unit`, of at most code_max units. Their low bytes, if
// there are any, go to `low`; in the fine form they go to `whole`, the cell's place there.
[[gnu::always_inline]] inline void pack_cell(const float* x, size_t b, float largest, float code_max, int unit, char* out,
                                             char* low, char* whole) {
    if (!(largest <= 3.40282347e38f)) return set_scales(out, b, __builtin_nanf(""), 0, 0);
    if (largest < kSmallestMagnitude) return;
    const __m256 inverse = _mm256_set1_ps(code_max / largest);
    __m256i codes[4];
    for (size_t i = 0; i < 4; ++i) codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
    set_scales(out, b, largest / (code_max * static_cast<float>(unit)),
               unit * sum_of_ints(_mm256_add_epi32(codes[0], codes[1])),
               unit * sum_of_ints(_mm256_add_epi32(codes[2], codes[3])));
    for (size_t half = 0; half < 2; ++half) {
        // packs works within lanes: elements 0-3 8-11 4-7 12-15, put right by the permutation
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes[2 * half], codes[2 * half + 1]), 0xd8);
        if (whole != nullptr) {
            const __m256i codes16 = _mm256_mullo_epi16(packed, _mm256_set1_epi16(static_cast<int16_t>(unit)));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole) + half, codes16);
        }
        if (low == nullptr) {
            store_bytes(out + offsetof(Super, codes), b, half, packed);
            continue;
        }
        const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(packed, _mm256_set1_epi16(kHighUnit / 2)), 7);
        store_bytes(out + offsetof(Super, codes), b, half, high);
        store_bytes(low, b, half, _mm256_sub_epi16(packed, _mm256_slli_epi16(high, 7)));
    }
}

void pack_int8(const float* x, size_t k, char* out) {
    const size_t cells = k / kCellElements;
    for (size_t first = 0; first < cells; first += kCellsPerSuper, out += sizeof(Super)) {
        const size_t count = cells - first < kCellsPerSuper ? cells - first : kCellsPerSuper;
        std::memset(out, 0, sizeof(Super));
        for (size_t b = 0; b < count; ++b) {
            const float* const cell = x + (first + b) * kCellElements;
            pack_cell(cell, b, largest_of_cell(cell), kInt8Max, 1, out, nullptr, nullptr);
        }
    }
}

void pack_fine(const float* x, size_t k, double ratio, char* out) {
    const size_t cells = k / kCellElements;
    if (cells == 0) return;  // where there may be no memory at all
    const size_t supers = (cells + kCellsPerSuper - 1) / kCellsPerSuper;
    std::memset(out, 0, fine_row_bytes(supers));
    double sum = 0;
    for (size_t c = 0; c < cells; ++c) sum += static_cast<double>(largest_of_cell(x + c * kCellElements));
    for (size_t c = 0; c < cells; ++c) {
        const size_t s = c / kCellsPerSuper, b = c % kCellsPerSuper;
        const float* const cell = x + c * kCellElements;
        const float largest = largest_of_cell(cell);
        char* const super = out + s * sizeof(Super);
        char* const whole = out + whole_at(supers) + c * kCellElements * sizeof(int16_t);
        if (!is_fine(largest, sum, cells, ratio)) {
            pack_cell(cell, b, largest, kInt8Max, kHighUnit, super, nullptr, whole);
            continue;
        }
        pack_cell(cell, b, largest, kFineMax, 1, super, out + low_at(supers) + s * kSuperElements, whole);
        char& fine = out[fine_at(supers) + s];
        fine = static_cast<char>(fine | 1 << b);
    }
}

}  // namespace

void quantize(Activation a, const float* x, size_t k, void* out) {
    switch (a) {
        case Activation::kF32:
            if (k != 0) std::memcpy(out, x, k * sizeof(float));
            return;
        case Activation::kInt8:
            return pack_int8(x, k, static_cast<char*>(out));
        case Activation::kFine:
        case Activation::kWhole:
            return pack_fine(x, k, fine_ratio(a), static_cast<char*>(out));
    }
}

}  // namespace weir::kernels::avx2
