// The short super-block that ends a row of nested blocks (kernels/nested.h) in AVX2 registers: four groups in one, 32 bytes
// of a plane of two bits as they lie in memory. Part q of a register's codes is elements 8 * q to 8 * q + 7 of its groups,
// group after group; activations are brought into this order once for all rows (ShortInput).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/avx2_planes.h"

namespace weir::kernels::avx2 {
namespace {

constexpr size_t kParts = 4;
constexpr size_t kGroupsPerRegister = 4;
using Parts = __m256i[kParts];

// The bytes of a token's Super in the order of the parts, of groups 0 to 3 and of 4 to 7.
struct ShortInput {
    alignas(32) char codes[2][kParts][32];

    void take(const char* super_codes) {
        for (size_t c = 0; c < kCellsPerSuper; ++c) {
            for (size_t q = 0; q < kParts; ++q) {
                char* const to = codes[c / kGroupsPerRegister][q] + c % kGroupsPerRegister * 8;
                std::memcpy(to, super_codes + int8_place(c, 8 * q), 8);
            }
        }
    }
};

// Groups from `first` on, at most four; of those that are not there nothing is read, and their codes are 0.
struct ShortGroups {
    size_t first;
    __m256i mask;

    ShortGroups(size_t first_group, size_t groups)
        : first(first_group),
          mask(_mm256_cmpgt_epi64(_mm256_set1_epi64x(static_cast<int64_t>(groups) - static_cast<int64_t>(first_group)),
                                  _mm256_setr_epi64x(0, 1, 2, 3))) {}

