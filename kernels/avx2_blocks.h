// Quantised blocks in AVX2 registers: for each type the same few functions over 256 elements (eight blocks of
// 32, or one K block), from which the matrix kernels of all types are made.
//
//   codes<P, H>(s)   32 unsigned codes: elements 16 * H and on of cell P in the low lane, of cell P + 4 in the high one
//                    (see activation.h). Signed types (kSigned) give signed ones.
//   scales(s, ...)   a cell's scale and min, entry b for cell b. A weight is scale * code + min.
//   groups(s)        types with groups of 16 (kGroups): d, the integer scales of the groups in order, and minima of the
//                    cells' low and high halves. A weight is d * group scale * code + min.
//
// Each costs the compiler a second for every place that it is inlined into: few are (dots_of()), everything else goes on
// from Unpacked, which knows no type.
//
// Everything lives in an unnamed namespace: objects built with -mavx2 must not export an inline function, or
// the linker may give it to code that runs on lesser CPUs. Internal to kernels/.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/blocks.h"
#include "kernels/grid_blocks.h"
#include "kernels/types.h"

namespace weir::kernels::avx2 {

// Sixteen integer scales, group g in place g, and what goes with them.
struct Groups {
    float d;
    __m256i scale;  // int16
    __m256 min_low, min_high;
};

namespace {

[[gnu::always_inline]] inline uint16_t u16_at(const void* p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

[[gnu::always_inline]] inline int i32_at(const void* p) {
    int v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

[[gnu::always_inline]] inline float f32_at(const void* p) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

[[gnu::always_inline]] inline __m256 floats_at(const void* p) {
    return _mm256_loadu_ps(static_cast<const float*>(p));
}
[[gnu::always_inline]] inline __m256i bytes_at(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
[[gnu::always_inline]] inline __m128i half_bytes_at(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

[[gnu::always_inline]] inline float half_at(const void* p) {
    return _cvtsh_ss(u16_at(p));
}

// 16 bytes from each of two places.
[[gnu::always_inline]] inline __m256i two_lanes(const void* low, const void* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half_bytes_at(low)), half_bytes_at(high), 1);
}

[[gnu::always_inline]] inline __m256i two_lanes(__m128i low, __m128i high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

// Bits kShift and up of every byte, as many as `mask` has. A 16-bit shift drags bits over; the mask drops
// them.
template <int kShift>
[[gnu::always_inline]] inline __m256i bits_of(__m256i bytes, int mask) {
    const __m256i shifted = kShift == 0 ? bytes : _mm256_srli_epi16(bytes, kShift);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask)));
}

// Where the eight blocks of 32 that make 256 elements are.
template <class Block>
struct Blocks {
    const Block* first;
    [[gnu::always_inline]] const Block& operator[](size_t i) const { return first[i]; }
};

// A block of 256 that is turned into bytes first.
template <NeedsDecoding Block>
struct Blocks<Block> {
    Decoded decoded;

    explicit Blocks(const Block* block) { decode(*block, decoded); }
    [[gnu::always_inline]] const Decoded& operator[](size_t) const { return decoded; }
};

// The blocks that end a row, fewer than eight, and blocks of zeros in the places of those that do not exist (which
// contribute nothing: scale and min are 0).
template <class Block>
struct LastBlocks {
    Block at[kCellsPerSuper];

    [[gnu::always_inline]] const Block* fill(const void* first, size_t count) {
        std::memset(at, 0, sizeof at);
        std::memcpy(at, first, count * sizeof(Block));
        return at;
    }
};

// The leading halves of eight blocks as floats.
template <class S>
[[gnu::always_inline]] inline __m256 eight_halves(const S& s) {
    __m128i h = _mm_cvtsi32_si128(u16_at(s[0].d));
    h = _mm_insert_epi16(h, u16_at(s[1].d), 1);
    h = _mm_insert_epi16(h, u16_at(s[2].d), 2);
    h = _mm_insert_epi16(h, u16_at(s[3].d), 3);
    h = _mm_insert_epi16(h, u16_at(s[4].d), 4);
    h = _mm_insert_epi16(h, u16_at(s[5].d), 5);
    h = _mm_insert_epi16(h, u16_at(s[6].d), 6);
    h = _mm_insert_epi16(h, u16_at(s[7].d), 7);
    return _mm256_cvtph_ps(h);
}

// The leading pairs of halves (d, m) of eight blocks.
template <class S>
[[gnu::always_inline]] inline void eight_pairs(const S& s, __m256& d, __m256& m) {
    const __m128i apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m128i low =
        _mm_shuffle_epi8(_mm_setr_epi32(i32_at(&s[0]), i32_at(&s[1]), i32_at(&s[2]), i32_at(&s[3])), apart);
    const __m128i high =
        _mm_shuffle_epi8(_mm_setr_epi32(i32_at(&s[4]), i32_at(&s[5]), i32_at(&s[6]), i32_at(&s[7])), apart);
    d = _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
    m = _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high));
}

