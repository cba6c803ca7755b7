// The planes of nested blocks (kernels/nested.h) in AVX2 registers.
//
// The bits of a few planes are put together for 256 weights at a time as vectors of nibbles: those of groups P, P + 2 in
// the halves of one byte, groups c and c + 4 in the lanes, as kernels/activation.h has the activations. The high half of a
// code and the low one stay apart.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_unpacked.h"
#include "kernels/nested.h"

namespace weir::kernels::avx2 {
namespace {

// Planes of one row, from some super-block on. Not read where the level does not.
struct Row {
    const uint8_t* p1;
    const uint8_t* p2;
    const uint8_t* p3;
    const uint8_t* p4a;
    const uint8_t* p4b;
    const uint8_t* scales;
};

struct ScaleBlock {
    uint8_t d[2];
    uint8_t dmin[2];
    uint8_t scales[12];
};
static_assert(sizeof(ScaleBlock) == 16);

constexpr size_t kOneBit = 32, kTwoBits = 64;  // bytes of a full super-block in a plane

[[gnu::always_inline]] inline const uint8_t* plane_of(const NestedRows& w, Plane p, size_t row, size_t row_bytes) {
    return reinterpret_cast<const uint8_t*>(w.plane[static_cast<size_t>(p)]) + row * row_bytes;
}

// What a row takes in planes of one bit and of two, and in scales.
struct RowBytes {
    size_t one, two, scales;
    explicit RowBytes(size_t k)
        : one(plane_row_bytes(Plane::kP2, k)), two(plane_row_bytes(Plane::kP1, k)), scales(plane_row_bytes(Plane::kS4, k)) {}
};

// Rows of one product.
struct Nested {
    NestedRows rows;
    RowBytes bytes;
    size_t k;

