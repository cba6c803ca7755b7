// Products of a few float rows with a matrix whose columns lie side by side: what attention computes of queries and
// keys, and of weights and values; and how quantised keys become floats.
#include <arm_neon.h>

#include <cstring>

#include "kernels/neon.h"
#include "kernels/neon_eight.h"

namespace weir::kernels::neon {
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
    Eight sum[T][P];
    for (size_t t = 0; t < T; ++t) {
        for (size_t p = 0; p < P; ++p) sum[t][p] = load(y + t * y_stride + 8 * p);
    }
    const char* row = b.at;
    for (size_t i = 0; i < k; ++i, row += b.row_bytes) {
        Eight value[P];
        for (size_t p = 0; p < P; ++p) value[p] = L::eight(row + p * b.panel_bytes);
        for (size_t t = 0; t < T; ++t) {
            const float a = x[t * x_stride + i];
            for (size_t p = 0; p < P; ++p) sum[t][p] = fma(value[p], a, sum[t][p]);
        }
    }
    for (size_t t = 0; t < T; ++t) {
        for (size_t p = 0; p < P; ++p) store(y + t * y_stride + 8 * p, sum[t][p]);
    }
}

// One token against the last n < 8 columns.
template <class L>
void multiply_rest(const float* x, const Matrix& b, size_t k, size_t n, float* y) {
    Eight sum = LoadF32::some(reinterpret_cast<const char*>(y), n);
    for (size_t i = 0; i < k; ++i) sum = fma(L::some(b.at + i * b.row_bytes, n), x[i], sum);
    float last[8];
    store(last, sum);
    std::memcpy(y, last, n * sizeof(float));
}

template <class L>
void multiply(const float* x, size_t x_stride, size_t tokens, const Matrix& matrix, size_t k, size_t n, float* y,
              size_t y_stride) {
    size_t t = 0;
    for (; t + 4 <= tokens; t += 4, x += 4 * x_stride, y += 4 * y_stride) {
        Matrix b = matrix;
        size_t j = 0;
        for (; j + 16 <= n; j += 16, b.at += 2 * b.panel_bytes) {
            multiply_panels<L, 4, 2>(x, x_stride, b, k, y + j, y_stride);
        }
        for (; j + 8 <= n; j += 8, b.at += b.panel_bytes) multiply_panels<L, 4, 1>(x, x_stride, b, k, y + j, y_stride);
        for (size_t r = 0; j < n && r < 4; ++r) multiply_rest<L>(x + r * x_stride, b, k, n - j, y + r * y_stride + j);
    }
    for (; t < tokens; ++t, x += x_stride, y += y_stride) {
        Matrix b = matrix;
        size_t j = 0;
        for (; j + 32 <= n; j += 32, b.at += 4 * b.panel_bytes) {
            multiply_panels<L, 1, 4>(x, x_stride, b, k, y + j, y_stride);
        }
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
    const auto* at = static_cast<const uint8_t*>(panels);
    const auto put = [](float* to, const Eight& scale, int8x8_t codes) __attribute__((always_inline)) {
        store(to, mul(scale, floats_of(vmovl_s8(codes))));
    };
    for (size_t i = 0; i < n; i += 32 * 8, dst += 32 * 8) {
        const Eight scale = LoadF16::eight(reinterpret_cast<const char*>(at));
        at += 16;
        if (type == Type::kQ8_0) {
            for (size_t e = 0; e < 32; ++e, at += 8) put(dst + 8 * e, scale, vreinterpret_s8_u8(vld1_u8(at)));
            continue;
        }
        const int8x8_t middle = vdup_n_s8(8);
        for (size_t e = 0; e < 16; ++e, at += 8) {
            const uint8x8_t both = vld1_u8(at);
            put(dst + 8 * e, scale, vsub_s8(vreinterpret_s8_u8(vand_u8(both, vdup_n_u8(15))), middle));
            put(dst + 8 * (e + 16), scale, vsub_s8(vreinterpret_s8_u8(vshr_n_u8(both, 4)), middle));
        }
    }
}

}  // namespace weir::kernels::neon