    // Bits 2 * q: of part q.
    [[gnu::always_inline]] __m256i two_bits(const uint8_t* plane) const {
        return _mm256_maskload_epi64(reinterpret_cast<const long long*>(plane + 8 * first), mask);
    }
    [[gnu::always_inline]] __m256i one_bit(const uint8_t* plane) const {
        const __m256i narrow = _mm256_permutevar8x32_epi32(mask, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
        const __m128i bits =
            _mm_maskload_epi32(reinterpret_cast<const int*>(plane + 4 * first), _mm256_castsi256_si128(narrow));
        const __m256i twice =
            _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(bits), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        return masked(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1)), 0x55);
    }
};

[[gnu::always_inline]] inline void parts_of_pairs(__m256i pairs, Parts& parts) {
    parts[0] = masked(pairs, 3);
    parts[1] = bits_of<2>(pairs, 3);
    parts[2] = bits_of<4>(pairs, 3);
    parts[3] = bits_of<6>(pairs, 3);
}

[[gnu::always_inline]] inline void parts_of_nibbles(__m256i even, __m256i odd, Parts& parts) {
    parts[0] = masked(even, 15);
    parts[1] = masked(odd, 15);
    parts[2] = bits_of<4>(even, 15);
    parts[3] = bits_of<4>(odd, 15);
}

// Codes 4 * high + low.
[[gnu::always_inline]] inline void parts_of_two_pairs(__m256i high, __m256i low, Parts& parts) {
    exchange<2>(high, low, 0xcc);
    parts_of_nibbles(low, high, parts);
}

// The halves of the groups' codes at a level; `at`: the planes of the short super-block.
template <Level L>
[[gnu::always_inline]] inline void short_high(const Row& at, const ShortGroups& groups, Parts& parts) {
    const __m256i pairs = groups.two_bits(at.p1);
    if constexpr (L == Level::k2) {
        parts_of_pairs(pairs, parts);
    } else if constexpr (L == Level::k3) {
        const __m256i bit = groups.one_bit(at.p2);
        const __m256i odd_bit = masked(_mm256_srli_epi16(bit, 2), 0x11);
        parts_of_nibbles(_mm256_or_si256(masked(_mm256_slli_epi16(pairs, 1), 0x66), masked(bit, 0x11)),
                         _mm256_or_si256(masked(_mm256_srli_epi16(pairs, 1), 0x66), odd_bit), parts);
    } else {
        const __m256i bit = groups.one_bit(at.p2);
        parts_of_two_pairs(pairs, _mm256_or_si256(_mm256_add_epi8(bit, bit), groups.one_bit(at.p3)), parts);
    }
}

template <Level L>
[[gnu::always_inline]] inline void short_low(const Row& at, const ShortGroups& groups, Parts& parts) {
    const __m256i pairs = groups.two_bits(at.p4a);
    if constexpr (L == Level::k8) {
        parts_of_two_pairs(pairs, groups.two_bits(at.p4b), parts);
    } else {
        parts_of_pairs(pairs, parts);
    }
}

// Scales and minima of `groups` groups, 1 to 7; zeros for the others.
template <Level L>
[[gnu::always_inline]] inline void short_scales(const uint8_t* at, size_t groups, const Refinement& f, __m256& scale,
                                                __m256& min) {
    const size_t bytes = 4 + (12 * groups + 7) / 8;
    uint64_t first, last = 0;
    if (bytes >= sizeof first) {
        std::memcpy(&first, at, sizeof first);
        std::memcpy(&last, at + bytes - sizeof last, sizeof last);
        last >>= 8 * (16 - bytes);
    } else {
        const auto ends = static_cast<uint32_t>(i32_at(at + bytes - 4)) >> (8 * (8 - bytes));
        first = static_cast<uint32_t>(i32_at(at)) | uint64_t{ends} << 32;
    }
    const __m256i all = _mm256_broadcastsi128_si256(_mm_set_epi64x(static_cast<int64_t>(last), static_cast<int64_t>(first)));
    const __m256i places = _mm256_setr_epi8(4, 5, -1, -1, 5, 6, -1, -1, 7, 8, -1, -1, 8, 9, -1, -1,
                                            10, 11, -1, -1, 11, 12, -1, -1, 13, 14, -1, -1, 14, 15, -1, -1);
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(groups)),
                                             _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i both = _mm256_srlv_epi32(_mm256_shuffle_epi8(all, places), _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    both = _mm256_and_si256(both, there);
    const __m256i six = _mm256_set1_epi32(63);
    const __m256 scale_ints = _mm256_cvtepi32_ps(_mm256_and_si256(both, six));
    const __m256 min_ints = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(both, 6), six));
    scale = _mm256_mul_ps(scale_ints, _mm256_set1_ps(half_at(at)));
    min = _mm256_mul_ps(min_ints, _mm256_set1_ps(-half_at(at + 2)));
    refine<L>(f, scale, min);
}

// Products of up to four groups in one register: four int16 a group, each at most 8 * 15 * 127.
[[gnu::always_inline]] inline __m256i products_of(const Parts& parts, const char (&x)[kParts][32]) {
    const auto product = [&](size_t q) __attribute__((always_inline)) {
        return _mm256_maddubs_epi16(parts[q], bytes_at(x[q]));
    };
    return _mm256_add_epi16(_mm256_add_epi16(product(0), product(1)), _mm256_add_epi16(product(2), product(3)));
}

// Both halves of a short super-block's codes.
template <Level L>
struct ShortCodes {
    static constexpr bool kLow = Halves<L>::kLow;
    Parts high[2], low[2];
    bool two;  // registers of groups

    [[gnu::always_inline]] ShortCodes(const Row& at, size_t groups) : two(groups > kGroupsPerRegister) {
        take(at, ShortGroups(0, groups), 0);
        if (two) {
            take(at, ShortGroups(kGroupsPerRegister, groups), 1);
        } else {  // never used; g++ does not see it in every build
            for (Parts* parts : {&high[1], &low[1]})
                for (__m256i& part : *parts) part = _mm256_setzero_si256();
        }
    }

