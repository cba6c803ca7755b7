// Packing of activations (the same bits as the scalar kernels'), and quantised weights to floats.
#include <arm_neon.h>

#include <cstring>

#include "kernels/activation.h"
#include "kernels/neon.h"
#include "kernels/neon_expand.h"

namespace weir::kernels::neon {
namespace {

[[gnu::always_inline]] inline void set_scales(char* out, size_t b, float scale, int low, int high) {
    const float values[4] = {scale, scale * static_cast<float>(low + high), scale * static_cast<float>(low),
                             scale * static_cast<float>(high)};
    std::memcpy(out + offsetof(Int8Super, scale) + 4 * b, &values[0], 4);
    std::memcpy(out + offsetof(Int8Super, sum) + 4 * b, &values[1], 4);
    std::memcpy(out + offsetof(Int8Super, sum_low) + 4 * b, &values[2], 4);
    std::memcpy(out + offsetof(Int8Super, sum_high) + 4 * b, &values[3], 4);
}

// Magnitudes compare as integers, so a NaN is the largest and is not lost.
[[gnu::always_inline]] inline float largest_magnitude(const float32x4_t (&x)[8]) {
    uint32x4_t largest = vdupq_n_u32(0);
    for (const float32x4_t v : x)
        largest = vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7fffffff)));
    const uint32_t bits = vmaxvq_u32(largest);
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

[[gnu::always_inline]] inline void store_bytes(char* out, size_t b, size_t half, int16x8_t first, int16x8_t second) {
    const int8x16_t bytes = vqmovn_high_s16(vqmovn_s16(first), second);
    vst1q_s8(reinterpret_cast<int8_t*>(out) + int8_place(b, 16 * half), bytes);
}

// Sixteen codes in their order; `out` is a Super, zeroed.
[[gnu::always_inline]] inline void store_codes(Int8Super*, char* out, size_t b, size_t half, int16x8_t first,
                                               int16x8_t second) {
    store_bytes(out + offsetof(Int8Super, codes), b, half, first, second);
}

[[gnu::always_inline]] inline void store_codes(Int16Super*, char* out, size_t b, size_t half, int16x8_t first,
                                               int16x8_t second) {
    char* at = out + offsetof(Int16Super, codes) + sizeof(int16_t) * int16_place(b, 16 * half);
    vst1q_u8(reinterpret_cast<uint8_t*>(at), vreinterpretq_u8_s16(vuzp1q_s16(first, second)));       // evens
    vst1q_u8(reinterpret_cast<uint8_t*>(at) + 32, vreinterpretq_u8_s16(vuzp2q_s16(first, second)));  // odds
    const int16x8_t high0 = vshrq_n_s16(vaddq_s16(first, vdupq_n_s16(128)), 8);
    const int16x8_t high1 = vshrq_n_s16(vaddq_s16(second, vdupq_n_s16(128)), 8);
    store_bytes(out + offsetof(Int16Super, high), b, half, high0, high1);
    store_bytes(out + offsetof(Int16Super, low), b, half, vsubq_s16(first, vshlq_n_s16(high0, 8)),
                vsubq_s16(second, vshlq_n_s16(high1, 8)));
}

template <class Super>
[[gnu::always_inline]] inline void pack_cell(const float* x, size_t b, float code_max, char* out) {
    float32x4_t v[8];
    for (size_t i = 0; i < 8; ++i) v[i] = vld1q_f32(x + 4 * i);
    const float largest = largest_magnitude(v);
    if (!(largest <= 3.40282347e38f)) return set_scales(out, b, __builtin_nanf(""), 0, 0);
    if (largest < kSmallestMagnitude) return;
    const float inverse = code_max / largest;
    int32x4_t codes[8];
    for (size_t i = 0; i < 8; ++i) codes[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
    int sums[2];
    for (size_t half = 0; half < 2; ++half) {
        const int32x4_t* c = codes + 4 * half;
        sums[half] = vaddvq_s32(vaddq_s32(vaddq_s32(c[0], c[1]), vaddq_s32(c[2], c[3])));
        store_codes(static_cast<Super*>(nullptr), out, b, half, vqmovn_high_s32(vqmovn_s32(c[0]), c[1]),
                    vqmovn_high_s32(vqmovn_s32(c[2]), c[3]));
    }
    set_scales(out, b, largest / code_max, sums[0], sums[1]);
}

template <class Super>
void pack(const float* x, size_t k, float code_max, char* out) {
    const size_t cells = k / kCellElements;
    for (size_t first = 0; first < cells; first += kCellsPerSuper) {
        const size_t count = cells - first < kCellsPerSuper ? cells - first : kCellsPerSuper;
        std::memset(out, 0, sizeof(Super));
        for (size_t b = 0; b < count; ++b) pack_cell<Super>(x + (first + b) * kCellElements, b, code_max, out);
        out += sizeof(Super);
    }
}

}  // namespace

void quantize(Activation a, const float* x, size_t k, void* out) {
    switch (a) {
        case Activation::kF32:
            if (k != 0) std::memcpy(out, x, k * sizeof(float));
            return;
        case Activation::kInt8: return pack<Int8Super>(x, k, kInt8Max, static_cast<char*>(out));
        case Activation::kInt16: return pack<Int16Super>(x, k, kInt16Max, static_cast<char*>(out));
    }
}

void dequantize(Type type, const void* src, float* dst, size_t n) {
    expand_any(type, static_cast<const char*>(src), dst, n);
}

}  // namespace weir::kernels::neon
