// Blocks whose codes no shift and mask finds: those of the IQ formats with grids, and TQ1_0 with five codes in a byte.
// They are turned into whole bytes first, by the same code for all instruction sets; the kernels go on from there.
// Static on purpose: objects built for one instruction set must not export inline functions. Internal to kernels/.
//
// Layouts as the dequantisers of the Python package `gguf` 0.19 (ggml-org, MIT) describe them.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/grids.h"
#include "kernels/half.h"

namespace weir::kernels {

// 256 weights: element i is d * scales[i / 16] * codes[i]. Codes -62 to 62, scales 1 to 31.
struct Decoded {
    int8_t codes[kSuperElements];
    int8_t scales[kSuperElements / 16];
    float d;
};

// Four bits for each group of 16, in order: twice that and one is its scale.
static inline void decode_nibble_scales(const uint8_t nibbles[8], Decoded& out) {
    for (size_t g = 0; g < 16; ++g) out.scales[g] = static_cast<int8_t>(2 * (nibbles[g / 2] >> (g % 2 * 4) & 15) + 1);
}

// A scale for each group of 32.
static inline void set_scale_of_cell(size_t cell, uint32_t scale, Decoded& out) {
    out.scales[2 * cell] = out.scales[2 * cell + 1] = static_cast<int8_t>(scale);
}

// Eight magnitudes above 0, negative where a bit of `signs` is set. -m is ~m + 1, and no byte carries.
static inline void put_eight(uint64_t magnitudes, uint8_t signs, int8_t* codes) {
    constexpr uint64_t kOnes = 0x0101010101010101u;
    const uint64_t bits = signs * kOnes & 0x8040201008040201u;
    const uint64_t negative = ((bits | (bits + 0x7f * kOnes)) >> 7) & kOnes;
    const uint64_t signed_bytes = (magnitudes ^ (negative * 0xff)) + negative;
    std::memcpy(codes, &signed_bytes, sizeof signed_bytes);
}

// Seven signs, and an eighth that makes their number even.
static inline uint8_t even_signs(uint32_t seven) {
    return static_cast<uint8_t>(seven | (static_cast<uint32_t>(std::popcount(seven)) & 1u) << 7);
}

static inline uint32_t load_u32(const uint8_t* p) {
    uint32_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Group g of 32: four bytes that choose points, then a word of four times seven signs and, on top, the scale's bits.
struct BlockIQ2_XXS {
    uint8_t d[2];
    uint8_t qs[64];
};

static inline void decode(const BlockIQ2_XXS& b, Decoded& out) {
    out.d = load_half(b.d) * 0.125f;
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        const uint8_t* const points = b.qs + 8 * g;
        const uint32_t word = load_u32(points + 4);
        set_scale_of_cell(g, 2 * (word >> 28) + 1, out);
        for (size_t i = 0; i < 4; ++i) {
            put_eight(kIq2XxsGrid[points[i]], even_signs(word >> (7 * i) & 127), out.codes + 32 * g + 8 * i);
        }
    }
}

// For eight weights nine bits that choose a point, then seven signs.
struct BlockIQ2_XS {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t scales[8];
};

static inline void decode(const BlockIQ2_XS& b, Decoded& out) {
    out.d = load_half(b.d) * 0.125f;
    decode_nibble_scales(b.scales, out);
    for (size_t i = 0; i < 32; ++i) {
        const uint32_t word = load_u16(b.qs + 2 * i);
        put_eight(kIq2XsGrid[word & 511], even_signs(word >> 9), out.codes + 8 * i);
    }
}

// For eight weights a byte that chooses a point, with two high bits in qh, and a byte of signs.
struct BlockIQ2_S {
    uint8_t d[2];
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
};

static inline void decode(const BlockIQ2_S& b, Decoded& out) {
    out.d = load_half(b.d) * 0.125f;
    decode_nibble_scales(b.scales, out);
    for (size_t i = 0; i < 32; ++i) {
        const uint32_t high = b.qh[i / 4] >> (i % 4 * 2) & 3u;
        put_eight(kIq2SGrid[b.qs[i] | high << 8], b.signs[i], out.codes + 8 * i);
    }
}

// For four weights a byte that chooses a point; after them for each group of 32 a word as IQ2_XXS's.
struct BlockIQ3_XXS {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t words[32];
};

static inline void decode(const BlockIQ3_XXS& b, Decoded& out) {
    out.d = load_half(b.d) * 0.25f;
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        const uint32_t word = load_u32(b.words + 4 * g);
        set_scale_of_cell(g, 2 * (word >> 28) + 1, out);
        for (size_t i = 0; i < 4; ++i) {
            const uint8_t* const points = b.qs + 8 * g + 2 * i;
            const uint64_t eight = kIq3XxsGrid[points[0]] | uint64_t{kIq3XxsGrid[points[1]]} << 32;
            put_eight(eight, even_signs(word >> (7 * i) & 127), out.codes + 32 * g + 8 * i);
        }
    }
}

