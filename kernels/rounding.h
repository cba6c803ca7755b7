// What quantising weights begins with, whatever the type. Internal to kernels/.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace weir::kernels {

inline void store_u16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, sizeof v); }

// Stores a scale as half and returns what a reader will see.
inline float store_half(uint8_t* p, float v) {
    const uint16_t h = float_to_half(v);
    store_u16(p, h);
    return half_to_float(h);
}

inline float inverse_of(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

// Nearest integer within [low, high]; NaN gives low.
inline int nearest(float v, int low, int high) {
    if (!(v > static_cast<float>(low))) return low;
    if (v >= static_cast<float>(high)) return high;
    return static_cast<int>(std::lrintf(v));
}

}  // namespace weir::kernels
