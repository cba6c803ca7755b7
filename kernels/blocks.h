// The layouts of quantised weight blocks, as they lie in GGUF files. Bytes only, so that every structure has
// alignment 1 and may be laid over any address; 16-bit floats are IEEE half, little endian.
//
// A code is an unsigned integer q; a weight is scale * q + min. The 32-element types have one scale for the
// block, the 256-element ("K") types small integer scales for groups of 32 (Q4_K, Q5_K) or 16 (Q2_K, Q3_K,
// Q6_K). Internal to kernels/. Source: the GGML quantisation formats as documented with GGUF.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace weir::kernels {

constexpr size_t kCellElements = 32;    // what one activation scale covers
constexpr size_t kSuperElements = 256;  // what kernels take at a time: one K block, or eight blocks of 32
constexpr size_t kCellsPerSuper = kSuperElements / kCellElements;

// Byte j of qs holds element j in its low nibble and element j + 16 in its high nibble. Weight d * (q - 8).
struct BlockQ4_0 {
    uint8_t d[2];
    uint8_t qs[16];
};

// Weight d * q + m.
struct BlockQ4_1 {
    uint8_t d[2];
    uint8_t m[2];
    uint8_t qs[16];
};

// Bit j of qh (little endian) is the fifth bit of element j. Weight d * (q - 16).
struct BlockQ5_0 {
    uint8_t d[2];
    uint8_t qh[4];
    uint8_t qs[16];
};

// Weight d * q + m.
struct BlockQ5_1 {
    uint8_t d[2];
    uint8_t m[2];
    uint8_t qh[4];
    uint8_t qs[16];
};

// Two's complement codes. Weight d * q.
struct BlockQ8_0 {
    uint8_t d[2];
    uint8_t qs[32];
};

// Group g of 16 has scale scales[g] & 15 and min scales[g] >> 4. Element e: bits 2 * (e / 32 % 4) and up of
// qs[32 * (e / 128) + e % 32]. Weight d * scale * q - dmin * min.
struct BlockQ2_K {
    uint8_t scales[16];
    uint8_t qs[64];
    uint8_t d[2];
    uint8_t dmin[2];
};

// Low two bits as Q2_K's; bit e / 32 of hmask[e % 32] is the third. Sixteen 6-bit scales, see q3_k_scale().
// Weight d * (scale - 32) * (q - 4).
struct BlockQ3_K {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint8_t d[2];
};

// Group g of 32 has a 6-bit scale and a 6-bit min, see q4_k_scale(). Byte 32 * c + l of qs holds element 64 *
// c + l in its low nibble and element 64 * c + 32 + l in its high one. Weight d * scale * q - dmin * min.
struct BlockQ4_K {
    uint8_t d[2];
    uint8_t dmin[2];
    uint8_t scales[12];
    uint8_t qs[128];
};

// Q4_K with a fifth bit: bit e / 32 of qh[e % 32].
struct BlockQ5_K {
    uint8_t d[2];
    uint8_t dmin[2];
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};

// Group g of 16 has the signed scale scales[g]. For element e = 128 * n + 32 * j + l: the low four bits are
// the nibble j / 2 of ql[64 * n + 32 * (j % 2) + l], the upper two bits 2 * j and up of qh[32 * n + l].
// Weight d * scale * (q - 32).
struct BlockQ6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint8_t d[2];
};

// What the codes of IQ4_NL and IQ4_XS stand for: finer near zero. Nearest to nothing, code 8, is 1.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Nibbles as Q4_0's. Weight d * kIq4Values[q].
struct BlockIQ4_NL {
    uint8_t d[2];
    uint8_t qs[16];
};

// Group g of 32 has a 6-bit scale, see iq4_xs_scale(), and nibbles as Q4_0's in qs[16 * g] and on. Weight d * (scale -
// 32) * kIq4Values[q].
struct BlockIQ4_XS {
    uint8_t d[2];
    uint8_t scales_high[2];
    uint8_t scales_low[4];
    uint8_t qs[128];
};

// Twice what a float of four bits (E2M1: sign, two bits of exponent, one of mantissa) stands for.
constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Nibbles as Q4_0's, under a power of two. Weight 2^(e - 128) * kE2m1Doubled[q]. (OCP Microscaling Formats 1.0)
struct BlockMXFP4 {
    uint8_t e;
    uint8_t qs[16];
};

// Ternary weights (TQ1_0: kernels/grid_blocks.h): codes of two bits as Q2_K's. Weight d * (q - 1).
struct BlockTQ2_0 {
    uint8_t qs[64];
    uint8_t d[2];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210 && alignof(BlockQ6_K) == 1);
static_assert(sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockTQ2_0) == 66);

// Scale of group g (0 to 15) of Q3_K, 0 to 63: four low bits in the first eight bytes, two high bits in the
// last four.
static inline uint32_t q3_k_scale(const uint8_t scales[12], size_t g) {
    const uint32_t low = g < 8 ? scales[g] & 15u : scales[g - 8] >> 4u;
    return low | ((scales[8 + g % 4] >> (2 * (g / 4)) & 3u) << 4);
}

// Scale and min of group g (0 to 7) of Q4_K and Q5_K, 0 to 63.
static inline uint32_t q4_k_scale(const uint8_t scales[12], size_t g) {
    if (g < 4) return scales[g] & 63u;
    return (scales[g + 4] & 15u) | (scales[g - 4] >> 6u) << 4;
}

static inline uint32_t q4_k_min(const uint8_t scales[12], size_t g) {
    if (g < 4) return scales[g + 4] & 63u;
    return static_cast<uint32_t>(scales[g + 4] >> 4u) | (scales[g] >> 6u) << 4;
}

// Scale of group g (0 to 7) of IQ4_XS, 0 to 63.
static inline uint32_t iq4_xs_scale(const BlockIQ4_XS& b, size_t g) {
    const uint32_t low = b.scales_low[g / 2] >> (g % 2 * 4) & 15u;
    return low | (b.scales_high[g / 4] >> (g % 4 * 2) & 3u) << 4;
}

// 2^(e - 128), which is subnormal below e = 2.
static inline float mxfp4_scale(uint8_t e) {
    return std::bit_cast<float>(e < 2 ? 0x200000u << e : (e - 1u) << 23);
}

}  // namespace weir::kernels