    // Sums of the eight cells.
    [[gnu::always_inline]] __m256i sums_with(const ShortInput& x, const Refinement& f) const {
        const __m256i upper = two ? pairs_of_sums(x, f, 1) : _mm256_setzero_si256();
        return _mm256_permute4x64_epi64(_mm256_hadd_epi32(pairs_of_sums(x, f, 0), upper), 0xd8);
    }

  private:
    [[gnu::always_inline]] void take(const Row& at, const ShortGroups& groups, size_t g) {
        short_high<L>(at, groups, high[g]);
        if constexpr (kLow) short_low<L>(at, groups, low[g]);
    }
    [[gnu::always_inline]] __m256i pairs_of_sums(const ShortInput& x, const Refinement& f, size_t g) const {
        const __m256i sums = products_of(high[g], x.codes[g]);
        if constexpr (!kLow) return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
        const __m256i scaled = _mm256_madd_epi16(sums, _mm256_set1_epi16(static_cast<int16_t>(f.unit)));
        return _mm256_add_epi32(scaled, _mm256_madd_epi16(products_of(low[g], x.codes[g]), _mm256_set1_epi16(1)));
    }
};

// As the codes of 256 weights lie in Unpacked, with zeros for the groups that are not there.
[[gnu::always_inline]] inline void parts_in_cells(const Parts& lower, const Parts& upper, __m256i (&code)[kCellsPerSuper]) {
    for (size_t h = 0; h < 2; ++h) {
        // Sixteen elements of groups 0 and 2, of 1 and 3, of 4 and 6, and of 5 and 7.
        const __m256i g02 = _mm256_unpacklo_epi64(lower[2 * h], lower[2 * h + 1]);
        const __m256i g13 = _mm256_unpackhi_epi64(lower[2 * h], lower[2 * h + 1]);
        const __m256i g46 = _mm256_unpacklo_epi64(upper[2 * h], upper[2 * h + 1]);
        const __m256i g57 = _mm256_unpackhi_epi64(upper[2 * h], upper[2 * h + 1]);
        code[0 + h] = _mm256_permute2x128_si256(g02, g46, 0x20);
        code[2 + h] = _mm256_permute2x128_si256(g13, g57, 0x20);
        code[4 + h] = _mm256_permute2x128_si256(g02, g46, 0x31);
        code[6 + h] = _mm256_permute2x128_si256(g13, g57, 0x31);
    }
}

template <Level L>
[[gnu::noinline]] void unpack_short(const Row& at, size_t groups, const Refinement& f, Unpacked& high, Unpacked& low) {
    Parts parts[2];
    const ShortGroups lower(0, groups), upper(kGroupsPerRegister, groups);
    short_scales<L>(at.scales, groups, f, high.scale, high.min);
    short_high<L>(at, lower, parts[0]);
    short_high<L>(at, upper, parts[1]);
    parts_in_cells(parts[0], parts[1], high.code);
    if constexpr (Halves<L>::kLow) {
        short_low<L>(at, lower, parts[0]);
        short_low<L>(at, upper, parts[1]);
        parts_in_cells(parts[0], parts[1], low.code);
    }
}

// 256 weights from super-block `i` of row `r` on. Of both, the low half is left alone where the level has none.
template <Level L>
[[gnu::noinline]] void unpack_level(const Nested& w, size_t r, size_t i, Unpacked& high, Unpacked& low) {
    const Row at = super_of<L>(row_at<L>(w, r), i);
    const Refinement f = refinement_of<L>(w.rows.fine_steps);
    if (const size_t groups = w.cells_from(i); groups < kCellsPerSuper) return unpack_short<L>(at, groups, f, high, low);
    scales_of<L>(at, f, high.scale, high.min);
    const auto codes = Halves<L>::high(at);
    unpack_codes<decltype(Halves<L>::codes_of(codes))>(codes, high);
    if constexpr (Halves<L>::kLow) {
        const auto rest = Halves<L>::low(at);
        unpack_codes<decltype(Halves<L>::codes_of(rest))>(rest, low);
    }
}

}  // namespace
}  // namespace weir::kernels::avx2
