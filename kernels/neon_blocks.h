// Quantised blocks in NEON registers: for each type the same few functions over 256 elements (eight blocks of 32, or
// one K block), from which the matrix kernels of all types are made.
//
//   codes<B, H>(s)   the 16 codes of half H of cell B, as signed bytes.
//   scales(s, ...)   a cell's scale and min, lane b for cell b. A weight is scale * code + min.
//   groups(s)        types with groups of 16 (kGroups): the block's d, and for the cells' low and high halves the
//                    integer scales of the groups and the minima. A weight is d * group scale * code + min.
//
// In an unnamed namespace, see neon_eight.h. Internal to kernels/.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/grid_blocks.h"
#include "kernels/neon_eight.h"
#include "kernels/types.h"

namespace weir::kernels::neon {
namespace {

// Bits kShift and up of every byte, as many as kMask has.
template <int kShift, int kMask>
[[gnu::always_inline]] inline uint8x16_t bits_of(uint8x16_t bytes) {
    if constexpr (kShift != 0) bytes = vshrq_n_u8(bytes, kShift);
    if constexpr (kShift != 0 && (255 >> kShift) == kMask) return bytes;
    return vandq_u8(bytes, vdupq_n_u8(kMask));
}

// `value` where bit kBit of the byte is set.
template <int kBit>
[[gnu::always_inline]] inline uint8x16_t where_set(uint8x16_t bytes, uint8_t value) {
    return vandq_u8(vtstq_u8(bytes, vdupq_n_u8(1 << kBit)), vdupq_n_u8(value));
}

// The fifth bits of elements 16 * H and on, of 32 that lie in four bytes, as bytes 0 or 16.
template <int H>
[[gnu::always_inline]] inline uint8x16_t fifth_bits(const uint8_t* qh) {
    const uint8x16_t bytes = vcombine_u8(vdup_n_u8(qh[2 * H]), vdup_n_u8(qh[2 * H + 1]));
    const uint8x8_t bit = vcreate_u8(0x8040201008040201ull);
    return vandq_u8(vtstq_u8(bytes, vcombine_u8(bit, bit)), vdupq_n_u8(16));
}

[[gnu::always_inline]] inline float half_at(const void* p) {
    __fp16 v;
    std::memcpy(&v, p, sizeof v);
    return static_cast<float>(v);
}

// Where the eight blocks of 32 that make 256 elements are: in a row, or, at the end of a row that has fewer left, with
// blocks of zeros in the places of those that do not exist (which contribute nothing: scale and min are 0).
template <class Block>
struct Blocks {
    const Block* first;
    [[gnu::always_inline]] const Block& operator[](size_t i) const { return first[i]; }
};

template <class Block>
struct LastBlocks {
    const Block* at[kCellsPerSuper];

    [[gnu::always_inline]] LastBlocks(const Block* first, size_t count) {
        static constexpr Block kZeros{};
        for (size_t i = 0; i < kCellsPerSuper; ++i) at[i] = i < count ? first + i : &kZeros;
    }
    [[gnu::always_inline]] const Block& operator[](size_t i) const { return *at[i]; }
};

// A block of 256 that is turned into bytes first.
template <NeedsDecoding Block>
struct Blocks<Block> {
    Decoded decoded;

    explicit Blocks(const Block* block) { decode(*block, decoded); }
    [[gnu::always_inline]] const Decoded& operator[](size_t) const { return decoded; }
};

template <NeedsDecoding Block>
struct LastBlocks<Block> : Blocks<Block> {
    LastBlocks(const Block* block, size_t) : Blocks<Block>(block) {}
};

// The halves that lie kAt bytes into eight blocks, as floats.
template <size_t kAt, class S>
[[gnu::always_inline]] inline Eight eight_halves(const S& s) {
    uint16_t halves[kCellsPerSuper];
    for (size_t b = 0; b < kCellsPerSuper; ++b) {
        std::memcpy(&halves[b], reinterpret_cast<const char*>(&s[b]) + kAt, sizeof halves[b]);
    }
    return halves_as_floats(vld1q_u16(halves));
}

// The types of 32 elements with nibbles: with or without a fifth bit, and a min of their own or a centre.
template <class B, int kTop, bool kFifthBit, bool kHasMin>
struct Nibbles {
    using Block = B;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = kTop;
    static constexpr bool kSigned = false, kGroups = false;