// The fifth bits of elements 16 * H and on, of 32 that lie in four bytes per lane, as bytes 0 or 16.
template <int H>
[[gnu::always_inline]] inline __m256i fifth_bits(const uint8_t* low_lane, const uint8_t* high_lane) {
    const __m256i words =
        two_lanes(_mm_cvtsi32_si128(i32_at(low_lane)), _mm_cvtsi32_si128(i32_at(high_lane)));
    const __m128i spread =
        _mm_setr_epi8(2 * H, 2 * H, 2 * H, 2 * H, 2 * H, 2 * H, 2 * H, 2 * H, 2 * H + 1, 2 * H + 1, 2 * H + 1,
                      2 * H + 1, 2 * H + 1, 2 * H + 1, 2 * H + 1, 2 * H + 1);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
    const __m256i bytes =
        _mm256_and_si256(_mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(spread)), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bytes, bit), _mm256_set1_epi8(16));
}

struct Q4_0 {
    using Block = BlockQ4_0;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 15;
    static constexpr bool kSigned = false, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return bits_of<4 * H>(two_lanes(s[P].qs, s[P + 4].qs), 15);
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        scale = eight_halves(s);
        min = _mm256_mul_ps(scale, _mm256_set1_ps(-8.0f));
    }
};

struct Q4_1 {
    using Block = BlockQ4_1;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 15;
    static constexpr bool kSigned = false, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return bits_of<4 * H>(two_lanes(s[P].qs, s[P + 4].qs), 15);
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        eight_pairs(s, scale, min);
    }
};

struct Q5_0 {
    using Block = BlockQ5_0;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 31;
    static constexpr bool kSigned = false, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        const __m256i low = bits_of<4 * H>(two_lanes(s[P].qs, s[P + 4].qs), 15);
        return _mm256_or_si256(low, fifth_bits<H>(s[P].qh, s[P + 4].qh));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        scale = eight_halves(s);
        min = _mm256_mul_ps(scale, _mm256_set1_ps(-16.0f));
    }
};

struct Q5_1 {
    using Block = BlockQ5_1;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 31;
    static constexpr bool kSigned = false, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        const __m256i low = bits_of<4 * H>(two_lanes(s[P].qs, s[P + 4].qs), 15);
        return _mm256_or_si256(low, fifth_bits<H>(s[P].qh, s[P + 4].qh));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        eight_pairs(s, scale, min);
    }
};

struct Q8_0 {
    using Block = BlockQ8_0;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 128;
    static constexpr bool kSigned = true, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return two_lanes(s[P].qs + 16 * H, s[P + 4].qs + 16 * H);
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        scale = eight_halves(s);
        min = _mm256_setzero_ps();
    }
};

// The int16 of even places (cells' low halves) and of odd ones as floats, entry b for cell b.
[[gnu::always_inline]] inline __m256 low_halves(__m256i groups) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(groups, 16), 16));
}
[[gnu::always_inline]] inline __m256 high_halves(__m256i groups) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(groups, 16));
}

// Minima that are a constant number of codes below zero.
[[gnu::always_inline]] inline Groups centred_groups(float d, __m256i scale, float centre) {
    const __m256 unit = _mm256_set1_ps(d * -centre);
    return {d, scale, _mm256_mul_ps(low_halves(scale), unit), _mm256_mul_ps(high_halves(scale), unit)};
}

