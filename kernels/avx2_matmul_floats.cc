// Weights of any type with float activations.
//
// The value of an output: lane j of a (row, token) pair takes elements j, j + 8, j + 16 ... in order by fused
// multiply-add; sum_of_lanes() makes one float of the eight. A pair has one vector of lanes, so that tiles of
// several rows and tokens keep the arithmetic units busy without changing the order.
#include <immintrin.h>

#include <cstring>

#include "kernels/avx2.h"
#include "kernels/avx2_expand.h"

namespace weir::kernels::avx2 {
namespace {

// R rows against T tokens, n elements: lanes[t][r] goes on from its value.
template <class L, size_t R, size_t T>
[[gnu::always_inline]] inline void accumulate(const char* w, size_t w_stride_bytes, const char* x,
                                              size_t x_stride_bytes, size_t n, __m256 (&lanes)[T][R]) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a[T];
        for (size_t t = 0; t < T; ++t) a[t] = floats_at(x + t * x_stride_bytes + i * sizeof(float));
        for (size_t r = 0; r < R; ++r) {
            const __m256 b = L::eight(w + r * w_stride_bytes + i * L::kBytes);
            for (size_t t = 0; t < T; ++t) lanes[t][r] = _mm256_fmadd_ps(b, a[t], lanes[t][r]);
        }
    }
    if (i == n) return;
    for (size_t t = 0; t < T; ++t) {
        const __m256 a = LoadF32::some(x + t * x_stride_bytes + i * sizeof(float), n - i);
        for (size_t r = 0; r < R; ++r) {
            const __m256 b = L::some(w + r * w_stride_bytes + i * L::kBytes, n - i);
            lanes[t][r] = _mm256_fmadd_ps(b, a, lanes[t][r]);
        }
    }
}

template <class L, size_t R>
void dot_rows(const char* w, size_t w_stride_bytes, size_t k, const char* x, float* y) {
    __m256 lanes[1][R];
    for (size_t r = 0; r < R; ++r) lanes[0][r] = _mm256_setzero_ps();
    accumulate<L, R, 1>(w, w_stride_bytes, x, 0, k, lanes);
    for (size_t r = 0; r < R; ++r) y[r] = sum_of_lanes(lanes[0][r]);
}

// Float weights, few tokens: straight from where they lie. Four rows hide the latency of the additions.
template <class L>
void multiply_in_place(const char* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                       size_t tokens, float* y, size_t y_stride) {
    const size_t stride = k * L::kBytes;
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        for (size_t t = 0; t < tokens; ++t) {
            dot_rows<L, 4>(w + r * stride, stride, k, x + t * x_stride_bytes, y + t * y_stride + r);
        }
    }
    for (; r < rows; ++r) {
        for (size_t t = 0; t < tokens; ++t) {
            dot_rows<L, 1>(w + r * stride, stride, k, x + t * x_stride_bytes, y + t * y_stride + r);
        }
    }
}

// Rows, columns and tokens of a tile of expanded weights: 16 KiB of them, half a first-level cache, and 24
// KiB of lanes, which are touched once per 256 columns. Bench: matmul/F16/f32/64.
constexpr size_t kExpandRows = 16;
constexpr size_t kExpandColumns = 256;
constexpr size_t kExpandTokens = 48;

struct alignas(32) Expanded {
    float weights[kExpandRows][kExpandColumns];
    float lanes[kExpandTokens][kExpandRows][8];
};

// Four rows from `r` on against T tokens from `t` on.
template <size_t T>
void run_expanded(Expanded& e, size_t r, size_t t, const char* x, size_t x_stride_bytes, size_t n) {
    __m256 lanes[T][4];
    for (size_t i = 0; i < T; ++i) {
        for (size_t j = 0; j < 4; ++j) lanes[i][j] = _mm256_load_ps(e.lanes[t + i][r + j]);
    }
    accumulate<LoadF32, 4, T>(reinterpret_cast<const char*>(e.weights[r]), sizeof e.weights[r],
                              x + t * x_stride_bytes, x_stride_bytes, n, lanes);
    for (size_t i = 0; i < T; ++i) {
        for (size_t j = 0; j < 4; ++j) _mm256_store_ps(e.lanes[t + i][r + j], lanes[i][j]);
    }
}

// Up to kExpandRows rows, up to kExpandTokens tokens.
void multiply_tile(Type type, const char* w, size_t w_row_bytes, size_t super_bytes, size_t rows, size_t k,
                   const char* x, size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    Expanded e;
    for (size_t t = 0; t < tokens; ++t) std::memset(e.lanes[t], 0, sizeof e.lanes[t]);
    const size_t four_rows = (rows + 3) / 4 * 4;
    for (size_t r = rows; r < four_rows; ++r) std::memset(e.weights[r], 0, sizeof e.weights[r]);

    for (size_t first = 0; first < k; first += kExpandColumns) {
        const size_t n = k - first < kExpandColumns ? k - first : kExpandColumns;
        for (size_t r = 0; r < rows; ++r) {
            dequantize(type, w + r * w_row_bytes + first / kExpandColumns * super_bytes, e.weights[r], n);
        }
        const char* from = x + first * sizeof(float);
        size_t t = 0;
        for (; t + 3 <= tokens; t += 3) {
            for (size_t r = 0; r < four_rows; r += 4) run_expanded<3>(e, r, t, from, x_stride_bytes, n);
        }
        for (; t < tokens; ++t) {
            for (size_t r = 0; r < four_rows; r += 4) run_expanded<1>(e, r, t, from, x_stride_bytes, n);
        }
    }
    for (size_t t = 0; t < tokens; ++t) {
        for (size_t r = 0; r < rows; ++r) y[t * y_stride + r] = sum_of_lanes(_mm256_load_ps(e.lanes[t][r]));
    }
}

// From here on expanding float weights once for all tokens pays. Bench: matmul/F16/f32/2 to 8.
constexpr size_t kExpandFromTokens = 6;

}  // namespace

void matmul_floats(Type type, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                   size_t tokens, float* y, size_t y_stride) {
    const char* weights = static_cast<const char*>(w);
    if (tokens < kExpandFromTokens) {
        switch (type) {
            case Type::kF32:
                return multiply_in_place<LoadF32>(weights, rows, k, x, x_stride_bytes, tokens, y, y_stride);
            case Type::kF16:
                return multiply_in_place<LoadF16>(weights, rows, k, x, x_stride_bytes, tokens, y, y_stride);
            case Type::kBF16:
                return multiply_in_place<LoadBF16>(weights, rows, k, x, x_stride_bytes, tokens, y, y_stride);
            default:
                break;
        }
    }
    const size_t w_row_bytes = row_bytes(type, k);
    const size_t super_bytes = row_bytes(type, kExpandColumns);
    for (size_t t = 0; t < tokens; t += kExpandTokens) {
        const size_t some_tokens = tokens - t < kExpandTokens ? tokens - t : kExpandTokens;
        for (size_t r = 0; r < rows; r += kExpandRows) {
            const size_t some_rows = rows - r < kExpandRows ? rows - r : kExpandRows;
            multiply_tile(type, weights + r * w_row_bytes, w_row_bytes, super_bytes, some_rows, k,
                          x + t * x_stride_bytes, x_stride_bytes, some_tokens, y + t * y_stride + r,
                          y_stride);
        }
    }
}

}  // namespace weir::kernels::avx2