// For four weights a byte that chooses a point, with a ninth bit in qh; a byte of signs for eight; a scale for 32.
struct BlockIQ3_S {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
};

static inline void decode(const BlockIQ3_S& b, Decoded& out) {
    out.d = load_half(b.d);
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        set_scale_of_cell(g, 2 * (b.scales[g / 2] >> (g % 2 * 4) & 15u) + 1, out);
        for (size_t i = 0; i < 4; ++i) {
            const size_t at = 8 * g + 2 * i;
            const uint32_t first = b.qs[at] | (b.qh[g] >> (2 * i) & 1u) << 8;
            const uint32_t second = b.qs[at + 1] | (b.qh[g] >> (2 * i + 1) & 1u) << 8;
            put_eight(kIq3SGrid[first] | uint64_t{kIq3SGrid[second]} << 32, b.signs[4 * g + i], out.codes + 4 * at);
        }
    }
}

// Eight weights of the IQ1 formats: an eighth of them is added or taken away, so the codes are eighths.
static inline void put_eight_ternary(uint32_t point, bool less, int8_t* codes) {
    int8_t ternary[8];
    std::memcpy(ternary, &kIq1Grid[point], sizeof ternary);
    const int delta = less ? -1 : 1;
    for (size_t j = 0; j < 8; ++j) codes[j] = static_cast<int8_t>(8 * ternary[j] + delta);
}

// Group g of 32: four bytes that choose points, and a word with three high bits for each, the scale's bits, and the
// sign of the eighth. Weight d * scale * (point +- 1/8).
struct BlockIQ1_S {
    uint8_t d[2];
    uint8_t qs[32];
    uint8_t qh[16];
};

static inline void decode(const BlockIQ1_S& b, Decoded& out) {
    out.d = load_half(b.d) * 0.125f;
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        const uint32_t word = load_u16(b.qh + 2 * g);
        set_scale_of_cell(g, 2 * (word >> 12 & 7) + 1, out);
        for (size_t i = 0; i < 4; ++i) {
            const uint32_t point = b.qs[4 * g + i] | (word >> (3 * i) & 7u) << 8;
            put_eight_ternary(point, word >> 15 != 0, out.codes + 32 * g + 8 * i);
        }
    }
}

// For eight weights a byte that chooses a point, and a nibble of qh: three high bits and the sign of the eighth. Four
// words with three bits for each group's scale; their highest four bits together are d.
struct BlockIQ1_M {
    uint8_t qs[32];
    uint8_t qh[16];
    uint8_t scales[8];
};

static inline void decode(const BlockIQ1_M& b, Decoded& out) {
    uint32_t d = 0;
    for (size_t g = 0; g < 16; ++g) {
        const uint32_t word = load_u16(b.scales + g / 4 * 2);
        out.scales[g] = static_cast<int8_t>(2 * (word >> (g % 4 * 3) & 7) + 1);
        if (g % 4 == 0) d |= word >> 12 << g;
    }
    out.d = half_to_float(static_cast<uint16_t>(d)) * 0.125f;
    for (size_t i = 0; i < 32; ++i) {
        const uint32_t nibble = b.qh[i / 2] >> (i % 2 * 4) & 15u;
        put_eight_ternary(b.qs[i] | (nibble & 7) << 8, nibble >= 8, out.codes + 8 * i);
    }
}

// Ternary weights, d * (q - 1). A byte holds five codes as digits of a number in base 3, scaled to fill 256, so that
// the first digit is what runs over when it is multiplied by 3: of elements 32 * n + l in byte l of qs, of 160 + 16 * n
// + l in byte 32 + l; and four, of 240 + 4 * n + l, in byte l of qh.
struct BlockTQ1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint8_t d[2];
};

static inline void decode_digits(const uint8_t* bytes, size_t count, size_t digits, int8_t* codes) {
    uint8_t power = 1;
    for (size_t n = 0; n < digits; ++n) {
        for (size_t l = 0; l < count; ++l) {
            const auto rest = static_cast<uint8_t>(bytes[l] * power);
            codes[n * count + l] = static_cast<int8_t>((rest * 3 >> 8) - 1);
        }
        power = static_cast<uint8_t>(power * 3);
    }
}

static inline void decode(const BlockTQ1_0& b, Decoded& out) {
    out.d = load_half(b.d);
    std::memset(out.scales, 1, sizeof out.scales);
    decode_digits(b.qs, 32, 5, out.codes);
    decode_digits(b.qs + 32, 16, 5, out.codes + 160);
    decode_digits(b.qh, 4, 4, out.codes + 240);
}

static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110 && sizeof(BlockIQ1_S) == 50);
static_assert(sizeof(BlockIQ1_M) == 56 && sizeof(BlockTQ1_0) == 54);

template <class Block>
concept NeedsDecoding = requires(const Block& b, Decoded& out) { decode(b, out); };

}  // namespace weir::kernels
