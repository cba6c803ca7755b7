// Products of a few float rows with a matrix whose columns lie side by side: what attention computes of queries and keys,
// and of weights and values; and how quantised keys become floats.
#include <immintrin.h>

#include "kernels/avx2.h"
#include "kernels/avx2_expand.h"

namespace weir::kernels::avx2 {
namespace {

struct Matrix {
    const char* at;
    size_t row_bytes;
    size_t panel_bytes;
};

// T tokens against P panels of eight columns: T * P sums in registers, one multiplication of latency 4 after the other.
template <class L, size_t T, size_t P>
[[gnu::always_inline]] inline void multiply_panels(const float* x, size_t x_stride, const Matrix& b, size_t k, float* y,
                                                   size_t y_stride) {
    __m256 sum[T][P];
    for (size_t t = 0; t < T; ++t) {
        for (size_t p = 0; p < P; ++p) sum[t][p] = _mm256_loadu_ps(y + t * y_stride + 8 * p);
    }
    const char* row = b.at;
    for (size_t i = 0; i < k; ++i, row += b.row_bytes) {
        __m256 value[P];
        for (size_t p = 0; p < P; ++p) value[p] = L::eight(row + p * b.panel_bytes);
        for (size_t t = 0; t < T; ++t) {
            const __m256 a = _mm256_broadcast_ss(x + t * x_stride + i);
            for (size_t p = 0; p < P; ++p) sum[t][p] = _mm256_fmadd_ps(a, value[p], sum[t][p]);
        }
    }
    for (size_t t = 0; t < T; ++t) {
        for (size_t p = 0; p < P; ++p) _mm256_storeu_ps(y + t * y_stride + 8 * p, sum[t][p]);
    }
}

// One token against the last n < 8 columns.
template <class L>
void multiply_rest(const float* x, const Matrix& b, size_t k, size_t n, float* y) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
    __m256 sum = _mm256_maskload_ps(y, mask);
    for (size_t i = 0; i < k; ++i) {
        sum = _mm256_fmadd_ps(_mm256_broadcast_ss(x + i), L::some(b.at + i * b.row_bytes, n), sum);
    }
    _mm256_maskstore_ps(y, mask, sum);
}

template <class L>
void multiply(const float* x, size_t x_stride, size_t tokens, const Matrix& matrix, size_t k, size_t n, float* y,
              size_t y_stride) {
    size_t t = 0;
    for (; t + 4 <= tokens; t += 4, x += 4 * x_stride, y += 4 * y_stride) {
        Matrix b = matrix;
        size_t j = 0;
        for (; j + 16 <= n; j += 16, b.at += 2 * b.panel_bytes) multiply_panels<L, 4, 2>(x, x_stride, b, k, y + j, y_stride);
        for (; j + 8 <= n; j += 8, b.at += b.panel_bytes) multiply_panels<L, 4, 1>(x, x_stride, b, k, y + j, y_stride);
        for (size_t r = 0; j < n && r < 4; ++r) multiply_rest<L>(x + r * x_stride, b, k, n - j, y + r * y_stride + j);
    }
    for (; t < tokens; ++t, x += x_stride, y += y_stride) {
        Matrix b = matrix;
        size_t j = 0;
        for (; j + 32 <= n; j += 32, b.at += 4 * b.panel_bytes) multiply_panels<L, 1, 4>(x, x_stride, b, k, y + j, y_stride);
        for (; j + 8 <= n; j += 8, b.at += b.panel_bytes) multiply_panels<L, 1, 1>(x, x_stride, b, k, y + j, y_stride);
        if (j < n) multiply_rest<L>(x, b, k, n - j, y + j);
    }
}

}  // namespace

void multiply_add(Type type, const float* x, size_t x_stride, size_t tokens, const void* b, size_t row_stride,
                  size_t panel_stride, size_t k, size_t n, float* y, size_t y_stride) {
    const auto* const at = static_cast<const char*>(b);
    if (type == Type::kF16) {
        multiply<LoadF16>(x, x_stride, tokens, {at, 2 * row_stride, 2 * panel_stride}, k, n, y, y_stride);
    } else {
        multiply<LoadF32>(x, x_stride, tokens, {at, 4 * row_stride, 4 * panel_stride}, k, n, y, y_stride);
    }
}

void unpack_panels(Type type, const void* panels, float* dst, size_t n) {
    const char* at = static_cast<const char*>(panels);
    const auto put = [](float* to, __m256 scale, __m128i codes) __attribute__((always_inline)) {
        _mm256_storeu_ps(to, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))));
    };
    const auto codes_at = [](const char* p) __attribute__((always_inline)) {
        return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    };
    for (size_t i = 0; i < n; i += 32 * 8, dst += 32 * 8) {
        const __m256 scale = LoadF16::eight(at);
        at += 16;
        if (type == Type::kQ8_0) {
            for (size_t e = 0; e < 32; ++e, at += 8) put(dst + 8 * e, scale, codes_at(at));
            continue;
        }
        const __m128i nibble = _mm_set1_epi8(15), middle = _mm_set1_epi8(8);
        for (size_t e = 0; e < 16; ++e, at += 8) {
            const __m128i both = codes_at(at);
            put(dst + 8 * e, scale, _mm_sub_epi8(_mm_and_si128(both, nibble), middle));
            put(dst + 8 * (e + 16), scale, _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(both, 4), nibble), middle));
        }
    }
}

}  // namespace weir::kernels::avx2
