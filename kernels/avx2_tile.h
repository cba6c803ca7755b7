// Eight weight rows side by side, for many tokens: see avx2_matmul_codes.h for the definition that this
// follows.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_matmul_codes.h"
#include "kernels/types.h"

namespace weir::kernels::avx2 {
namespace {

constexpr size_t kTileRows = 8;

// 1024 columns unpacked at a time: 8 KiB of codes and up to 5 KiB of scales, which leaves room in a
// first-level cache of 32 KiB for the activations of four tokens (6 KiB). Bench: matmul/*/64.
constexpr size_t kTileSupers = 4;

// Tokens whose accumulators (256 bytes each) are kept while the tile walks along its rows. 64 tokens of 4096
// columns are 400 KB of activations, which a second-level cache of 512 KiB still holds from one tile to the
// next.
constexpr size_t kTokenBlock = 64;

// A vector is the same thing of eight rows.
struct RowTile {
    __m256i codes[kTileSupers][kCellsPerSuper]
                 [8];                            // [256 columns][cell][four columns]: four bytes of each row
    __m256 scale[kTileSupers][kCellsPerSuper];   // of cells; of whole blocks where there are groups
    __m256 min[kTileSupers][2][kCellsPerSuper];  // [0]: of cells, or of their low halves; [1]: high halves
    __m256i group[kTileSupers]
                 [2 * kCellsPerSuper];  // scales of groups: pairs of int16, or the bits of floats
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

// 256 columns of eight rows on their way into a tile: for each thing that rows have a vector of, eight
// vectors.
struct Unpacked {
    __m256i codes[kCellsPerSuper][kTileRows];  // [2 * P + H], see codes<P, H>()
    __m256i scale[kTileRows];
    __m256i min[2][kTileRows];
    __m256i group[2][kTileRows];
};

template <class W, class X, class S>
[[gnu::always_inline]] inline void unpack_row(const S& s, size_t r, Unpacked& out) {
    out.codes[0][r] = W::template codes<0, 0>(s);
    out.codes[1][r] = W::template codes<0, 1>(s);
    out.codes[2][r] = W::template codes<1, 0>(s);
    out.codes[3][r] = W::template codes<1, 1>(s);
    out.codes[4][r] = W::template codes<2, 0>(s);
    out.codes[5][r] = W::template codes<2, 1>(s);
    out.codes[6][r] = W::template codes<3, 0>(s);
    out.codes[7][r] = W::template codes<3, 1>(s);
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        out.scale[r] = _mm256_castps_si256(_mm256_set1_ps(g.d));
        out.min[0][r] = _mm256_castps_si256(g.min_low);
        out.min[1][r] = _mm256_castps_si256(g.min_high);
        out.group[0][r] = X::tile_groups(_mm256_castsi256_si128(g.scale));
        out.group[1][r] = X::tile_groups(_mm256_extracti128_si256(g.scale, 1));
    } else {
        __m256 scale, min;
        W::scales(s, scale, min);
        out.scale[r] = _mm256_castps_si256(scale);
        out.min[0][r] = _mm256_castps_si256(min);
    }
}

// Turns vectors of entries, one for each row, into a vector of rows for each entry. One function for all
// types: inlined into each of them it makes up most of the compiler's work.
template <bool kHasGroups>
[[gnu::noinline]] void enter(Unpacked& in, RowTile& tile, size_t super) {
    for (size_t v = 0; v < 8; ++v) {
        const size_t cell = v / 2, step = v % 2 * 4;
        transpose(in.codes[v]);
        for (size_t i = 0; i < 4; ++i) {
            tile.codes[super][cell][step + i] = in.codes[v][i];
            tile.codes[super][cell + 4][step + i] = in.codes[v][i + 4];
        }
    }
    transpose(in.scale);
    for (size_t b = 0; b < 8; ++b) tile.scale[super][b] = _mm256_castsi256_ps(in.scale[b]);
    for (size_t half = 0; half < (kHasGroups ? 2 : 1); ++half) {
        transpose(in.min[half]);
        for (size_t b = 0; b < 8; ++b) tile.min[super][half][b] = _mm256_castsi256_ps(in.min[half][b]);
    }
    for (size_t half = 0; half < (kHasGroups ? 2 : 0); ++half) {
        transpose(in.group[half]);
        for (size_t g = 0; g < 8; ++g) tile.group[super][8 * half + g] = in.group[half][g];
    }
}

// What the loop over a tile knows of the type in it, so that types that look alike there share one: how many
// steps of four columns int16 sums may take, whether codes are signed, whether groups of 16 have scales.
template <size_t kStepCount, bool kIsSigned, bool kHasGroups>
struct TileCodes {
    static constexpr size_t kSteps = kStepCount;
    static constexpr bool kSigned = kIsSigned, kGroups = kHasGroups;
};

// Says nothing to the CPU. g++ makes a tree of a chain of additions and loads its leaves far ahead; sixteen
// registers do not hold them, and the spilling takes a quarter of the time (Q4_0, 64 tokens: 120 to 150
// Gop/s; int16: 72 to 97).
[[gnu::always_inline]] inline void keep_order(__m256i& v) {
    asm("" : "+x"(v));
}

// Cells `b` of eight rows against T tokens: float sums, groups' scales included.
struct Int8Tile : Int8 {
    [[gnu::always_inline]] static __m256i tile_groups(__m128i int16s) {
        const __m256i v = _mm256_cvtepi16_epi32(int16s);
        return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(v, 16));
    }

