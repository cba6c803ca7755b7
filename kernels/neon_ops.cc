// What a decoder does besides matrix products, eight floats at a time; and the NEON tables.
#include <arm_neon.h>

#include <cstring>

#include "kernels/neon.h"
#include "kernels/neon_expand.h"
#include "kernels/scalar.h"

namespace weir::kernels::neon {
namespace {

// Calls f(i, load, store) for each eight elements and once more for the rest; load(p) gives zeros in the lanes past the
// end, store(p, v) leaves what is there alone.
template <class F>
[[gnu::always_inline]] inline void for_each_eight(size_t n, F&& f) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        f(
            i, [](const float* p) __attribute__((always_inline)) { return load(p); },
            [](float* p, Eight v) __attribute__((always_inline)) { store(p, v); });
    }
    if (i == n) return;
    const size_t left = n - i;
    f(
        i,
        [left](const float* p)
            __attribute__((always_inline)) { return LoadF32::some(reinterpret_cast<const char*>(p), left); },
        [left](float* p, Eight v) __attribute__((always_inline)) {
            float last[8];
            store(last, v);
            std::memcpy(p, last, left * sizeof(float));
        });
}

// The first n lanes of v, and those of `rest` after them.
[[gnu::always_inline]] inline Eight first_lanes(size_t n, Eight v, Eight rest) {
    const uint32_t lanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const uint32x4_t end = vdupq_n_u32(static_cast<uint32_t>(n));
    return {vbslq_f32(vcltq_u32(vld1q_u32(lanes), end), v.low, rest.low),
            vbslq_f32(vcltq_u32(vld1q_u32(lanes + 4), end), v.high, rest.high)};
}

// exp(x): x = n * ln 2 + r, |r| <= ln 2 / 2, ln 2 in two parts (Cody & Waite 1980), a polynomial of degree 6 whose
// coefficients are the minimax fit of (exp(r) - 1 - r) / r^2 (relative error 3e-9), and 2^n in two factors so that
// results reach down into the subnormals. Within 1.1 ULP where the result is normal (a test measures it); infinity
// above 88.73, zero below -103.98, NaN for NaN.
[[gnu::always_inline]] inline float32x4_t exp4(float32x4_t x) {
    x = vmaxq_f32(vminq_f32(x, vdupq_n_f32(89.0f)), vdupq_n_f32(-105.0f));  // both let a NaN through
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t r = vfmsq_n_f32(x, n, 0.693145752f);  // 0x1.62e4p-1: exact products
    r = vfmsq_n_f32(r, n, 1.42860682e-6f);            // ln 2 - that
    float32x4_t p = vdupq_n_f32(0.001381459838f);
    p = vfmaq_f32(vdupq_n_f32(0.008368716898f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.04166838805f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.1666652063f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.4999999345f), p, r);
    p = vfmaq_f32(r, p, vmulq_f32(r, r));
    p = vaddq_f32(p, vdupq_n_f32(1.0f));
    const int32x4_t power = vcvtq_s32_f32(n);
    const int32x4_t first = vshrq_n_s32(power, 1);
    const int32x4_t second = vsubq_s32(power, first);
    const int32x4_t bias = vdupq_n_s32(127);
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(first, bias), 23)));
    return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(second, bias), 23)));
}

[[gnu::always_inline]] inline Eight exp8(Eight x) { return {exp4(x.low), exp4(x.high)}; }

[[gnu::always_inline]] inline double sum_of_squares(const float* x, size_t n) {
    float64x2_t sum[4];
    for (auto& s : sum) s = vdupq_n_f64(0.0);
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto) __attribute__((always_inline)) {
            const Eight v = load_eight(x + i);
            const float64x2_t wide[4] = {vcvt_f64_f32(vget_low_f32(v.low)), vcvt_high_f64_f32(v.low),
                                         vcvt_f64_f32(vget_low_f32(v.high)), vcvt_high_f64_f32(v.high)};
            for (size_t j = 0; j < 4; ++j) sum[j] = vfmaq_f64(sum[j], wide[j], wide[j]);
        });
    return vaddvq_f64(vaddq_f64(vaddq_f64(sum[0], sum[2]), vaddq_f64(sum[1], sum[3])));
}

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y) {
    const double mean = sum_of_squares(x, n) / static_cast<double>(n);
    const auto factor = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight) __attribute__((always_inline)) {
            store_eight(y + i, mul(mul(load_eight(x + i), factor), load_eight(weight + i)));
        });
}

void swiglu(const float* gate, const float* up, size_t n, float* out) {
    const Eight one = all(1.0f);
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight) __attribute__((always_inline)) {
            const Eight g = load_eight(gate + i);
            const Eight below = add(one, exp8({vnegq_f32(g.low), vnegq_f32(g.high)}));
            store_eight(out + i, mul(div(g, below), load_eight(up + i)));
        });
}

void geglu(const float* gate, const float* up, size_t n, float* out) {
    const Eight one = all(1.0f);
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight) __attribute__((always_inline)) {
            const Eight g = load_eight(gate + i);
            const Eight minus_2u = mul(mul(g, -1.59576912f), fma(mul(g, 0.044715f), g, one));
            store_eight(out + i, mul(div(g, add(one, exp8(minus_2u))), load_eight(up + i)));
        });
}

