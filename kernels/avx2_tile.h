// Sixteen weight rows side by side, for many tokens: see avx2_matmul_codes.h for the definition that this
// follows.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_matmul_codes.h"
#include "kernels/types.h"

namespace weir::kernels::avx2 {
namespace {

// Rows of a vector, and vectors of rows in a tile. A broadcast of four activations is used for each of the vectors: two
// keep the loads below the multiplications and leave registers for four tokens (one vector: 80, two 106, three 110
// GMAC/s, Q4_0 in int8 from cache).
constexpr size_t kVectorRows = 8;
constexpr size_t kVectors = 2;
constexpr size_t kTileRows = kVectorRows * kVectors;

// 1024 columns unpacked at a time: 16 KiB of codes and up to 6 KiB of scales, which leaves room in a first-level cache of
// 32 KiB for the activations of four tokens (6 KiB). Bench: matmul/*/64.
constexpr size_t kTileSupers = 4;

// Tokens for which a tile is unpacked once; their accumulators are 512 bytes each.
constexpr size_t kTokenBlock = 128;

// A vector is the same thing of eight rows.
struct RowTile {
    // [256 columns][cell][four columns][rows]: four bytes of each row
    __m256i codes[kTileSupers][kCellsPerSuper][8][kVectors];
    __m256 scale[kTileSupers][kCellsPerSuper][kVectors];   // of cells; of whole blocks where there are groups
    __m256 min[kTileSupers][2][kCellsPerSuper][kVectors];  // [0]: of cells, or of their low halves; [1]: high halves
    __m256i group[kTileSupers][2 * kCellsPerSuper][kVectors];  // scales of groups, as pairs of int16
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
    __m256i codes[kCellsPerSuper][kVectorRows];  // [2 * P + H], see codes<P, H>()
    __m256i scale[kVectorRows];
    __m256i min[2][kVectorRows];
    __m256i group[2][kVectorRows];
};

[[gnu::always_inline]] inline __m256i pairs(__m128i int16s) {
    const __m256i v = _mm256_cvtepi16_epi32(int16s);
    return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(v, 16));
}

template <class Codes, class S>
[[gnu::always_inline]] inline void unpack_codes(const S& s, size_t r, Unpacked& out) {
    out.codes[0][r] = Codes::template codes<0, 0>(s);
    out.codes[1][r] = Codes::template codes<0, 1>(s);
    out.codes[2][r] = Codes::template codes<1, 0>(s);
    out.codes[3][r] = Codes::template codes<1, 1>(s);
    out.codes[4][r] = Codes::template codes<2, 0>(s);
    out.codes[5][r] = Codes::template codes<2, 1>(s);
    out.codes[6][r] = Codes::template codes<3, 0>(s);
    out.codes[7][r] = Codes::template codes<3, 1>(s);
}

template <class W, class S>
[[gnu::always_inline]] inline void unpack_row(const S& s, size_t r, Unpacked& out) {
    unpack_codes<W>(s, r, out);
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        out.scale[r] = _mm256_castps_si256(_mm256_set1_ps(g.d));
        out.min[0][r] = _mm256_castps_si256(g.min_low);
        out.min[1][r] = _mm256_castps_si256(g.min_high);
        out.group[0][r] = pairs(_mm256_castsi256_si128(g.scale));
        out.group[1][r] = pairs(_mm256_extracti128_si256(g.scale, 1));
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
[[gnu::noinline]] void enter(Unpacked& in, RowTile& tile, size_t super, size_t vector) {
    for (size_t v = 0; v < 8; ++v) {
        const size_t cell = v / 2, step = v % 2 * 4;
        transpose(in.codes[v]);
        for (size_t i = 0; i < 4; ++i) {
            tile.codes[super][cell][step + i][vector] = in.codes[v][i];
            tile.codes[super][cell + 4][step + i][vector] = in.codes[v][i + 4];
        }
    }
    transpose(in.scale);
    for (size_t b = 0; b < 8; ++b) tile.scale[super][b][vector] = _mm256_castsi256_ps(in.scale[b]);
    for (size_t half = 0; half < (kHasGroups ? 2 : 1); ++half) {
        transpose(in.min[half]);
        for (size_t b = 0; b < 8; ++b) tile.min[super][half][b][vector] = _mm256_castsi256_ps(in.min[half][b]);
    }
    for (size_t half = 0; half < (kHasGroups ? 2 : 0); ++half) {
        transpose(in.group[half]);
        for (size_t g = 0; g < 8; ++g) tile.group[super][8 * half + g][vector] = in.group[half][g];
    }
}

// What the loop over a tile knows of the type in it, so that types that look alike there share one: how many
// steps of four columns, of 2 * 127 * kMaxCode each, int16 sums may take within one scale; whether codes are signed,
// whether groups of 16 have scales.
template <size_t kStepCount, bool kIsSigned, bool kHasGroups>
struct TileCodes {
    static constexpr size_t kSteps = kStepCount;
    static constexpr bool kSigned = kIsSigned, kGroups = kHasGroups;
};

template <class W>
constexpr size_t kSteps = W::kMaxCode <= 7    ? 4
                          : W::kMaxCode <= 15 ? 8
                          : W::kMaxCode <= 31 ? 4
                          : W::kMaxCode <= 63 ? 2
                                              : 1;
template <class W>
using Codes = TileCodes<kSteps<W>, W::kSigned, W::kGroups>;

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

// Codes of a step of four columns and of each row, times four activations; `magnitude` of signed codes.
template <class C>
[[gnu::always_inline]] inline __m256i products(__m256i w, __m256i magnitude, __m256i a) {
    if constexpr (C::kSigned) return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w));
    return _mm256_maddubs_epi16(w, a);
}