    // Steps of four columns whose products an int16 holds, 2 * 127 * kMaxCode each, within one scale.
    template <class W>
    static constexpr size_t kSteps = W::kMaxCode <= 7    ? 4
                                     : W::kMaxCode <= 15 ? 8
                                     : W::kMaxCode <= 31 ? 4
                                     : W::kMaxCode <= 63 ? 2
                                                         : 1;
    template <class W>
    using Codes = TileCodes<kSteps<W>, W::kSigned, W::kGroups>;

    template <class C, size_t T>
    [[gnu::always_inline]] static void cell(const RowTile& tile, size_t super, size_t b,
                                            const char* const (&x)[T], __m256 (&out)[T]) {
        const size_t at = kCodesAt + int8_place(b, 0);
        __m256i sum[T];
        for (size_t t = 0; t < T; ++t) sum[t] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (size_t first = 0; first < 8; first += C::kSteps) {
            __m256i part[T];
#pragma GCC unroll 8
            for (size_t i = first; i < first + C::kSteps; ++i) {
                const __m256i w = tile.codes[super][b][i];
                for (size_t t = 0; t < T; ++t) {
                    const __m256i a = _mm256_set1_epi32(i32_at(x[t] + at + i / 4 * 32 + i % 4 * 4));
                    const __m256i p = C::kSigned
                                          ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
                                          : _mm256_maddubs_epi16(w, a);
                    part[t] = i == first ? p : _mm256_add_epi16(part[t], p);
                    keep_order(part[t]);
                }
            }
            const __m256i factor = C::kGroups ? tile.group[super][2 * b + first / 4] : _mm256_set1_epi16(1);
            for (size_t t = 0; t < T; ++t)
                sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(part[t], factor));
        }
        for (size_t t = 0; t < T; ++t) out[t] = _mm256_cvtepi32_ps(sum[t]);
    }
};