struct Q2_K {
    using Block = BlockQ2_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 3;
    static constexpr bool kSigned = false, kGroups = true;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return bits_of<2 * P>(two_lanes(s[0].qs + 16 * H, s[0].qs + 32 + 16 * H), 3);
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        const __m128i bytes = half_bytes_at(s[0].scales);
        const __m128i nibble = _mm_set1_epi8(15);
        const __m256i scale = _mm256_cvtepu8_epi16(_mm_and_si128(bytes, nibble));
        const __m256i min = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
        const __m256 unit = _mm256_set1_ps(-half_at(s[0].dmin));
        return {half_at(s[0].d), scale, _mm256_mul_ps(low_halves(min), unit),
                _mm256_mul_ps(high_halves(min), unit)};
    }
};

struct Q3_K {
    using Block = BlockQ3_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 7;
    static constexpr bool kSigned = false, kGroups = true;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        const __m256i low = bits_of<2 * P>(two_lanes(s[0].qs + 16 * H, s[0].qs + 32 + 16 * H), 3);
        const __m256i bit = two_lanes(_mm_set1_epi8(static_cast<char>(1 << P)),
                                      _mm_set1_epi8(static_cast<char>(1 << (P + 4))));
        const __m256i mask = _mm256_broadcastsi128_si256(half_bytes_at(s[0].hmask + 16 * H));
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(mask, bit), bit);
        return _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(4)));
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        // Bytes 0 to 7: low nibbles of groups 0 to 7 and, above them, 8 to 15. Bytes 8 to 11, repeated: two
        // high bits of groups g, g + 4, g + 8, g + 12.
        const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(s[0].scales));
        const __m128i high = _mm_set1_epi32(i32_at(s[0].scales + 8));
        const __m128i nibbles =
            _mm_and_si128(_mm_unpacklo_epi64(low, _mm_srli_epi16(low, 4)), _mm_set1_epi8(15));
        const __m128i two = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
        const __m128i stored = _mm_or_si128(nibbles, _mm_slli_epi16(two, 4));
        const __m128i scale = _mm_sub_epi8(stored, _mm_set1_epi8(32));
        return centred_groups(half_at(s[0].d), _mm256_cvtepi8_epi16(scale), 4.0f);
    }
};

// Scales and minima of Q4_K and Q5_K.
template <class S>
[[gnu::always_inline]] inline void k_scales(const S& s, __m256& scale, __m256& min) {
    // Bytes 0 to 3 of `stored`: scales of groups 0 to 3 and, in the top two bits, the top of 4 to 7's; 4 to
    // 7: minima likewise; 8 to 11: low nibbles of scales 4 to 7 and, above them, of minima.
    uint64_t first;
    uint32_t last;
    std::memcpy(&first, s[0].scales, sizeof first);
    std::memcpy(&last, s[0].scales + 8, sizeof last);
    const uint64_t six = first & 0x3f3f3f3f3f3f3f3full;
    const uint64_t top = (first & 0xc0c0c0c0c0c0c0c0ull) >> 2;
    const uint64_t scales = (six & 0xffffffffull) | (((last & 0x0f0f0f0full) | (top & 0xffffffffull)) << 32);
    const uint64_t mins = six >> 32 | (((last >> 4 & 0x0f0f0f0full) | top >> 32) << 32);
    const __m256i scale_ints = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(scales)));
    const __m256i min_ints = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(mins)));
    scale = _mm256_mul_ps(_mm256_cvtepi32_ps(scale_ints), _mm256_set1_ps(half_at(s[0].d)));
    min = _mm256_mul_ps(_mm256_cvtepi32_ps(min_ints), _mm256_set1_ps(-half_at(s[0].dmin)));
}

struct Q4_K {
    using Block = BlockQ4_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 15;
    static constexpr bool kSigned = false, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        const uint8_t* qs = s[0].qs + P / 2 * 32 + 16 * H;
        return bits_of<P % 2 * 4>(two_lanes(qs, qs + 64), 15);
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        k_scales(s, scale, min);
    }
};

struct Q5_K {
    using Block = BlockQ5_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 31;
    static constexpr bool kSigned = false, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        const uint8_t* qs = s[0].qs + P / 2 * 32 + 16 * H;
        const __m256i low = bits_of<P % 2 * 4>(two_lanes(qs, qs + 64), 15);
        const __m256i bit = two_lanes(_mm_set1_epi8(static_cast<char>(1 << P)),
                                      _mm_set1_epi8(static_cast<char>(1 << (P + 4))));
        const __m256i high = _mm256_broadcastsi128_si256(half_bytes_at(s[0].qh + 16 * H));
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        return _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        k_scales(s, scale, min);
    }
};