template <size_t T>
using Sums = __m256[T][kVectors];

// Cells `b` of the tile's rows against T tokens whose bytes for the 256 columns start at x[t] + bytes_at: sums with the
// groups' scales in them.
template <class C, size_t T>
[[gnu::always_inline]] inline void sum_cells(const RowTile& tile, size_t super, size_t b, const char* const (&x)[T],
                                             size_t bytes_at, Sums<T>& out) {
    const auto& codes = tile.codes[super][b];
    const size_t place = bytes_at + int8_place(b, 0);
    const auto factor = [&](size_t step, size_t v) __attribute__((always_inline)) {
        return C::kGroups ? tile.group[super][2 * b + step / 4][v] : _mm256_set1_epi16(1);
    };
    __m256i part[T][kVectors], sum[T][kVectors];
#pragma GCC unroll 8
    for (size_t step = 0; step < 8; ++step) {
        __m256i w[kVectors], magnitude[kVectors];
        for (size_t v = 0; v < kVectors; ++v) {
            w[v] = codes[step][v];
            magnitude[v] = C::kSigned ? _mm256_abs_epi8(w[v]) : w[v];
        }
#pragma GCC unroll 8
        for (size_t t = 0; t < T; ++t) {
            const __m256i a = _mm256_set1_epi32(i32_at(x[t] + place + int8_place(0, step / 4 * 16) + step % 4 * 4));
            for (size_t v = 0; v < kVectors; ++v) {
                __m256i p = products<C>(w[v], magnitude[v], a);
                if constexpr (C::kSteps > 1) {
                    part[t][v] = step % C::kSteps == 0 ? p : _mm256_add_epi16(part[t][v], p);
                    keep_order(part[t][v]);
                    p = part[t][v];
                }
                if ((step + 1) % C::kSteps != 0) continue;
                const __m256i wide = _mm256_madd_epi16(p, factor(step, v));
                sum[t][v] = step < C::kSteps ? wide : _mm256_add_epi32(sum[t][v], wide);
                keep_order(sum[t][v]);
            }
        }
        keep_loads();
    }
    for (size_t t = 0; t < T; ++t) {
        for (size_t v = 0; v < kVectors; ++v) out[t][v] = _mm256_cvtepi32_ps(sum[t][v]);
    }
}

using Lanes = __m256[kCellsPerSuper][kVectors];

[[gnu::always_inline]] inline __m256 broadcast(const char* floats, size_t i) {
    return _mm256_set1_ps(f32_at(floats + 4 * i));
}

// Where a chunk of a batch's activations lies: token after token, for the tile's first 256 columns.
struct Chunk {
    const char* x;
    const char* low;
    const char* fine;
    size_t stride;

    [[gnu::always_inline]] Chunk from_token(size_t t) const {
        return {x + t * stride, low + t * stride, fine + t * stride, stride};
    }
    [[gnu::always_inline]] unsigned fine_cells(size_t t, size_t super) const {
        return static_cast<uint8_t>(fine[t * stride + super]);
    }
};

// Adds the products with the low bytes of the tokens that are fine in cell `b`, in the unit of the high ones. A call: few
// cells are fine, and the loop over the others wants all registers.
template <class C, size_t T>
[[gnu::noinline]] void add_low(const RowTile& tile, size_t super, size_t b, const Chunk& chunk, Sums<T>& sums) {
    const __m256 unit = _mm256_set1_ps(1.0f / kHighUnit);
    for (size_t t = 0; t < T; ++t) {
        if ((chunk.fine_cells(t, super) >> b & 1) == 0) continue;
        const char* const low[1] = {chunk.low + t * chunk.stride + super * kSuperElements};
        Sums<1> sum;
        sum_cells<C, 1>(tile, super, b, low, 0, sum);
        for (size_t v = 0; v < kVectors; ++v) sums[t][v] = _mm256_fmadd_ps(sum[0][v], unit, sums[t][v]);
    }
}

