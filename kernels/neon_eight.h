// Eight floats in two NEON registers: what the kernels take at a time, because a super-block has eight cells and eight
// lanes hide the latency of the additions. Every operation is lane by lane.
//
// Everything lives in an unnamed namespace: objects built for one instruction set must not export an inline function,
// or the linker may give it to code that runs on lesser CPUs. Internal to kernels/.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weir::kernels::neon {
namespace {

struct Eight {
    float32x4_t low, high;
};

[[gnu::always_inline]] inline Eight all(float v) { return {vdupq_n_f32(v), vdupq_n_f32(v)}; }
[[gnu::always_inline]] inline Eight add(Eight a, Eight b) {
    return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}
[[gnu::always_inline]] inline Eight sub(Eight a, Eight b) {
    return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}
[[gnu::always_inline]] inline Eight mul(Eight a, Eight b) {
    return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}
[[gnu::always_inline]] inline Eight mul(Eight a, float b) { return {vmulq_n_f32(a.low, b), vmulq_n_f32(a.high, b)}; }
[[gnu::always_inline]] inline Eight div(Eight a, Eight b) {
    return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}
// a * b + c, rounded once.
[[gnu::always_inline]] inline Eight fma(Eight a, Eight b, Eight c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
[[gnu::always_inline]] inline Eight fma(Eight a, float b, Eight c) {
    return {vfmaq_n_f32(c.low, a.low, b), vfmaq_n_f32(c.high, a.high, b)};
}
[[gnu::always_inline]] inline Eight floats_of(int32x4_t low, int32x4_t high) {
    return {vcvtq_f32_s32(low), vcvtq_f32_s32(high)};
}
[[gnu::always_inline]] inline Eight floats_of(int16x8_t v) {
    return floats_of(vmovl_s16(vget_low_s16(v)), vmovl_high_s16(v));
}
[[gnu::always_inline]] inline Eight halves_as_floats(uint16x8_t v) {
    const float16x8_t h = vreinterpretq_f16_u16(v);
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}

[[gnu::always_inline]] inline Eight load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
[[gnu::always_inline]] inline void store(float* p, Eight v) {
    vst1q_f32(p, v.low);
    vst1q_f32(p + 4, v.high);
}

[[gnu::always_inline]] inline Eight eight_at(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return {vreinterpretq_f32_u8(vld1q_u8(bytes)), vreinterpretq_f32_u8(vld1q_u8(bytes + 16))};
}

[[gnu::always_inline]] inline float float_at(const void* p) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// The one order in which eight lanes become a sum: lane b with b + 4, then b with b + 2, then the last two.
[[gnu::always_inline]] inline float sum_of_lanes(Eight v) {
    const float32x4_t four = vaddq_f32(v.low, v.high);
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

// How eight elements of a float type are read, and the last n < 8 of a row (the other lanes are zero).
struct LoadF32 {
    static constexpr size_t kBytes = 4;
    [[gnu::always_inline]] static Eight eight(const char* p) { return eight_at(p); }
    [[gnu::always_inline]] static Eight some(const char* p, size_t n) {
        float values[8] = {};
        std::memcpy(values, p, kBytes * n);
        return load(values);
    }
};

struct LoadF16 {
    static constexpr size_t kBytes = 2;
    [[gnu::always_inline]] static Eight eight(const char* p) {
        return halves_as_floats(vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p))));
    }
    [[gnu::always_inline]] static Eight some(const char* p, size_t n) {
        char values[16] = {};
        std::memcpy(values, p, kBytes * n);
        return eight(values);
    }
};

struct LoadBF16 {
    static constexpr size_t kBytes = 2;
    [[gnu::always_inline]] static Eight eight(const char* p) {
        const uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
        return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))};
    }
    [[gnu::always_inline]] static Eight some(const char* p, size_t n) {
        char values[16] = {};
        std::memcpy(values, p, kBytes * n);
        return eight(values);
    }
};

}  // namespace
}  // namespace weir::kernels::neon
