// Nested blocks by the definition: sums of exact integer products, put together in double.
#include <algorithm>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/half.h"
#include "kernels/scalar.h"

namespace weir::kernels::scalar {
namespace {

// 32 weights: scale * code + min.
struct Group {
    float scale = 0, min = 0;
    uint8_t code[kCellElements] = {};  // up to 255
};

// Which super-block of a row, and how many groups it has.
struct Place {
    size_t block;
    size_t groups;
    bool whole() const { return groups == kCellsPerSuper; }
};

unsigned two_bits(const std::byte* plane, const Place& at, size_t c, size_t j) {
    const std::byte* const b = plane + at.block * 64;
    if (at.whole()) return std::to_integer<unsigned>(b[j / 16 * 32 + c / 4 * 16 + j % 16]) >> (c % 4 * 2) & 3;
    return std::to_integer<unsigned>(b[8 * c + j % 8]) >> (j / 8 * 2) & 3;
}

unsigned one_bit(const std::byte* plane, const Place& at, size_t c, size_t j) {
    const std::byte* const b = plane + at.block * 32;
    if (at.whole()) return std::to_integer<unsigned>(b[c / 4 * 16 + j % 16]) >> (c % 4 * 2 + j / 16) & 1;
    return std::to_integer<unsigned>(b[4 * c + j % 4]) >> (j / 4) & 1;
}

void scale_and_min(const std::byte* plane, const Place& at, size_t c, float* scale, float* min) {
    const std::byte* const b = plane + at.block * 16;
    const float d = load_half(b), dmin = load_half(b + 2);
    uint32_t s, m;
    if (at.whole()) {
        uint8_t packed[12];
        std::memcpy(packed, b + 4, sizeof packed);
        s = q4_k_scale(packed, c);
        m = q4_k_min(packed, c);
    } else {
        const uint32_t both = static_cast<uint32_t>(load_u16(b + 4 + c * 12 / 8)) >> (c % 2 * 4);
        s = both & 63;
        m = both >> 6 & 63;
    }
    *scale = d * static_cast<float>(s);
    *min = -(dmin * static_cast<float>(m));
}

unsigned code_of(Level level, const NestedRows& w, const Place& at, size_t c, size_t j) {
    unsigned high = two_bits(w.at(Plane::kP1), at, c, j);
    if (level == Level::k2) return high;
    high = 2 * high + one_bit(w.at(Plane::kP2), at, c, j);
    if (level == Level::k3) return high;
    high = 2 * high + one_bit(w.at(Plane::kP3), at, c, j);
    if (level == Level::k4) return high;
    const unsigned low = two_bits(w.at(Plane::kP4a), at, c, j);
    if (level == Level::k6) return w.fine_steps * high + low;
    return 4 * w.fine_steps * high + 4 * low + two_bits(w.at(Plane::kP4b), at, c, j);
}

Plane scales_of(Level level) { return level == Level::k2 ? Plane::kS2 : level == Level::k3 ? Plane::kS3 : Plane::kS4; }

void unpack(Level level, const NestedRows& w, const Place& at, Group* groups) {
    for (size_t c = 0; c < at.groups; ++c) {
        Group& g = groups[c];
        scale_and_min(w.at(scales_of(level)), at, c, &g.scale, &g.min);
        if (level >= Level::k6) {
            const float centre = level == Level::k6 ? 1.5f : 7.5f;
            g.scale *= 1.0f / static_cast<float>(level == Level::k6 ? w.fine_steps : 4 * w.fine_steps);
            g.min -= centre * g.scale;
        }
        for (size_t j = 0; j < kCellElements; ++j) g.code[j] = static_cast<uint8_t>(code_of(level, w, at, c, j));
    }
}

// `low`: low bytes of the Super's codes, nullptr where codes are all there is.
double dot_group(const Group& g, const Super& x, const int8_t* low, size_t b) {
    int32_t sum = 0;  // at most 32 * 255 * 16319
    for (size_t j = 0; j < kCellElements; ++j) {
        const size_t at = int8_place(b, j);
        const int32_t code = low == nullptr ? x.codes[at] : kHighUnit * x.codes[at] + low[at];
        sum += int32_t{g.code[j]} * code;
    }
    return static_cast<double>(g.scale) * sum * static_cast<double>(x.scale[b]) +
           static_cast<double>(g.min) * static_cast<double>(x.sum[b]);
}

double dot_super(Activation a, const Group* groups, const Place& at, const char* x, size_t supers) {
    double sum = 0;
    if (a == Activation::kF32) {
        for (size_t i = 0; i < at.groups * kCellElements; ++i) {
            float value;
            std::memcpy(&value, x + (at.block * kSuperElements + i) * sizeof value, sizeof value);
            const Group& g = groups[i / kCellElements];
            const float weight = g.scale * static_cast<float>(g.code[i % kCellElements]) + g.min;
            sum += static_cast<double>(weight) * static_cast<double>(value);
        }
        return sum;
    }
    Super super;
    std::memcpy(&super, x + at.block * sizeof super, sizeof super);
    const auto* const low = reinterpret_cast<const int8_t*>(x + low_at(supers) + at.block * kSuperElements);
    for (size_t b = 0; b < at.groups; ++b) sum += dot_group(groups[b], super, has_low_bytes(a) ? low : nullptr, b);
    return sum;
}

constexpr size_t kTokenGroup = 16;  // that share one unpacking of a row

}  // namespace

void matmul_nested(Level level, Activation a, const NestedRows& w, size_t rows, size_t k, const void* x,
                   size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    const size_t supers = (k + kSuperElements - 1) / kSuperElements;
    for (size_t r = 0; r < rows; ++r) {
        const NestedRows row = w.from(r, k);
        for (size_t t = 0; t < tokens; t += kTokenGroup) {
            const size_t count = std::min(kTokenGroup, tokens - t);
            double sums[kTokenGroup] = {};
            for (size_t s = 0; s < supers; ++s) {
                const Place at{s, std::min(kCellsPerSuper, k / kCellElements - s * kCellsPerSuper)};
                Group groups[kCellsPerSuper];
                unpack(level, row, at, groups);
                for (size_t i = 0; i < count; ++i) {
                    sums[i] += dot_super(a, groups, at, static_cast<const char*>(x) + (t + i) * x_stride_bytes, supers);
                }
            }
            for (size_t i = 0; i < count; ++i) y[(t + i) * y_stride + r] = static_cast<float>(sums[i]);
        }
    }
}

void dequantize_nested(Level level, const NestedRows& row, float* dst, size_t k) {
    for (size_t s = 0; s * kSuperElements < k; ++s) {
        const Place at{s, std::min(kCellsPerSuper, k / kCellElements - s * kCellsPerSuper)};
        Group groups[kCellsPerSuper];
        unpack(level, row, at, groups);
        for (size_t i = 0; i < at.groups * kCellElements; ++i) {
            const Group& g = groups[i / kCellElements];
            dst[s * kSuperElements + i] = g.scale * static_cast<float>(g.code[i % kCellElements]) + g.min;
        }
    }
}

}  // namespace weir::kernels::scalar