// `supers` stretches of the tile against T tokens.
template <class C, class X, size_t T>
void run_tile(const RowTile& tile, size_t supers, const Chunk& chunk, Lanes* lanes) {
    for (size_t super = 0; super < supers; ++super) {
        const char* x[T];
        unsigned fine = 0;
        for (size_t t = 0; t < T; ++t) {
            x[t] = chunk.x + t * chunk.stride + super * sizeof(Super);
            if (X::kTwoBytes) fine |= chunk.fine_cells(t, super);
        }
        for (size_t b = 0; b < kCellsPerSuper; ++b) {
            Sums<T> sum;
            sum_cells<C, T>(tile, super, b, x, kCodesAt, sum);
            if (X::kTwoBytes && __builtin_expect((fine >> b & 1) != 0, 0)) {
                Sums<T> in_memory;  // so that `sum` itself stays in registers
                for (size_t t = 0; t < T; ++t) {
                    for (size_t v = 0; v < kVectors; ++v) in_memory[t][v] = sum[t][v];
                }
                add_low<C, T>(tile, super, b, chunk, in_memory);
                for (size_t t = 0; t < T; ++t) {
                    for (size_t v = 0; v < kVectors; ++v) sum[t][v] = in_memory[t][v];
                }
            }
            __m256 scale[kVectors], min[2][kVectors];
            for (size_t v = 0; v < kVectors; ++v) {
                scale[v] = tile.scale[super][b][v];
                min[0][v] = tile.min[super][0][b][v];
                if (C::kGroups) min[1][v] = tile.min[super][1][b][v];
            }
            keep_loads();
            for (size_t t = 0; t < T; ++t) {
                const __m256 scale_x = broadcast(x[t] + kScaleAt, b);
                const __m256 sum_x = broadcast(x[t] + (C::kGroups ? kSumLowAt : kSumAt), b);
                const __m256 sum_high_x = broadcast(x[t] + kSumHighAt, b);
                for (size_t v = 0; v < kVectors; ++v) {
                    __m256 lane = _mm256_fmadd_ps(sum[t][v], _mm256_mul_ps(scale[v], scale_x), lanes[t][b][v]);
                    if constexpr (C::kGroups || !C::kSigned) lane = _mm256_fmadd_ps(min[0][v], sum_x, lane);
                    if constexpr (C::kGroups) lane = _mm256_fmadd_ps(min[1][v], sum_high_x, lane);
                    lanes[t][b][v] = lane;
                }
                keep_loads();
            }
        }
    }
}

// sum_of_lanes() for eight rows at once.
[[gnu::always_inline]] inline __m256 sums_of_lanes(const Lanes& lanes, size_t v) {
    __m256 four[4];
    for (size_t b = 0; b < 4; ++b) four[b] = _mm256_add_ps(lanes[b][v], lanes[b + 4][v]);
    return _mm256_add_ps(_mm256_add_ps(four[0], four[2]), _mm256_add_ps(four[1], four[3]));
}

// What run_tile() wants of a tile that meets two bytes: in this unit the sum of high bytes is the whole of most sums. Exact, and
// so is all that follows from it.
[[gnu::always_inline]] inline void take_high_unit(RowTile& tile, size_t super, size_t vector) {
    for (size_t b = 0; b < kCellsPerSuper; ++b) {
        tile.scale[super][b][vector] = _mm256_mul_ps(tile.scale[super][b][vector], _mm256_set1_ps(kHighUnit));
    }
}

// `supers` stretches of the rows, from number `super` on, as a tile.
template <class W, class X>
void fill_tile(const typename W::Block* const (&row)[kTileRows], size_t k, size_t super, size_t supers,
               RowTile& tile) {
    using Block = typename W::Block;
    Unpacked unpacked;
    for (size_t i = 0; i < supers; ++i) {
        const size_t first = (super + i) * W::kBlocks;
        const size_t left = W::kBlocks == 1 ? kCellsPerSuper : k / kCellElements - first;
        for (size_t v = 0; v < kVectors; ++v) {
            const Block* const* const rows = row + v * kVectorRows;
            if (left >= kCellsPerSuper) {
                for (size_t r = 0; r < kVectorRows; ++r) unpack_row<W>(Blocks<Block>{rows[r] + first}, r, unpacked);
            } else {
                for (size_t r = 0; r < kVectorRows; ++r) {
                    unpack_row<W>(LastBlocks<Block>(rows[r] + first, left), r, unpacked);
                }
            }
            enter<W::kGroups>(unpacked, tile, i, v);
            if (X::kTwoBytes) take_high_unit(tile, i, v);
        }
    }
}

