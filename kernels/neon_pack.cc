// Packing of activations (the same bits as the scalar kernels'), and quantised weights to floats.
#include <arm_neon.h>

#include <cstring>

#include "kernels/activation.h"
#include "kernels/neon.h"
#include "kernels/neon_expand.h"

namespace weir::kernels::neon {
namespace {

constexpr int kHighBits = 7;
static_assert(1 << kHighBits == kHighUnit);

[[gnu::always_inline]] inline void set_scales(char* out, size_t b, float scale, int low, int high) {
    const float values[4] = {scale, scale * static_cast<float>(low + high), scale * static_cast<float>(low),
                             scale * static_cast<float>(high)};
    std::memcpy(out + offsetof(Super, scale) + 4 * b, &values[0], 4);
    std::memcpy(out + offsetof(Super, sum) + 4 * b, &values[1], 4);
    std::memcpy(out + offsetof(Super, sum_low) + 4 * b, &values[2], 4);
    std::memcpy(out + offsetof(Super, sum_high) + 4 * b, &values[3], 4);
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

[[gnu::always_inline]] inline float largest_of_cell(const float* x) {
    float32x4_t v[8];
    for (size_t i = 0; i < 8; ++i) v[i] = vld1q_f32(x + 4 * i);
    return largest_magnitude(v);
}

// One cell; `out` is its Super, zeroed. Codes are whole multiples of `unit`, of at most code_max units. Low bytes,
// if there are any, go to `low`; in the fine form the codes go to `whole`, the cell's place there.
[[gnu::always_inline]] inline void pack_cell(const float* x, size_t b, float largest, float code_max, int unit,
                                             char* out, char* low, char* whole) {
    if (!(largest <= 3.40282347e38f)) return set_scales(out, b, __builtin_nanf(""), 0, 0);
    if (largest < kSmallestMagnitude) return;
    const float inverse = code_max / largest;
    int32x4_t codes[8];
    for (size_t i = 0; i < 8; ++i) codes[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inverse));
    int sums[2];
    for (size_t half = 0; half < 2; ++half) {
        const int32x4_t* c = codes + 4 * half;
        sums[half] = unit * vaddvq_s32(vaddq_s32(vaddq_s32(c[0], c[1]), vaddq_s32(c[2], c[3])));
        const int16x8_t first = vqmovn_high_s32(vqmovn_s32(c[0]), c[1]);
        const int16x8_t second = vqmovn_high_s32(vqmovn_s32(c[2]), c[3]);
        if (whole != nullptr) {
            auto* const codes16 = reinterpret_cast<int16_t*>(whole) + 16 * half;
            vst1q_s16(codes16, vmulq_n_s16(first, static_cast<int16_t>(unit)));
            vst1q_s16(codes16 + 8, vmulq_n_s16(second, static_cast<int16_t>(unit)));
        }
        if (low == nullptr) {
            store_bytes(out + offsetof(Super, codes), b, half, first, second);
            continue;
        }
        const int16x8_t high0 = vrshrq_n_s16(first, kHighBits), high1 = vrshrq_n_s16(second, kHighBits);
        store_bytes(out + offsetof(Super, codes), b, half, high0, high1);
        store_bytes(low, b, half, vsubq_s16(first, vshlq_n_s16(high0, kHighBits)),
                    vsubq_s16(second, vshlq_n_s16(high1, kHighBits)));
    }
    set_scales(out, b, largest / (code_max * static_cast<float>(unit)), sums[0], sums[1]);
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
        case Activation::kInt8: return pack_int8(x, k, static_cast<char*>(out));
        case Activation::kFine:
        case Activation::kWhole: return pack_fine(x, k, fine_ratio(a), static_cast<char*>(out));
    }
}

void dequantize(Type type, const void* src, float* dst, size_t n) {
    expand_any(type, static_cast<const char*>(src), dst, n);
}

}  // namespace weir::kernels::neon