// tanh(v) = 1 - 2 / (1 + exp(2 v)): within 2e-7 of the cap.
void soft_cap(float* x, size_t n, float cap) {
    const Eight one = all(1.0f), two = all(2.0f), c = all(cap);
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight) __attribute__((always_inline)) {
            const Eight e = exp8(mul(div(load_eight(x + i), c), two));
            store_eight(x + i, mul(c, sub(one, div(two, add(one, e)))));
        });
}

void add_to(float* x, const float* y, size_t n) {
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight)
               __attribute__((always_inline)) { store_eight(x + i, add(load_eight(x + i), load_eight(y + i))); });
}

// Four independent sums, so that the additions' latency is hidden; joined in a fixed order.
float dot_f32(const float* a, const float* b, size_t n) {
    Eight sum[4];
    for (Eight& s : sum) s = all(0.0f);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 4; ++j) sum[j] = fma(load(a + i + 8 * j), load(b + i + 8 * j), sum[j]);
    }
    for (; i + 8 <= n; i += 8) sum[0] = fma(load(a + i), load(b + i), sum[0]);
    if (i < n) {
        const Eight rest = LoadF32::some(reinterpret_cast<const char*>(a + i), n - i);
        sum[1] = fma(rest, LoadF32::some(reinterpret_cast<const char*>(b + i), n - i), sum[1]);
    }
    return sum_of_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

void axpy_f32(float s, const float* v, size_t n, float* acc) {
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight) __attribute__((always_inline)) {
            store_eight(acc + i, fma(load_eight(v + i), s, load_eight(acc + i)));
        });
}

void f32_to_f16(const float* x, size_t n, uint16_t* y) {
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto) __attribute__((always_inline)) {
            const Eight v = load_eight(x + i);
            const uint16x8_t halves = vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.low), v.high));
            if (n - i >= 8) return vst1q_u16(y + i, halves);
            uint16_t last[8];
            vst1q_u16(last, halves);
            std::memcpy(y + i, last, (n - i) * sizeof(uint16_t));
        });
}

void f16_to_f32(const uint16_t* x, size_t n, float* y) {
    expand_floats<LoadF16>(reinterpret_cast<const char*>(x), y, n);
}

float softmax_piece(float* x, size_t n, float* max, float* sum) {
    // Lanes past the end must not win the maximum, so they repeat what was the largest before.
    const Eight before = all(*max);
    Eight largest = before;
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto) __attribute__((always_inline)) {
            Eight v = load_eight(x + i);
            if (n - i < 8) v = first_lanes(n - i, v, before);
            largest = {vmaxq_f32(largest.low, v.low), vmaxq_f32(largest.high, v.high)};
        });
    const Eight top = all(vmaxvq_f32(vmaxq_f32(largest.low, largest.high)));

    Eight sums = all(0.0f);  // a NaN anywhere reaches them
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight) __attribute__((always_inline)) {
            Eight e = exp8(sub(load_eight(x + i), top));
            if (n - i < 8) e = first_lanes(n - i, e, all(0.0f));
            sums = add(sums, e);
            store_eight(x + i, e);
        });
    const float factor = vgetq_lane_f32(exp4(vsubq_f32(before.low, top.low)), 0);
    *sum = *sum * factor + sum_of_lanes(sums);
    *max = vgetq_lane_f32(top.low, 0);
    return factor;
}

void softmax(float* x, size_t n) {
    float max = -__builtin_inff(), sum = 0.0f;
    softmax_piece(x, n, &max, &sum);
    const float inverse = 1.0f / sum;
    for_each_eight(
        n, [&](size_t i, auto load_eight, auto store_eight)
               __attribute__((always_inline)) { store_eight(x + i, mul(load_eight(x + i), inverse)); });
}

using MatmulCodes = decltype(matmul_codes);

template <MatmulCodes* kCodes>
void matmul(Type type, Activation a, const void* w, size_t rows, size_t k, const void* x, size_t x_stride_bytes,
            size_t tokens, float* y, size_t y_stride) {
    const char* row = static_cast<const char*>(x);
    if (a == Activation::kF32) return matmul_floats(type, w, rows, k, row, x_stride_bytes, tokens, y, y_stride);
    kCodes(type, a, w, rows, k, row, x_stride_bytes, tokens, y, y_stride);
}

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
        .add = add_to,
        .dot_f32 = dot_f32,
        .axpy_f32 = axpy_f32,
        .f32_to_f16 = f32_to_f16,
        .f16_to_f32 = f16_to_f32,
        .softmax = softmax,
        .multiply_add = multiply_add,
        .unpack_panels = unpack_panels,
        .softmax_piece = softmax_piece,
        .matmul_nested = scalar::matmul_nested,
        .dequantize_nested = scalar::dequantize_nested,
    };
}

}  // namespace

constinit const KernelSet kKernels = table<matmul_codes>("neon");
constinit const KernelSet kDotprodKernels = table<matmul_codes_dotprod>("neon_dotprod");
constinit const KernelSet kI8mmKernels = table<matmul_codes_i8mm>("neon_i8mm");

}  // namespace weir::kernels::neon