// Up to kTileRows rows, up to kTokenBlock tokens.
template <class W, class X>
void multiply_tile(const char* w, size_t w_row_bytes, size_t rows, size_t k, const char* x,
                   size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    using Block = typename W::Block;
    const Block* row[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) {  // rows that are not there repeat the last, and are not stored
        row[r] = reinterpret_cast<const Block*>(w + (r < rows ? r : rows - 1) * w_row_bytes);
    }
    RowTile tile;
    Lanes lanes[kTokenBlock];
    for (size_t t = 0; t < tokens; ++t) {
        for (auto& cell : lanes[t]) {
            for (__m256& lane : cell) lane = _mm256_setzero_ps();
        }
    }

    const size_t all_supers = (k + kSuperElements - 1) / kSuperElements;
    for (size_t super = 0; super < all_supers; super += kTileSupers) {
        const size_t supers = all_supers - super < kTileSupers ? all_supers - super : kTileSupers;
        const size_t ahead = super + supers < all_supers ? kTileSupers * W::kBlocks * sizeof(Block)
                                                         : kTileRows * w_row_bytes - super * W::kBlocks * sizeof(Block);
        fill_tile<W, X>(row, k, super, supers, tile);
        const Chunk chunk{x + super * sizeof(Super), x + low_at(all_supers) + super * kSuperElements,
                          x + fine_at(all_supers) + super, x_stride_bytes};
        size_t t = 0;
        const size_t quads = tokens / 4;
        constexpr size_t kNextBytes = kTileSupers * W::kBlocks * sizeof(Block);
        for (; t + 4 <= tokens; t += 4) {
            // While the tokens pass, the weights of the next chunk are asked for, some rows at a time: sixteen are too many
            // short streams for the hardware to foresee, and too many lines to ask for at once.
            const size_t quad = t / 4;
            for (size_t r = quad * kTileRows / quads; r < (quad + 1) * kTileRows / quads; ++r) {
                const char* const next = reinterpret_cast<const char*>(row[r] + super * W::kBlocks) + ahead;
                for (size_t line = 0; line < kNextBytes; line += 64) _mm_prefetch(next + line, _MM_HINT_T1);
            }
            run_tile<Codes<W>, X, 4>(tile, supers, chunk.from_token(t), lanes + t);
        }
        for (; t < tokens; ++t) run_tile<Codes<W>, X, 1>(tile, supers, chunk.from_token(t), lanes + t);
    }
    for (size_t t = 0; t < tokens; ++t) {
        alignas(32) float sums[kTileRows];
        for (size_t v = 0; v < kVectors; ++v) _mm256_store_ps(sums + v * kVectorRows, sums_of_lanes(lanes[t], v));
        std::memcpy(y + t * y_stride, sums, rows * sizeof(float));
    }
}

// From here on rows side by side are faster than row by row. Bench: matmul/*/2 to 16.
constexpr size_t kTileTokens = 8;

template <class W, class X>
void multiply(const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes, size_t tokens,
              float* y, size_t y_stride) {
    using Block = typename W::Block;
    const size_t w_row_bytes = k / (W::kBlocks == 1 ? kSuperElements : kCellElements) * sizeof(Block);
    const char* first_row = static_cast<const char*>(w);
    if (tokens < kTileTokens) {
        for (size_t r = 0; r < rows; ++r) {
            const auto* row = reinterpret_cast<const Block*>(first_row + r * w_row_bytes);
            size_t t = 0;
            for (; t + 4 <= tokens; t += 4) dot<W, X, 4>(row, k, x + t * x_stride_bytes, x_stride_bytes, y + t * y_stride + r, y_stride);
            const char* const rest = x + t * x_stride_bytes;
            float* const out = y + t * y_stride + r;
            if (tokens - t == 3) dot<W, X, 3>(row, k, rest, x_stride_bytes, out, y_stride);
            if (tokens - t == 2) dot<W, X, 2>(row, k, rest, x_stride_bytes, out, y_stride);
            if (tokens - t == 1) dot<W, X, 1>(row, k, rest, x_stride_bytes, out, y_stride);
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
        case Type::kIQ4_NL:
            return multiply<IQ4_NL, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ4_XS:
            return multiply<IQ4_XS, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kMXFP4:
            return multiply<MXFP4, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kTQ2_0:
            return multiply<TQ2_0, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ2_XXS:
            return multiply<IQ2_XXS, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ2_XS:
            return multiply<IQ2_XS, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ3_XXS:
            return multiply<IQ3_XXS, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ1_S:
            return multiply<IQ1_S, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ3_S:
            return multiply<IQ3_S, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ2_S:
            return multiply<IQ2_S, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kIQ1_M:
            return multiply<IQ1_M, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kTQ1_0:
            return multiply<TQ1_0, X>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Type::kF32:
        case Type::kF16:
        case Type::kBF16:
            break;
    }
    __builtin_trap();  // activation_for() gives float weights float activations
}

}  // namespace
}  // namespace weir::kernels::avx2