    template <int C, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        uint8x16_t v = bits_of<4 * H, 15>(vld1q_u8(s[C].qs));
        if constexpr (kFifthBit) v = vorrq_u8(v, fifth_bits<H>(s[C].qh));
        return vreinterpretq_s8_u8(v);
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, Eight& scale, Eight& min) {
        scale = eight_halves<offsetof(Block, d)>(s);
        if constexpr (kHasMin) {
            min = eight_halves<offsetof(Block, m)>(s);
        } else {
            min = mul(scale, -static_cast<float>((kTop + 1) / 2));
        }
    }
};

using Q4_0 = Nibbles<BlockQ4_0, 15, false, false>;
using Q4_1 = Nibbles<BlockQ4_1, 15, false, true>;
using Q5_0 = Nibbles<BlockQ5_0, 31, true, false>;
using Q5_1 = Nibbles<BlockQ5_1, 31, true, true>;

struct Q8_0 {
    using Block = BlockQ8_0;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 128;
    static constexpr bool kSigned = true, kGroups = false;

    template <int B, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        return vreinterpretq_s8_u8(vld1q_u8(s[B].qs + 16 * H));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, Eight& scale, Eight& min) {
        scale = eight_halves<offsetof(Block, d)>(s);
        min = all(0.0f);
    }
};

// Entry b of each belongs to cell b.
struct Groups {
    float d;
    Eight scale_low, scale_high;  // integers
    Eight min_low, min_high;
};

// Sixteen signed bytes, those of even places (cells' low halves) and of odd ones.
[[gnu::always_inline]] inline void split_groups(int8x16_t groups, Eight& low, Eight& high) {
    low = floats_of(vmovl_s8(vget_low_s8(vuzp1q_s8(groups, groups))));
    high = floats_of(vmovl_s8(vget_low_s8(vuzp2q_s8(groups, groups))));
}

// Minima that are a constant number of codes below zero.
[[gnu::always_inline]] inline Groups centred_groups(float d, int8x16_t scale, float centre) {
    Groups g;
    g.d = d;
    split_groups(scale, g.scale_low, g.scale_high);
    g.min_low = mul(g.scale_low, d * -centre);
    g.min_high = mul(g.scale_high, d * -centre);
    return g;
}

struct Q2_K {
    using Block = BlockQ2_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 3;
    static constexpr bool kSigned = false, kGroups = true;

    template <int B, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        return vreinterpretq_s8_u8(bits_of<B % 4 * 2, 3>(vld1q_u8(s[0].qs + B / 4 * 32 + 16 * H)));
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        const uint8x16_t bytes = vld1q_u8(s[0].scales);
        Groups g;
        g.d = half_at(s[0].d);
        split_groups(vreinterpretq_s8_u8(bits_of<0, 15>(bytes)), g.scale_low, g.scale_high);
        split_groups(vreinterpretq_s8_u8(bits_of<4, 15>(bytes)), g.min_low, g.min_high);
        const float unit = -half_at(s[0].dmin);
        g.min_low = mul(g.min_low, unit);
        g.min_high = mul(g.min_high, unit);
        return g;
    }
};

struct Q3_K {
    using Block = BlockQ3_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 7;
    static constexpr bool kSigned = false, kGroups = true;

    template <int B, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        const uint8x16_t low = bits_of<B % 4 * 2, 3>(vld1q_u8(s[0].qs + B / 4 * 32 + 16 * H));
        return vreinterpretq_s8_u8(vorrq_u8(low, where_set<B>(vld1q_u8(s[0].hmask + 16 * H), 4)));
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        // Bytes 0 to 7: low nibbles of groups 0 to 7 and, above them, 8 to 15. Bytes 8 to 11, repeated: two high bits
        // of groups g, g + 4, g + 8, g + 12.
        const uint8x8_t low = vld1_u8(s[0].scales);
        uint32_t high;
        std::memcpy(&high, s[0].scales + 8, sizeof high);
        const uint8x16_t nibbles = vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8(low, 4));
        const uint32_t shifted[4] = {high, high >> 2, high >> 4, high >> 6};
        const uint8x16_t two = vandq_u8(vreinterpretq_u8_u32(vld1q_u32(shifted)), vdupq_n_u8(3));
        const uint8x16_t stored = vorrq_u8(nibbles, vshlq_n_u8(two, 4));
        return centred_groups(half_at(s[0].d), vsubq_s8(vreinterpretq_s8_u8(stored), vdupq_n_s8(32)), 4.0f);
    }
};

