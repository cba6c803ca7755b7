#include "kernels/quantize_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/half.h"
#include "kernels/quantize_grids.h"
#include "kernels/rounding.h"

namespace weir::kernels {
namespace {

struct Extremes {
    float min, max;
    float far;  // the element of the largest magnitude, with its sign
};

Extremes extremes_of(const float* x, size_t n) {
    Extremes e{x[0], x[0], x[0]};
    for (size_t i = 1; i < n; ++i) {
        e.min = std::min(e.min, x[i]);
        e.max = std::max(e.max, x[i]);
    }
    e.far = -e.min > e.max ? e.min : e.max;
    return e;
}

// Codes 0 to `top` of weights scale * q + min.
void encode(const float* x, size_t n, float scale, float min, int top, uint8_t* codes) {
    const float inverse = inverse_of(scale);
    for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(nearest((x[i] - min) * inverse, 0, top));
}

// Codes 0 to 2 * half - 1 of weights scale * (q - half).
void encode_centred(const float* x, size_t n, float scale, int half, uint8_t* codes) {
    const float inverse = inverse_of(scale);
    for (size_t i = 0; i < n; ++i) {
        codes[i] = static_cast<uint8_t>(nearest(x[i] * inverse, -half, half - 1) + half);
    }
}

void pack_nibbles(const uint8_t codes[32], uint8_t qs[16]) {
    for (size_t j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

void pack_fifth_bits(const uint8_t codes[32], uint8_t qh[4]) {
    std::memset(qh, 0, 4);
    for (size_t i = 0; i < 32; ++i) qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | (codes[i] >> 4) << (i % 8));
}

// The centred types give the code 0 to the farthest element, since the range reaches one step further down.
void pack_block(const float* x, BlockQ4_0& b) {
    uint8_t codes[32];
    encode_centred(x, 32, store_half(b.d, extremes_of(x, 32).far / -8.0f), 8, codes);
    pack_nibbles(codes, b.qs);
}

void pack_block(const float* x, BlockQ4_1& b) {
    uint8_t codes[32];
    const Extremes e = extremes_of(x, 32);
    const float scale = store_half(b.d, (e.max - e.min) / 15.0f);
    encode(x, 32, scale, store_half(b.m, e.min), 15, codes);
    pack_nibbles(codes, b.qs);
}

void pack_block(const float* x, BlockQ5_0& b) {
    uint8_t codes[32];
    encode_centred(x, 32, store_half(b.d, extremes_of(x, 32).far / -16.0f), 16, codes);
    pack_nibbles(codes, b.qs);
    pack_fifth_bits(codes, b.qh);
}

void pack_block(const float* x, BlockQ5_1& b) {
    uint8_t codes[32];
    const Extremes e = extremes_of(x, 32);
    const float scale = store_half(b.d, (e.max - e.min) / 31.0f);
    encode(x, 32, scale, store_half(b.m, e.min), 31, codes);
    pack_nibbles(codes, b.qs);
    pack_fifth_bits(codes, b.qh);
}

void pack_block(const float* x, BlockQ8_0& b) {
    const float inverse = inverse_of(store_half(b.d, std::fabs(extremes_of(x, 32).far) / 127.0f));
    for (size_t i = 0; i < 32; ++i) b.qs[i] = static_cast<uint8_t>(nearest(x[i] * inverse, -127, 127));
}

// Scales and minima of the groups of a K block that has both, as integers 0 to `top` under d and dmin. A
// group whose elements are all positive keeps the min 0: the format can only subtract.
template <size_t kGroups>
struct GroupScales {
    uint8_t scale[kGroups];
    uint8_t min[kGroups];
    float d, dmin;

    GroupScales(const float* x, int code_top, int top, uint8_t* d_bytes, uint8_t* dmin_bytes) {
        constexpr size_t n = kSuperElements / kGroups;
        float scales[kGroups], mins[kGroups];
        float largest_scale = 0.0f, largest_min = 0.0f;
        for (size_t g = 0; g < kGroups; ++g) {
            const Extremes e = extremes_of(x + g * n, n);
            mins[g] = std::max(0.0f, -e.min);
            scales[g] = std::max(0.0f, e.max + mins[g]) / static_cast<float>(code_top);
            largest_scale = std::max(largest_scale, scales[g]);
            largest_min = std::max(largest_min, mins[g]);
        }
        d = store_half(d_bytes, largest_scale / static_cast<float>(top));
        dmin = store_half(dmin_bytes, largest_min / static_cast<float>(top));
        for (size_t g = 0; g < kGroups; ++g) {
            scale[g] = static_cast<uint8_t>(nearest(scales[g] * inverse_of(d), 0, top));
            min[g] = static_cast<uint8_t>(nearest(mins[g] * inverse_of(dmin), 0, top));
        }
    }

    void encode_all(const float* x, int code_top, uint8_t* codes) const {
        constexpr size_t n = kSuperElements / kGroups;
        for (size_t g = 0; g < kGroups; ++g) {
            encode(x + g * n, n, d * static_cast<float>(scale[g]), -(dmin * static_cast<float>(min[g])),
                   code_top, codes + g * n);
        }
    }
};

// Signed scales of 16 groups of a K block without minima, `half` the codes' centre, in [low, high] under d.
template <int kHalf, int kLow, int kHigh>
float centred_group_scales(const float* x, uint8_t* d_bytes, int scale[16]) {
    float scales[16];
    for (size_t g = 0; g < 16; ++g) scales[g] = extremes_of(x + g * 16, 16).far / static_cast<float>(-kHalf);
    const float d = store_half(d_bytes, extremes_of(scales, 16).far / static_cast<float>(kLow));
    for (size_t g = 0; g < 16; ++g) scale[g] = nearest(scales[g] * inverse_of(d), kLow, kHigh);
    return d;
}

void pack_two_bits(const uint8_t codes[256], uint8_t qs[64]) {
    std::memset(qs, 0, 64);
    for (size_t e = 0; e < 256; ++e) {
        uint8_t& byte = qs[e / 128 * 32 + e % 32];
        byte = static_cast<uint8_t>(byte | (codes[e] & 3) << (e / 32 % 4 * 2));
    }
}

void pack_block(const float* x, BlockQ2_K& b) {
    uint8_t codes[256];
    const GroupScales<16> groups(x, 3, 15, b.d, b.dmin);
    groups.encode_all(x, 3, codes);
    for (size_t g = 0; g < 16; ++g) b.scales[g] = static_cast<uint8_t>(groups.scale[g] | groups.min[g] << 4);
    pack_two_bits(codes, b.qs);
}

void pack_block(const float* x, BlockQ3_K& b) {
    uint8_t codes[256];
    int scale[16];
    const float d = centred_group_scales<4, -32, 31>(x, b.d, scale);
    std::memset(b.scales, 0, sizeof b.scales);
    for (size_t g = 0; g < 16; ++g) {
        encode_centred(x + g * 16, 16, d * static_cast<float>(scale[g]), 4, codes + g * 16);
        const int stored = scale[g] + 32;
        uint8_t& low = b.scales[g % 8];
        low = static_cast<uint8_t>(low | (stored & 15) << (g / 8 * 4));
        uint8_t& high = b.scales[8 + g % 4];
        high = static_cast<uint8_t>(high | (stored >> 4) << (g / 4 * 2));
    }
    pack_two_bits(codes, b.qs);
    std::memset(b.hmask, 0, sizeof b.hmask);
    for (size_t e = 0; e < 256; ++e) {
        uint8_t& byte = b.hmask[e % 32];
        byte = static_cast<uint8_t>(byte | (codes[e] >> 2) << (e / 32));
    }
}

void pack_k_scales(const GroupScales<8>& groups, uint8_t scales[12]) {
    for (size_t g = 0; g < 4; ++g) {
        scales[g] = static_cast<uint8_t>(groups.scale[g] | (groups.scale[g + 4] >> 4) << 6);
        scales[g + 4] = static_cast<uint8_t>(groups.min[g] | (groups.min[g + 4] >> 4) << 6);
        scales[g + 8] = static_cast<uint8_t>((groups.scale[g + 4] & 15) | (groups.min[g + 4] & 15) << 4);
    }
}

void pack_k_nibbles(const uint8_t codes[256], uint8_t qs[128]) {
    for (size_t i = 0; i < 128; ++i) {
        const size_t e = i / 32 * 64 + i % 32;
        qs[i] = static_cast<uint8_t>((codes[e] & 15) | (codes[e + 32] & 15) << 4);
    }
}

void pack_block(const float* x, BlockQ4_K& b) {
    uint8_t codes[256];
    const GroupScales<8> groups(x, 15, 63, b.d, b.dmin);
    groups.encode_all(x, 15, codes);
    pack_k_scales(groups, b.scales);
    pack_k_nibbles(codes, b.qs);
}

void pack_block(const float* x, BlockQ5_K& b) {
    uint8_t codes[256];
    const GroupScales<8> groups(x, 31, 63, b.d, b.dmin);
    groups.encode_all(x, 31, codes);
    pack_k_scales(groups, b.scales);
    pack_k_nibbles(codes, b.qs);
    std::memset(b.qh, 0, sizeof b.qh);
    for (size_t e = 0; e < 256; ++e)
        b.qh[e % 32] = static_cast<uint8_t>(b.qh[e % 32] | (codes[e] >> 4) << (e / 32));
}

void pack_block(const float* x, BlockQ6_K& b) {
    uint8_t codes[256];
    int scale[16];
    const float d = centred_group_scales<32, -128, 127>(x, b.d, scale);
    for (size_t g = 0; g < 16; ++g) {
        encode_centred(x + g * 16, 16, d * static_cast<float>(scale[g]), 32, codes + g * 16);
        b.scales[g] = static_cast<int8_t>(scale[g]);
    }
    std::memset(b.ql, 0, sizeof b.ql);
    std::memset(b.qh, 0, sizeof b.qh);
    for (size_t e = 0; e < 256; ++e) {
        const size_t n = e / 128, j = e / 32 % 4, l = e % 32;
        uint8_t& low = b.ql[64 * n + 32 * (j % 2) + l];
        low = static_cast<uint8_t>(low | (codes[e] & 15) << (j / 2 * 4));
        uint8_t& high = b.qh[32 * n + l];
        high = static_cast<uint8_t>(high | (codes[e] >> 4) << (2 * j));
    }
}

// Codes of the values that x / scale is nearest to.
void encode_values(const float* x, size_t n, float scale, const int8_t (&values)[16], uint8_t* codes) {
    const float inverse = inverse_of(scale);
    for (size_t i = 0; i < n; ++i) {
        const float target = x[i] * inverse;
        const auto* const best = std::min_element(values, values + 16, [&](int8_t a, int8_t b) {
            return std::fabs(target - static_cast<float>(a)) < std::fabs(target - static_cast<float>(b));
        });
        codes[i] = static_cast<uint8_t>(best - values);
    }
}

// The farthest element becomes the farthest value, which is negative.
void pack_block(const float* x, BlockIQ4_NL& b) {
    uint8_t codes[32];
    const float scale = store_half(b.d, extremes_of(x, 32).far / static_cast<float>(kIq4Values[0]));
    encode_values(x, 32, scale, kIq4Values, codes);
    pack_nibbles(codes, b.qs);
}

void pack_block(const float* x, BlockIQ4_XS& b) {
    float scales[kCellsPerSuper];
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        scales[g] = extremes_of(x + 32 * g, 32).far / static_cast<float>(kIq4Values[0]);
    }
    const float d = store_half(b.d, extremes_of(scales, kCellsPerSuper).far / -32.0f);
    std::memset(b.scales_high, 0, sizeof b.scales_high);
    std::memset(b.scales_low, 0, sizeof b.scales_low);
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        const int scale = nearest(scales[g] * inverse_of(d), -32, 31);
        const int stored = scale + 32;
        b.scales_low[g / 2] = static_cast<uint8_t>(b.scales_low[g / 2] | (stored & 15) << (g % 2 * 4));
        b.scales_high[g / 4] = static_cast<uint8_t>(b.scales_high[g / 4] | (stored >> 4) << (g % 4 * 2));
        uint8_t codes[32];
        encode_values(x + 32 * g, 32, d * static_cast<float>(scale), kIq4Values, codes);
        pack_nibbles(codes, b.qs + 16 * g);
    }
}

// The least power of two under which nothing is cut off: 12 is the largest value.
void pack_block(const float* x, BlockMXFP4& b) {
    uint8_t codes[32];
    int exponent = 0;
    const float part = std::frexp(std::fabs(extremes_of(x, 32).far), &exponent);  // part * 2^exponent, part below 1
    b.e = static_cast<uint8_t>(std::clamp(exponent - (part > 0.75f ? 3 : 4) + 128, 0, 254));
    encode_values(x, 32, mxfp4_scale(b.e), kE2m1Doubled, codes);
    pack_nibbles(codes, b.qs);
}

void pack_block(const float* x, BlockTQ2_0& b) {
    uint8_t codes[256];
    const float inverse = inverse_of(store_half(b.d, std::fabs(extremes_of(x, 256).far)));
    for (size_t e = 0; e < 256; ++e) codes[e] = static_cast<uint8_t>(nearest(x[e] * inverse, -1, 1) + 1);
    pack_two_bits(codes, b.qs);
}

template <class Block, size_t kElements>
void pack_row(const float* src, uint8_t* dst, size_t n) {
    for (size_t i = 0; i < n; i += kElements) {
        Block block;
        pack_block(src + i, block);
        std::memcpy(dst, &block, sizeof block);
        dst += sizeof block;
    }
}

}  // namespace