struct Int16Tile : Int16 {
    [[gnu::always_inline]] static __m256i tile_groups(__m128i int16s) {
        return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(int16s)));
    }

    template <class W>
    using Codes = TileCodes<8, W::kSigned, W::kGroups>;

    template <class C, size_t T>
    [[gnu::always_inline]] static void half_cell(const RowTile& tile, size_t super, size_t b, size_t half,
                                                 const char* const (&x)[T], __m256i (&sum)[T]) {
        const size_t at = kCodesAt + sizeof(int16_t) * int16_place(b, 16 * half);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; ++i) {
            const __m256i w = tile.codes[super][b][4 * half + i];
            const __m256i w_even = even<C>(w);
            const __m256i w_odd = odd<C>(w);
            for (size_t t = 0; t < T; ++t) {
                const __m256i a_even = _mm256_set1_epi32(i32_at(x[t] + at + 4 * i));
                const __m256i a_odd = _mm256_set1_epi32(i32_at(x[t] + at + 32 + 4 * i));
                sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(w_even, a_even));
                sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(w_odd, a_odd));
                keep_order(sum[t]);
            }
        }
    }

    template <class C, size_t T>
    [[gnu::always_inline]] static void cell(const RowTile& tile, size_t super, size_t b,
                                            const char* const (&x)[T], __m256 (&out)[T]) {
        __m256i sum[T];
        for (size_t t = 0; t < T; ++t) sum[t] = _mm256_setzero_si256();
        half_cell<C, T>(tile, super, b, 0, x, sum);
        if constexpr (C::kGroups) {
            const __m256 low = _mm256_castsi256_ps(tile.group[super][2 * b]);
            const __m256 high = _mm256_castsi256_ps(tile.group[super][2 * b + 1]);
            for (size_t t = 0; t < T; ++t) {
                out[t] = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[t]), low);
                sum[t] = _mm256_setzero_si256();
            }
            half_cell<C, T>(tile, super, b, 1, x, sum);
            for (size_t t = 0; t < T; ++t) out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), high, out[t]);
        } else {
            half_cell<C, T>(tile, super, b, 1, x, sum);
            for (size_t t = 0; t < T; ++t) out[t] = _mm256_cvtepi32_ps(sum[t]);
        }
    }
};

using Lanes = __m256[kCellsPerSuper];

[[gnu::always_inline]] inline __m256 broadcast(const char* floats, size_t i) {
    return _mm256_set1_ps(f32_at(floats + 4 * i));
}

// `supers` stretches of the tile against T tokens whose activations for the first of them start at x.
template <class C, class X, size_t T>
void run_tile(const RowTile& tile, size_t supers, const char* first, size_t x_stride_bytes, Lanes* lanes) {
    const char* x[T];
    for (size_t t = 0; t < T; ++t) x[t] = first + t * x_stride_bytes;
    for (size_t super = 0; super < supers; ++super) {
        for (size_t b = 0; b < kCellsPerSuper; ++b) {
            __m256 sum[T];
            X::template cell<C, T>(tile, super, b, x, sum);
            const __m256 w_scale = tile.scale[super][b];
            for (size_t t = 0; t < T; ++t) {
                __m256 v = lanes[t][b];
                v = _mm256_fmadd_ps(sum[t], _mm256_mul_ps(w_scale, broadcast(x[t] + kScaleAt, b)), v);
                if constexpr (C::kGroups) {
                    v = _mm256_fmadd_ps(tile.min[super][0][b], broadcast(x[t] + kSumLowAt, b), v);
                    v = _mm256_fmadd_ps(tile.min[super][1][b], broadcast(x[t] + kSumHighAt, b), v);
                } else if constexpr (!C::kSigned) {
                    v = _mm256_fmadd_ps(tile.min[super][0][b], broadcast(x[t] + kSumAt, b), v);
                }
                lanes[t][b] = v;
            }
        }
        for (size_t t = 0; t < T; ++t) x[t] += sizeof(typename X::Super);
    }
}

// sum_of_lanes() for eight rows at once.
[[gnu::always_inline]] inline __m256 sums_of_lanes(const Lanes& lanes) {
    __m256 four[4];
    for (size_t b = 0; b < 4; ++b) four[b] = _mm256_add_ps(lanes[b], lanes[b + 4]);
    return _mm256_add_ps(_mm256_add_ps(four[0], four[2]), _mm256_add_ps(four[1], four[3]));
}

// `supers` stretches of eight rows, from number `super` on, as a tile.
template <class W, class X>
void fill_tile(const typename W::Block* const (&row)[kTileRows], size_t k, size_t super, size_t supers,
               RowTile& tile) {
    using Block = typename W::Block;
    Unpacked unpacked;
    for (size_t i = 0; i < supers; ++i) {
        const size_t first = (super + i) * W::kBlocks;
        const size_t left = W::kBlocks == 1 ? kCellsPerSuper : k / kCellElements - first;
        if (left >= kCellsPerSuper) {
            for (size_t r = 0; r < kTileRows; ++r)
                unpack_row<W, X>(Blocks<Block>{row[r] + first}, r, unpacked);
        } else {
            for (size_t r = 0; r < kTileRows; ++r) {
                unpack_row<W, X>(LastBlocks<Block>(row[r] + first, left), r, unpacked);
            }
        }
        enter<W::kGroups>(unpacked, tile, i);
    }
}