struct Q6_K {
    using Block = BlockQ6_K;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 63;
    static constexpr bool kSigned = false, kGroups = true;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        const uint8_t* ql = s[0].ql + P % 2 * 32 + 16 * H;
        const __m256i low = bits_of<P / 2 * 4>(two_lanes(ql, ql + 64), 15);
        const __m256i high = bits_of<2 * P>(two_lanes(s[0].qh + 16 * H, s[0].qh + 32 + 16 * H), 3);
        return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        const __m256i scale = _mm256_cvtepi8_epi16(half_bytes_at(s[0].scales));
        return centred_groups(half_at(s[0].d), scale, 32.0f);
    }
};

// Values for nibbles; 16 of them, for both lanes.
[[gnu::always_inline]] inline __m256i look_up(const int8_t (&values)[16], __m256i nibbles) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half_bytes_at(values)), nibbles);
}

struct IQ4_NL {
    using Block = BlockIQ4_NL;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 128;
    static constexpr bool kSigned = true, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return look_up(kIq4Values, bits_of<4 * H>(two_lanes(s[P].qs, s[P + 4].qs), 15));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        scale = eight_halves(s);
        min = _mm256_setzero_ps();
    }
};

struct IQ4_XS {
    using Block = BlockIQ4_XS;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 128;
    static constexpr bool kSigned = true, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return look_up(kIq4Values, bits_of<4 * H>(two_lanes(s[0].qs + 16 * P, s[0].qs + 16 * (P + 4)), 15));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(i32_at(s[0].scales_low)),
                                              _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(u16_at(s[0].scales_high)),
                                               _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        const __m256i six = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                            _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
        const __m256i centred = _mm256_sub_epi32(six, _mm256_set1_epi32(32));
        scale = _mm256_mul_ps(_mm256_cvtepi32_ps(centred), _mm256_set1_ps(half_at(s[0].d)));
        min = _mm256_setzero_ps();
    }
};

struct MXFP4 {
    using Block = BlockMXFP4;
    static constexpr size_t kBlocks = 8;
    static constexpr int kMaxCode = 12;
    static constexpr bool kSigned = true, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return look_up(kE2m1Doubled, bits_of<4 * H>(two_lanes(s[P].qs, s[P + 4].qs), 15));
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {  // see mxfp4_scale()
        const __m256i e = _mm256_setr_epi32(s[0].e, s[1].e, s[2].e, s[3].e, s[4].e, s[5].e, s[6].e, s[7].e);
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
        scale = _mm256_castsi256_ps(
            _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
        min = _mm256_setzero_ps();
    }
};

struct TQ2_0 {
    using Block = BlockTQ2_0;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 3;
    static constexpr bool kSigned = false, kGroups = false;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return bits_of<2 * P>(two_lanes(s[0].qs + 16 * H, s[0].qs + 32 + 16 * H), 3);
    }
    template <class S>
    [[gnu::always_inline]] static void scales(const S& s, __m256& scale, __m256& min) {
        scale = _mm256_set1_ps(half_at(s[0].d));
        min = _mm256_sub_ps(_mm256_setzero_ps(), scale);
    }
};

template <NeedsDecoding B>
struct Grid {
    using Block = B;
    static constexpr size_t kBlocks = 1;
    static constexpr int kMaxCode = 63;
    static constexpr bool kSigned = true, kGroups = true;

    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return two_lanes(s[0].codes + 32 * P + 16 * H, s[0].codes + 32 * (P + 4) + 16 * H);
    }
    template <class S>
    [[gnu::always_inline]] static Groups groups(const S& s) {
        const __m256i scale = _mm256_cvtepi8_epi16(half_bytes_at(s[0].scales));
        return {s[0].d, scale, _mm256_setzero_ps(), _mm256_setzero_ps()};
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

// Calls f.template operator()<W>() for the type's W, and returns what it returns.
template <class F>
[[gnu::always_inline]] inline auto with_blocks_of(Type type, F f) {
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
    __builtin_trap();  // activation_for() gives float weights float activations
}

template <class W, class... Others>
constexpr bool kIsAnyOf = (std::is_same_v<W, Others> || ...);

// The one order in which eight lanes become a sum: lane b with b + 4, then b with b + 2, then the last two.
[[gnu::always_inline]] inline float sum_of_lanes(__m256 v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace weir::kernels::avx2
