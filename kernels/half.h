// IEEE half and bfloat16 against float, without help from the CPU. Static on purpose: objects built for one
// instruction set must not export inline functions. Internal to kernels/.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace weir::kernels {

static inline uint16_t load_u16(const void* p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Exact. Every half is a float; subnormal halves become normal floats.
static inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) {  // infinity, or NaN made quiet as vcvtph2ps does
        const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
        return std::bit_cast<float>(sign | 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13);
    }
    if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

static inline float load_half(const void* p) {
    return half_to_float(load_u16(p));
}

// Round to nearest even; overflow gives infinity, NaN stays NaN.
static inline uint16_t float_to_half(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // from 65520 on
    if (magnitude < 0x38800000u) {
        // Below the smallest normal half: adding 0.5 leaves units of 2^-24 in the low bits, rounded by the
        // adder.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t odd = magnitude >> 13 & 1u;
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

static inline float bfloat_to_float(uint16_t b) {
    return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

// Round to nearest even; NaN stays NaN.
static inline uint16_t float_to_bfloat(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace weir::kernels