// Up to eight rows, up to kTokenBlock tokens.
template <class W, class X>
void multiply_tile(const char* w, size_t w_row_bytes, size_t rows, size_t k, const char* x,
                   size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    using Block = typename W::Block;
    using Codes = typename X::template Codes<W>;
    const Block* row[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) {  // rows that are not there repeat the last, and are not stored
        row[r] = reinterpret_cast<const Block*>(w + (r < rows ? r : rows - 1) * w_row_bytes);
    }
    RowTile tile;
    Lanes lanes[kTokenBlock];
    for (size_t t = 0; t < tokens; ++t) {
        for (__m256& lane : lanes[t]) lane = _mm256_setzero_ps();
    }

    const size_t all_supers = (k + kSuperElements - 1) / kSuperElements;
    for (size_t super = 0; super < all_supers; super += kTileSupers) {
        const size_t supers = all_supers - super < kTileSupers ? all_supers - super : kTileSupers;
        fill_tile<W, X>(row, k, super, supers, tile);
        const char* from = x + super * sizeof(typename X::Super);
        size_t t = 0;
        for (; t + 4 <= tokens; t += 4) {
            run_tile<Codes, X, 4>(tile, supers, from + t * x_stride_bytes, x_stride_bytes, lanes + t);
        }
        for (; t < tokens; ++t) {
            run_tile<Codes, X, 1>(tile, supers, from + t * x_stride_bytes, x_stride_bytes, lanes + t);
        }
    }
    for (size_t t = 0; t < tokens; ++t) {
        alignas(32) float sums[kTileRows];
        _mm256_store_ps(sums, sums_of_lanes(lanes[t]));
        std::memcpy(y + t * y_stride, sums, rows * sizeof(float));
    }
}

// From here on eight rows side by side are faster than row by row. Bench: matmul/*/2 to 8.
constexpr size_t kTileTokens = 4;

template <class W, class X>
void multiply(const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes, size_t tokens,
              float* y, size_t y_stride) {
    using Block = typename W::Block;
    const size_t w_row_bytes = k / (W::kBlocks == 1 ? kSuperElements : kCellElements) * sizeof(Block);
    const char* first_row = static_cast<const char*>(w);
    if (tokens < kTileTokens) {
        for (size_t r = 0; r < rows; ++r) {
            const auto* row = reinterpret_cast<const Block*>(first_row + r * w_row_bytes);
            for (size_t t = 0; t < tokens; ++t)
                y[t * y_stride + r] = dot<W, X>(row, k, x + t * x_stride_bytes);
        }
        return;
    }
    for (size_t t = 0; t < tokens; t += kTokenBlock) {
        const size_t block = tokens - t < kTokenBlock ? tokens - t : kTokenBlock;
        for (size_t r = 0; r < rows; r += kTileRows) {
            multiply_tile<W, X>(first_row + r * w_row_bytes, w_row_bytes,
                                rows - r < kTileRows ? rows - r : kTileRows, k, x + t * x_stride_bytes,
                                x_stride_bytes, block, y + t * y_stride + r, y_stride);
        }
    }
}

template <class X>
void multiply_any(Type type, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                  size_t tokens, float* y, size_t y_stride) {
    switch (type) {
        case Type::kQ4_0:
            return multiply<Q4_0, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ4_1:
            return multiply<Q4_1, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ5_0:
            return multiply<Q5_0, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ5_1:
            return multiply<Q5_1, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ8_0:
            return multiply<Q8_0, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ2_K:
            return multiply<Q2_K, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ3_K:
            return multiply<Q3_K, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ4_K:
            return multiply<Q4_K, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ5_K:
            return multiply<Q5_K, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kQ6_K:
            return multiply<Q6_K, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kF32:
        case Type::kF16:
        case Type::kBF16:
            break;
    }
    __builtin_trap();  // activation_for() gives float weights float activations
}

}  // namespace
}  // namespace weir::kernels::avx2
