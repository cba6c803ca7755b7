// What a decoder does besides matrix products, eight floats at a time; and the AVX2 table.
#include <immintrin.h>

#include <cstring>

#include "kernels/avx2.h"
#include "kernels/avx2_expand.h"

namespace weir::kernels::avx2 {
namespace {

[[gnu::always_inline]] inline __m256i mask_of(size_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}

// Calls f(i, load, store) for each eight elements and once more for the rest; load(p) gives zeros in the
// lanes past the end, store(p, v) leaves what is there alone.
template <class F>
[[gnu::always_inline]] inline void for_each_eight(size_t n, F&& f) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        f(
            i, [](const float* p) __attribute__((always_inline)) { return _mm256_loadu_ps(p); },
            [](float* p, __m256 v) __attribute__((always_inline)) { _mm256_storeu_ps(p, v); });
    }
    if (i == n) return;
    const __m256i mask = mask_of(n - i);
    f(
        i, [mask](const float* p) __attribute__((always_inline)) { return _mm256_maskload_ps(p, mask); },
        [mask](float* p, __m256 v) __attribute__((always_inline)) { _mm256_maskstore_ps(p, mask, v); });
}

// exp(x): x = n * ln 2 + r, |r| <= ln 2 / 2, ln 2 in two parts (Cody & Waite 1980), a polynomial of degree 6
// whose coefficients are the minimax fit of (exp(r) - 1 - r) / r^2 (relative error 3e-9), and 2^n in two
// factors so that results reach down into the subnormals. Within 1.1 ULP where the result is normal (a test
// measures it); infinity above 88.73, zero below -103.98, NaN for NaN.
[[gnu::always_inline]] inline __m256 exp8(__m256 x) {
    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);  // the order of operands lets a NaN through
    x = _mm256_max_ps(_mm256_set1_ps(-105.0f), x);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);  // 0x1.62e4p-1: exact products
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860682e-6f), r);       // ln 2 - that
    __m256 p = _mm256_set1_ps(0.001381459838f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.008368716898f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.04166838805f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.1666652063f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.4999999345f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_cvtps_epi32(n);
    const __m256i first = _mm256_srai_epi32(power, 1);
    const __m256i second = _mm256_sub_epi32(power, first);
    const __m256i bias = _mm256_set1_epi32(127);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}

[[gnu::always_inline]] inline double sum_of_squares(const float* x, size_t n) {
    __m256d low = _mm256_setzero_pd();
    __m256d high = _mm256_setzero_pd();
    for_each_eight(n, [&](size_t i, auto load, auto) __attribute__((always_inline)) {
        const __m256 v = load(x + i);
        const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
        const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
        low = _mm256_fmadd_pd(a, a, low);
        high = _mm256_fmadd_pd(b, b, high);
    });
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

template <MatmulCodes* kCodes>
void matmul(Type type, Activation a, const void* w, size_t rows, size_t k, const void* x, size_t x_stride_bytes,
            size_t tokens, float* y, size_t y_stride) {
    const char* row = static_cast<const char*>(x);
    if (a == Activation::kF32) return matmul_floats(type, w, rows, k, row, x_stride_bytes, tokens, y, y_stride);
    kCodes(type, a, w, rows, k, row, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y) {
    const double mean = sum_of_squares(x, n) / static_cast<double>(n);
    const auto factor = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
    const __m256 f = _mm256_set1_ps(factor);
    for_each_eight(n, [&](size_t i, auto load, auto store) __attribute__((always_inline)) {
        store(y + i, _mm256_mul_ps(_mm256_mul_ps(load(x + i), f), load(weight + i)));
    });
}

void swiglu(const float* gate, const float* up, size_t n, float* out) {
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for_each_eight(n, [&](size_t i, auto load, auto store) __attribute__((always_inline)) {
        const __m256 g = load(gate + i);
        const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, exp8(_mm256_xor_ps(g, sign))));
        store(out + i, _mm256_mul_ps(silu, load(up + i)));
    });
}

void geglu(const float* gate, const float* up, size_t n, float* out) {
    const __m256 one = _mm256_set1_ps(1.0f);
    for_each_eight(n, [&](size_t i, auto load, auto store) __attribute__((always_inline)) {
        const __m256 g = load(gate + i);
        const __m256 inner = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(0.044715f), g), g, one);
        const __m256 minus_2u = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(-1.59576912f), g), inner);
        store(out + i, _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, exp8(minus_2u))), load(up + i)));
    });
}

// tanh(v) = 1 - 2 / (1 + exp(2 v)): within 2e-7 of the cap.
void soft_cap(float* x, size_t n, float cap) {
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 two = _mm256_set1_ps(2.0f);
    const __m256 c = _mm256_set1_ps(cap);
    for_each_eight(n, [&](size_t i, auto load, auto store) __attribute__((always_inline)) {
        const __m256 e = exp8(_mm256_mul_ps(two, _mm256_div_ps(load(x + i), c)));
        const __m256 tanh = _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(one, e)));
        store(x + i, _mm256_mul_ps(c, tanh));
    });
}