// Q4_K, and Q5_K which has a fifth bit.
template <class B, int kTop, bool kFifthBit>
struct KNibbles {
    using Block = B;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = kTop;
    static constexpr bool kSigned = false, kGroups = false;

    template <int C, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        uint8x16_t v = bits_of<C % 2 * 4, 15>(vld1q_u8(s[0].qs + C / 2 * 32 + 16 * H));
        if constexpr (kFifthBit) v = vorrq_u8(v, where_set<C>(vld1q_u8(s[0].qh + 16 * H), 16));
        return vreinterpretq_s8_u8(v);
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, Eight& scale, Eight& min) {
        // Bytes 0 to 3 of `scales`: those of groups 0 to 3 and, in the top two bits, the top of 4 to 7's; 4 to 7:
        // minima likewise; 8 to 11: low nibbles of scales 4 to 7 and, above them, of minima.
        uint64_t first;
        uint32_t last;
        std::memcpy(&first, s[0].scales, sizeof first);
        std::memcpy(&last, s[0].scales + 8, sizeof last);
        const uint64_t six = first & 0x3f3f3f3f3f3f3f3full;
        const uint64_t top = (first & 0xc0c0c0c0c0c0c0c0ull) >> 2;
        const uint64_t scales = (six & 0xffffffffull) | (((last & 0x0f0f0f0full) | (top & 0xffffffffull)) << 32);
        const uint64_t mins = six >> 32 | (((last >> 4 & 0x0f0f0f0full) | top >> 32) << 32);
        scale = mul(floats_of(vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(scales)))), half_at(s[0].d));
        min = mul(floats_of(vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(mins)))), -half_at(s[0].dmin));
    }
};

using Q4_K = KNibbles<BlockQ4_K, 15, false>;
using Q5_K = KNibbles<BlockQ5_K, 31, true>;

struct Q6_K {
    using Block = BlockQ6_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 63;
    static constexpr bool kSigned = false, kGroups = true;

    template <int B, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        const uint8x16_t low = bits_of<B % 4 / 2 * 4, 15>(vld1q_u8(s[0].ql + B / 4 * 64 + B % 2 * 32 + 16 * H));
        const uint8x16_t high = bits_of<B % 4 * 2, 3>(vld1q_u8(s[0].qh + B / 4 * 32 + 16 * H));
        return vreinterpretq_s8_u8(vorrq_u8(low, vshlq_n_u8(high, 4)));
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        return centred_groups(half_at(s[0].d), vld1q_s8(s[0].scales), 32.0f);
    }
};

struct IQ4_NL {
    using Block = BlockIQ4_NL;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 128;
    static constexpr bool kSigned = true, kGroups = false;

    template <int C, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        return vqtbl1q_s8(vld1q_s8(kIq4Values), bits_of<4 * H, 15>(vld1q_u8(s[C].qs)));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, Eight& scale, Eight& min) {
        scale = eight_halves<offsetof(Block, d)>(s);
        min = all(0.0f);
    }
};

struct IQ4_XS {
    using Block = BlockIQ4_XS;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 128;
    static constexpr bool kSigned = true, kGroups = false;

    template <int C, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        return vqtbl1q_s8(vld1q_s8(kIq4Values), bits_of<4 * H, 15>(vld1q_u8(s[0].qs + 16 * C)));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, Eight& scale, Eight& min) {
        int16_t six[kCellsPerSuper];
        for (size_t g = 0; g < kCellsPerSuper; ++g) six[g] = static_cast<int16_t>(iq4_xs_scale(s[0], g));
        scale = mul(floats_of(vsubq_s16(vld1q_s16(six), vdupq_n_s16(32))), half_at(s[0].d));
        min = all(0.0f);
    }
};

struct MXFP4 {
    using Block = BlockMXFP4;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 12;
    static constexpr bool kSigned = true, kGroups = false;

