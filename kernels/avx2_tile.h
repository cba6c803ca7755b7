// Sixteen weight rows side by side, for many tokens: see avx2_matmul_codes.h for the definition that this follows. How they
// lie is the same for all instruction sets: as two vectors of eight rows, or one of sixteen.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_matmul_codes.h"
#include "kernels/kernels.h"
#include "kernels/types.h"

namespace weir::kernels::avx2 {
namespace {

constexpr size_t kVectorRows = 8;  // of what unpacking goes through, see enter()
constexpr size_t kVectors = 2;
constexpr size_t kTileRows = kVectorRows * kVectors;

// 1024 columns unpacked at a time: 16 KiB of codes and up to 6 KiB of scales, which leaves room in a first-level cache of
// 32 KiB for the activations of four tokens (6 KiB). Bench: matmul/*/64.
constexpr size_t kTileSupers = 4;

// Tokens for which a tile is unpacked once; their accumulators are 512 bytes each.
constexpr size_t kTokenBlock = 128;

// An entry of sixteen rows.
using RowFloats = float[kTileRows];

struct alignas(64) RowTile {
    // [256 columns][cell][four columns][rows]: four bytes of each row
    __m256i codes[kTileSupers][kCellsPerSuper][8][kVectors];
    RowFloats scale[kTileSupers][kCellsPerSuper];   // of cells; of whole blocks where there are groups
    RowFloats min[kTileSupers][2][kCellsPerSuper];  // [0]: of cells, or of their low halves; [1]: high halves
    __m256i group[kTileSupers][2 * kCellsPerSuper][kVectors];  // scales of groups, as pairs of int16
    __m256i below[kTileSupers][kCellsPerSuper][kVectors];      // int32: magnitudes of a cell's codes below zero; see kFlips
};

[[gnu::always_inline]] inline void transpose(__m256i (&v)[8]) {
    __m256i t[8];
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    __m256i u[8];
    for (size_t i = 0; i < 8; i += 4) {
        u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (size_t i = 0; i < 4; ++i) {
        v[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
    }
}

[[gnu::always_inline]] inline __m256i pairs(__m128i int16s) {
    const __m256i v = _mm256_cvtepi16_epi32(int16s);
    return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(v, 16));
}

// Turns a vector of each of eight rows into a vector of rows for each entry.
template <class Of>
[[gnu::always_inline]] inline void gather(const Unpacked (&rows)[kVectorRows], Of of, __m256i (&entries)[8]) {
    for (size_t r = 0; r < kVectorRows; ++r) entries[r] = of(rows[r]);
    transpose(entries);
}

// The sum of magnitudes of the codes below zero, for each of eight rows.
[[gnu::always_inline]] inline __m256i sum_below(const __m256i (&codes)[8][kVectors], size_t vector) {
    __m256i sum = _mm256_setzero_si256();
    for (size_t step = 0; step < 8; ++step) {
        const __m256i below = _mm256_abs_epi8(_mm256_min_epi8(codes[step][vector], _mm256_setzero_si256()));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(below, _mm256_set1_epi8(1)));
    }
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

// 256 columns of eight rows into a tile.
template <bool kHasGroups, bool kFlips = false>
[[gnu::noinline]] void enter(const Unpacked (&rows)[kVectorRows], RowTile& tile, size_t super, size_t vector) {
    __m256i entries[8];
    for (size_t v = 0; v < 8; ++v) {
        const size_t cell = v / 2, step = v % 2 * 4;
        gather(rows, [v](const Unpacked& u) { return u.code[v]; }, entries);
        for (size_t i = 0; i < 4; ++i) {
            tile.codes[super][cell][step + i][vector] = entries[i];
            tile.codes[super][cell + 4][step + i][vector] = entries[i + 4];
        }
    }
    for (size_t b = 0; kFlips && b < kCellsPerSuper; ++b) {
        tile.below[super][b][vector] = sum_below(tile.codes[super][b], vector);
    }
    const auto enter_floats = [&](RowFloats (&to)[kCellsPerSuper], auto of) __attribute__((always_inline)) {
        gather(rows, [of](const Unpacked& u) { return _mm256_castps_si256(of(u)); }, entries);
        for (size_t b = 0; b < 8; ++b) _mm256_store_ps(to[b] + kVectorRows * vector, _mm256_castsi256_ps(entries[b]));
    };
    if constexpr (!kHasGroups) {
        enter_floats(tile.scale[super], [](const Unpacked& u) { return u.scale; });
        if (!kFlips) enter_floats(tile.min[super][0], [](const Unpacked& u) { return u.min; });  // those have none
    } else {
        enter_floats(tile.scale[super], [](const Unpacked& u) { return _mm256_set1_ps(u.group.d); });
        enter_floats(tile.min[super][0], [](const Unpacked& u) { return u.group.min_low; });
        enter_floats(tile.min[super][1], [](const Unpacked& u) { return u.group.min_high; });
        for (size_t half = 0; half < 2; ++half) {
            gather(rows, [half](const Unpacked& u) {
                const __m256i scale = u.group.scale;
                return pairs(half == 0 ? _mm256_castsi256_si128(scale) : _mm256_extracti128_si256(scale, 1));
            }, entries);
            for (size_t g = 0; g < 8; ++g) tile.group[super][8 * half + g][vector] = entries[g];
        }
    }
}

// Says nothing to the CPU. g++ makes a tree of a chain of additions and loads its leaves far ahead; sixteen
// registers do not hold them, and the spilling takes a quarter of the time (Q4_0, 64 tokens: 120 to 150
// Gop/s; fine: 72 to 97).
[[gnu::always_inline]] inline void keep_order(__m256i& v) {
    asm("" : "+x"(v));
}

// Nothing crosses it. Else g++ loads the codes of all steps first, and spills them.
[[gnu::always_inline]] inline void keep_loads() {
    asm volatile("" ::: "memory");
}

using Lanes = RowFloats[kCellsPerSuper];

[[gnu::always_inline]] inline float float_at(const char* floats, size_t i) {
    return f32_at(floats + 4 * i);
}

// Where a chunk of a batch's activations lies: token after token, for the tile's first 256 columns.
struct Chunk {
    const char* x;
    const char* low;
    const char* fine;
    const char* whole;
    size_t stride;

    [[gnu::always_inline]] Chunk from_token(size_t t) const {
        return {x + t * stride, low + t * stride, fine + t * stride, whole + t * stride, stride};
    }
    [[gnu::always_inline]] unsigned fine_cells(size_t t, size_t super) const {
        return static_cast<uint8_t>(fine[t * stride + super]);
    }
};

// From 256 columns number `super` of `supers` on.
[[gnu::always_inline]] inline Chunk chunk_at(const char* x, size_t stride, size_t supers, size_t super) {
    return {x + super * sizeof(Super), x + low_at(supers) + super * kSuperElements, x + fine_at(supers) + super,
            x + whole_at(supers) + super * kSuperElements * sizeof(int16_t), stride};
}

// Adds the products with the low bytes of the tokens that are fine in cell `b`, in the unit of the high ones. A call: few
// cells are fine, and the loop over the others wants all registers.
template <class C, class I, size_t T>
[[gnu::noinline]] void add_low(const RowTile& tile, size_t super, size_t b, const Chunk& chunk,
                               typename I::Floats (&sums)[T][I::kVectors]) {
    const typename I::Floats unit = I::all(1.0f / kHighUnit);
    for (size_t t = 0; t < T; ++t) {
        if ((chunk.fine_cells(t, super) >> b & 1) == 0) continue;
        const char* const low[1] = {chunk.low + t * chunk.stride + super * kSuperElements};
        typename I::Floats sum[1][I::kVectors];
        I::template sum_cells<C, 1>(tile, super, b, low, 0, sum);
        for (size_t v = 0; v < I::kVectors; ++v) sums[t][v] = I::multiply_add(sum[0][v], unit, sums[t][v]);
    }
}

// `supers` stretches of the tile against T tokens.
template <class C, class I, class X, size_t T>
void run_tile(const RowTile& tile, size_t supers, const Chunk& chunk, Lanes* lanes) {
    using Floats = typename I::Floats;
    for (size_t super = 0; super < supers; ++super) {
        const char* x[T];
        unsigned fine = 0;
        for (size_t t = 0; t < T; ++t) {
            x[t] = chunk.x + t * chunk.stride + super * sizeof(Super);
            if (X::kTwoBytes) fine |= chunk.fine_cells(t, super);
        }
        for (size_t b = 0; b < kCellsPerSuper; ++b) {
            Floats sum[T][I::kVectors];
            I::template sum_cells<C, T>(tile, super, b, x, kCodesAt, sum);
            if (X::kTwoBytes && __builtin_expect((fine >> b & 1) != 0, 0)) {
                Floats in_memory[T][I::kVectors];  // so that `sum` itself stays in registers
                for (size_t t = 0; t < T; ++t) {
                    for (size_t v = 0; v < I::kVectors; ++v) in_memory[t][v] = sum[t][v];
                }
                add_low<C, I, T>(tile, super, b, chunk, in_memory);
                for (size_t t = 0; t < T; ++t) {
                    for (size_t v = 0; v < I::kVectors; ++v) sum[t][v] = in_memory[t][v];
                }
            }
            Floats scale[I::kVectors], min[2][I::kVectors];
            for (size_t v = 0; v < I::kVectors; ++v) {
                scale[v] = I::floats(tile.scale[super][b], v);
                min[0][v] = I::floats(tile.min[super][0][b], v);
                if (C::kGroups) min[1][v] = I::floats(tile.min[super][1][b], v);
            }
            keep_loads();
            for (size_t t = 0; t < T; ++t) {
                const Floats scale_x = I::all(float_at(x[t] + kScaleAt, b));
                const Floats sum_x = I::all(float_at(x[t] + (C::kGroups ? kSumLowAt : kSumAt), b));
                const Floats sum_high_x = I::all(float_at(x[t] + kSumHighAt, b));
                for (size_t v = 0; v < I::kVectors; ++v) {
                    Floats lane = I::floats(lanes[t][b], v);
                    lane = I::multiply_add(sum[t][v], I::multiply(scale[v], scale_x), lane);
                    if constexpr (C::kGroups || !C::kSigned) lane = I::multiply_add(min[0][v], sum_x, lane);
                    if constexpr (C::kGroups) lane = I::multiply_add(min[1][v], sum_high_x, lane);
                    I::store(lanes[t][b], v, lane);
                }
                keep_loads();
            }
        }
    }
}

// sum_of_lanes() for a token's sixteen rows, of which the first `rows` are stored.
inline void store_sums(const Lanes& lanes, size_t rows, float* y) {
    RowFloats sums;
    for (size_t v = 0; v < kTileRows; v += 8) {
        __m256 four[4];
        for (size_t b = 0; b < 4; ++b) four[b] = _mm256_add_ps(floats_at(lanes[b] + v), floats_at(lanes[b + 4] + v));
        _mm256_storeu_ps(sums + v, _mm256_add_ps(_mm256_add_ps(four[0], four[2]), _mm256_add_ps(four[1], four[3])));
    }
    if (rows == kTileRows) std::memcpy(y, sums, sizeof sums);  // a size that is known: two stores
    else std::memcpy(y, sums, rows * sizeof(float));
}

// What run_tile() wants of a tile that meets two bytes: in this unit the sum of high bytes is the whole of most sums. Exact, and
// so is all that follows from it.
[[gnu::always_inline]] inline void take_high_unit(RowTile& tile, size_t super) {
    for (size_t b = 0; b < kCellsPerSuper; ++b) {
        for (float& scale : tile.scale[super][b]) scale *= kHighUnit;
    }
}

}  // namespace
}  // namespace weir::kernels::avx2