void add(float* x, const float* y, size_t n) {
    for_each_eight(n, [&](size_t i, auto load, auto store)
                          __attribute__((always_inline)) { store(x + i, _mm256_add_ps(load(x + i), load(y + i))); });
}

// Four independent sums, so that the additions' latency is hidden; joined in a fixed order.
float dot_f32(const float* a, const float* b, size_t n) {
    __m256 sum[4];
    for (auto& s : sum) s = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 4; ++j) {
            sum[j] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * j), _mm256_loadu_ps(b + i + 8 * j), sum[j]);
        }
    }
    for (; i + 8 <= n; i += 8) sum[0] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum[0]);
    if (i < n) {
        const __m256i mask = mask_of(n - i);
        sum[1] = _mm256_fmadd_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask), sum[1]);
    }
    return sum_of_lanes(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}

void axpy_f32(float s, const float* v, size_t n, float* acc) {
    const __m256 factor = _mm256_set1_ps(s);
    for_each_eight(n, [&](size_t i, auto load, auto store) __attribute__((always_inline)) {
        store(acc + i, _mm256_fmadd_ps(factor, load(v + i), load(acc + i)));
    });
}

void f32_to_f16(const float* x, size_t n, uint16_t* y) {
    for_each_eight(n, [&](size_t i, auto load, auto) __attribute__((always_inline)) {
        const __m128i halves = _mm256_cvtps_ph(load(x + i), _MM_FROUND_TO_NEAREST_INT);
        if (n - i >= 8) return _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), halves);
        alignas(16) uint16_t last[8];
        _mm_store_si128(reinterpret_cast<__m128i*>(last), halves);
        std::memcpy(y + i, last, (n - i) * sizeof(uint16_t));
    });
}

void f16_to_f32(const uint16_t* x, size_t n, float* y) {
    expand_floats<LoadF16>(reinterpret_cast<const char*>(x), y, n);
}

float softmax_piece(float* x, size_t n, float* max, float* sum) {
    // Lanes past the end must not win the maximum, so they repeat what was the largest before.
    const __m256 before = _mm256_set1_ps(*max);
    __m256 largest = before;
    for_each_eight(n, [&](size_t i, auto load, auto) __attribute__((always_inline)) {
        __m256 v = load(x + i);
        if (n - i < 8) v = _mm256_blendv_ps(before, v, _mm256_castsi256_ps(mask_of(n - i)));
        largest = _mm256_max_ps(largest, v);
    });
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    const __m256 top = _mm256_set1_ps(_mm_cvtss_f32(m));

    __m256 sums = _mm256_setzero_ps();  // a NaN anywhere reaches them
    for_each_eight(n, [&](size_t i, auto load, auto store) __attribute__((always_inline)) {
        __m256 e = exp8(_mm256_sub_ps(load(x + i), top));
        if (n - i < 8) e = _mm256_and_ps(e, _mm256_castsi256_ps(mask_of(n - i)));
        sums = _mm256_add_ps(sums, e);
        store(x + i, e);
    });
    const float factor = _mm256_cvtss_f32(exp8(_mm256_sub_ps(before, top)));
    *sum = *sum * factor + sum_of_lanes(sums);
    *max = _mm256_cvtss_f32(top);
    return factor;
}

void softmax(float* x, size_t n) {
    float max = -__builtin_inff(), sum = 0.0f;
    softmax_piece(x, n, &max, &sum);
    const __m256 inverse = _mm256_set1_ps(1.0f / sum);
    for_each_eight(n, [&](size_t i, auto load, auto store)
                          __attribute__((always_inline)) { store(x + i, _mm256_mul_ps(load(x + i), inverse)); });
}

namespace {

template <MatmulCodes* kCodes>
constexpr KernelSet table(const char* name) {
    return {
        .name = name,
        .quantize = quantize,
        .matmul = matmul<kCodes>,
        .dequantize = dequantize,
        .rms_norm = rms_norm,
        .swiglu = swiglu,
        .geglu = geglu,
        .soft_cap = soft_cap,
        .add = add,
        .dot_f32 = dot_f32,
        .axpy_f32 = axpy_f32,
        .f32_to_f16 = f32_to_f16,
        .f16_to_f32 = f16_to_f32,
        .softmax = softmax,
        .multiply_add = multiply_add,
        .unpack_panels = unpack_panels,
        .softmax_piece = softmax_piece,
        .matmul_nested = matmul_nested,
        .dequantize_nested = dequantize_nested,
    };
}

}  // namespace

constinit const KernelSet kKernels = table<matmul_codes>("avx2");
constinit const KernelSet kAvxVnniKernels = table<matmul_codes_avx_vnni>("avx_vnni");
constinit const KernelSet kAvx512Kernels = table<matmul_codes_avx512>("avx512");

}  // namespace weir::kernels::avx2