    template <int C, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        return vqtbl1q_s8(vld1q_s8(kE2m1Doubled), bits_of<4 * H, 15>(vld1q_u8(s[C].qs)));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, Eight& scale, Eight& min) {
        float powers[kCellsPerSuper];
        for (size_t b = 0; b < kCellsPerSuper; ++b) powers[b] = mxfp4_scale(s[b].e);
        scale = load(powers);
        min = all(0.0f);
    }
};

struct TQ2_0 {
    using Block = BlockTQ2_0;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 3;
    static constexpr bool kSigned = false, kGroups = false;

    template <int B, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        return vreinterpretq_s8_u8(bits_of<B % 4 * 2, 3>(vld1q_u8(s[0].qs + B / 4 * 32 + 16 * H)));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, Eight& scale, Eight& min) {
        scale = all(half_at(s[0].d));
        min = mul(scale, -1.0f);
    }
};

template <NeedsDecoding B>
struct Grid {
    using Block = B;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 63;
    static constexpr bool kSigned = true, kGroups = true;

    template <int C, int H, class S>
    [[gnu::always_inline]] static int8x16_t codes(const S& s) {
        return vld1q_s8(s[0].codes + 32 * C + 16 * H);
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        Groups g;
        g.d = s[0].d;
        split_groups(vld1q_s8(s[0].scales), g.scale_low, g.scale_high);
        g.min_low = g.min_high = all(0.0f);
        return g;
    }
};

using IQ2_XXS = Grid<BlockIQ2_XXS>;
using IQ2_XS = Grid<BlockIQ2_XS>;
using IQ3_XXS = Grid<BlockIQ3_XXS>;
using IQ1_S = Grid<BlockIQ1_S>;
using IQ3_S = Grid<BlockIQ3_S>;
using IQ2_S = Grid<BlockIQ2_S>;
using IQ1_M = Grid<BlockIQ1_M>;
using TQ1_0 = Grid<BlockTQ1_0>;

// f.operator()<B>() for the cells of a super-block in their order.
template <class F>
[[gnu::always_inline]] inline void for_each_cell(F&& f) {
    f.template operator()<0>();
    f.template operator()<1>();
    f.template operator()<2>();
    f.template operator()<3>();
    f.template operator()<4>();
    f.template operator()<5>();
    f.template operator()<6>();
    f.template operator()<7>();
}

// f.operator()<W>() for the structure above that belongs to a type with blocks.
template <class F>
[[gnu::always_inline]] inline void with_blocks_of(Type type, F&& f) {
    switch (type) {
        case Type::kQ4_0: return f.template operator()<Q4_0>();
        case Type::kQ4_1: return f.template operator()<Q4_1>();
        case Type::kQ5_0: return f.template operator()<Q5_0>();
        case Type::kQ5_1: return f.template operator()<Q5_1>();
        case Type::kQ8_0: return f.template operator()<Q8_0>();
        case Type::kQ2_K: return f.template operator()<Q2_K>();
        case Type::kQ3_K: return f.template operator()<Q3_K>();
        case Type::kQ4_K: return f.template operator()<Q4_K>();
        case Type::kQ5_K: return f.template operator()<Q5_K>();
        case Type::kQ6_K: return f.template operator()<Q6_K>();
        case Type::kIQ4_NL: return f.template operator()<IQ4_NL>();
        case Type::kIQ4_XS: return f.template operator()<IQ4_XS>();
        case Type::kMXFP4: return f.template operator()<MXFP4>();
        case Type::kTQ2_0: return f.template operator()<TQ2_0>();
        case Type::kIQ2_XXS: return f.template operator()<IQ2_XXS>();
        case Type::kIQ2_XS: return f.template operator()<IQ2_XS>();
        case Type::kIQ3_XXS: return f.template operator()<IQ3_XXS>();
        case Type::kIQ1_S: return f.template operator()<IQ1_S>();
        case Type::kIQ3_S: return f.template operator()<IQ3_S>();
        case Type::kIQ2_S: return f.template operator()<IQ2_S>();
        case Type::kIQ1_M: return f.template operator()<IQ1_M>();
        case Type::kTQ1_0: return f.template operator()<TQ1_0>();
        case Type::kF32:
        case Type::kF16:
        case Type::kBF16: break;
    }
    __builtin_trap();  // float types have no blocks; activation_for() gives them float activations
}

}  // namespace
}  // namespace weir::kernels::neon