    Nested(const NestedRows& w, size_t columns) : rows(w), bytes(columns), k(columns) {}
    size_t supers() const { return (k + kSuperElements - 1) / kSuperElements; }
    // How many cells there are from 256 elements on, at most as many as those have.
    size_t cells_from(size_t super) const {
        const size_t left = k / kCellElements - super * kCellsPerSuper;
        return left < kCellsPerSuper ? left : kCellsPerSuper;
    }
};

template <Level L>
[[gnu::always_inline]] inline Row row_at(const Nested& matrix, size_t r) {
    const NestedRows& w = matrix.rows;
    const RowBytes& bytes = matrix.bytes;
    Row row{};
    row.p1 = plane_of(w, Plane::kP1, r, bytes.two);
    if constexpr (L >= Level::k3) row.p2 = plane_of(w, Plane::kP2, r, bytes.one);
    if constexpr (L >= Level::k4) row.p3 = plane_of(w, Plane::kP3, r, bytes.one);
    if constexpr (L >= Level::k6) row.p4a = plane_of(w, Plane::kP4a, r, bytes.two);
    if constexpr (L >= Level::k8) row.p4b = plane_of(w, Plane::kP4b, r, bytes.two);
    row.scales = plane_of(w, L == Level::k2 ? Plane::kS2 : L == Level::k3 ? Plane::kS3 : Plane::kS4, r, bytes.scales);
    return row;
}

template <Level L>
[[gnu::always_inline]] inline Row super_of(const Row& row, size_t i) {
    Row at{};
    at.p1 = row.p1 + i * kTwoBits;
    if constexpr (L >= Level::k3) at.p2 = row.p2 + i * kOneBit;
    if constexpr (L >= Level::k4) at.p3 = row.p3 + i * kOneBit;
    if constexpr (L >= Level::k6) at.p4a = row.p4a + i * kTwoBits;
    if constexpr (L >= Level::k8) at.p4b = row.p4b + i * kTwoBits;
    at.scales = row.scales + i * sizeof(ScaleBlock);
    return at;
}

// Nibbles of 256 codes: of groups P and P + 4 in even[] for even P, odd[] for odd; of P of 2 and 3 the upper ones.
struct Nibbles {
    __m256i even[2], odd[2];
};

struct NibbleCodes {
    static constexpr int kMaxCode = 15;
    static constexpr bool kSigned = false;
    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return bits_of<P / 2 * 4>(P % 2 == 0 ? s.even[H] : s.odd[H], 15);
    }
};

// A plane of two bits as it is.
struct Pairs {
    __m256i v[2];
};

struct PairCodes {
    static constexpr int kMaxCode = 3;
    static constexpr bool kSigned = false;
    template <int P, int H, class S>
    [[gnu::always_inline]] static __m256i codes(const S& s) {
        return bits_of<2 * P>(s.v[H], 3);
    }
};

[[gnu::always_inline]] inline __m256i masked(__m256i v, int mask) {
    return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}

[[gnu::always_inline]] inline Pairs pairs_at(const uint8_t* p) { return {{bytes_at(p), bytes_at(p + 32)}}; }

// Bits moved up, over the borders of bytes or not: by one bit an addition does it, for which there are more ports than for shifts
// (level 3, 256 weights from cache, medians of 25: 15.9 to 15.3 ns).
template <int kBits>
[[gnu::always_inline]] inline __m256i up(__m256i v) {
    return kBits == 1 ? _mm256_add_epi8(v, v) : _mm256_slli_epi16(v, kBits);
}

// Exchanges the bits of `low` under the mask with those of `high` that lie kBits below.
template <int kBits>
[[gnu::always_inline]] inline void exchange(__m256i& high, __m256i& low, int mask) {
    const __m256i differ = masked(_mm256_xor_si256(up<kBits>(high), low), mask);
    low = _mm256_xor_si256(low, differ);
    high = _mm256_xor_si256(high, _mm256_srli_epi16(differ, kBits));
}

// Codes 4 * high + low.
[[gnu::always_inline]] inline Nibbles nibbles_of(const Pairs& high, const Pairs& low) {
    Nibbles n{{low.v[0], low.v[1]}, {high.v[0], high.v[1]}};
    exchange<2>(n.odd[0], n.even[0], 0xcc);
    exchange<2>(n.odd[1], n.even[1], 0xcc);
    return n;
}

// Codes 2 * high + the bits of a plane of one bit.
[[gnu::always_inline]] inline Nibbles nibbles_of(const Pairs& high, __m256i bit) {
    Nibbles n;
    n.even[0] = masked(bit, 0x11);
    n.even[1] = masked(_mm256_srli_epi16(bit, 1), 0x11);
    n.odd[0] = masked(_mm256_srli_epi16(bit, 2), 0x11);
    n.odd[1] = masked(_mm256_srli_epi16(bit, 3), 0x11);
    for (size_t h = 0; h < 2; ++h) {
        n.even[h] = _mm256_or_si256(n.even[h], masked(up<1>(high.v[h]), 0x66));
        n.odd[h] = _mm256_or_si256(n.odd[h], masked(_mm256_srli_epi16(high.v[h], 1), 0x66));
    }
    return n;
}

// Two planes of one bit as one of two: codes 2 * high + low.
[[gnu::always_inline]] inline Pairs pairs_of(__m256i high, __m256i low) {
    exchange<1>(high, low, 0xaa);
    return {{low, high}};
}

// The high and the low half of the codes of a level, each with what takes them apart.
template <Level L>
struct Halves {
    static constexpr bool kLow = L >= Level::k6;
    [[gnu::always_inline]] static auto high(const Row& r) {
        if constexpr (L == Level::k2) {
            return pairs_at(r.p1);
        } else if constexpr (L == Level::k3) {
            return nibbles_of(pairs_at(r.p1), bytes_at(r.p2));
        } else {
            return nibbles_of(pairs_at(r.p1), pairs_of(bytes_at(r.p2), bytes_at(r.p3)));
        }
    }
    [[gnu::always_inline]] static auto low(const Row& r) {
        if constexpr (L == Level::k8) {
            return nibbles_of(pairs_at(r.p4a), pairs_at(r.p4b));
        } else {
            return pairs_at(r.p4a);
        }
    }
    [[gnu::always_inline]] static PairCodes codes_of(const Pairs&) { return {}; }
    [[gnu::always_inline]] static NibbleCodes codes_of(const Nibbles&) { return {}; }
};

// How the halves of a code stand to each other: code = unit * high + low, weight = scale * step * code + ...
struct Refinement {
    int unit;
    float step;
    float centre;
};

template <Level L>
[[gnu::always_inline]] inline Refinement refinement_of(uint8_t fine_steps) {
    const int unit = L == Level::k8 ? 4 * fine_steps : fine_steps;
    return {unit, 1.0f / static_cast<float>(unit), L == Level::k8 ? 7.5f : 1.5f};
}

template <Level L>
[[gnu::always_inline]] inline void refine(const Refinement& f, __m256& scale, __m256& min) {
    if constexpr (!Halves<L>::kLow) return;
    scale = _mm256_mul_ps(scale, _mm256_set1_ps(f.step));
    min = _mm256_sub_ps(min, _mm256_mul_ps(_mm256_set1_ps(f.centre), scale));
}

template <Level L>
[[gnu::always_inline]] inline void scales_of(const Row& row, const Refinement& f, __m256& scale, __m256& min) {
    k_scales(Blocks<ScaleBlock>{reinterpret_cast<const ScaleBlock*>(row.scales)}, scale, min);
    refine<L>(f, scale, min);
}

}  // namespace
}  // namespace weir::kernels::avx2