void quantize_weights(Type type, const float* src, void* dst, size_t n) noexcept {
    auto* out = static_cast<uint8_t*>(dst);
    switch (type) {
        case Type::kF32:
            if (n != 0) std::memcpy(out, src, n * sizeof(float));
            return;
        case Type::kF16:
            for (size_t i = 0; i < n; ++i) store_u16(out + 2 * i, float_to_half(src[i]));
            return;
        case Type::kBF16:
            for (size_t i = 0; i < n; ++i) store_u16(out + 2 * i, float_to_bfloat(src[i]));
            return;
        case Type::kQ4_0:
            return pack_row<BlockQ4_0, 32>(src, out, n);
        case Type::kQ4_1:
            return pack_row<BlockQ4_1, 32>(src, out, n);
        case Type::kQ5_0:
            return pack_row<BlockQ5_0, 32>(src, out, n);
        case Type::kQ5_1:
            return pack_row<BlockQ5_1, 32>(src, out, n);
        case Type::kQ8_0:
            return pack_row<BlockQ8_0, 32>(src, out, n);
        case Type::kQ2_K:
            return pack_row<BlockQ2_K, 256>(src, out, n);
        case Type::kQ3_K:
            return pack_row<BlockQ3_K, 256>(src, out, n);
        case Type::kQ4_K:
            return pack_row<BlockQ4_K, 256>(src, out, n);
        case Type::kQ5_K:
            return pack_row<BlockQ5_K, 256>(src, out, n);
        case Type::kQ6_K:
            return pack_row<BlockQ6_K, 256>(src, out, n);
        case Type::kIQ4_NL:
            return pack_row<BlockIQ4_NL, 32>(src, out, n);
        case Type::kIQ4_XS:
            return pack_row<BlockIQ4_XS, 256>(src, out, n);
        case Type::kMXFP4:
            return pack_row<BlockMXFP4, 32>(src, out, n);
        case Type::kTQ2_0:
            return pack_row<BlockTQ2_0, 256>(src, out, n);
        default:
            quantize_grids(type, src, out, n);
            return;
    }
}

}  // namespace weir::kernels
