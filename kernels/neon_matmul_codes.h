// Products of quantised weights with integer activations. Included by one file per instruction set, which brings its
// way to make the integer sums (D).
//
// The value of an output is defined once, for every path through this file and every instruction set. Lane b of a (row,
// token) pair belongs to the cells b of its 256-element stretches, which are taken in order:
//     lane[b] = fma(float(integer sum of cell b), scale_w[b] * scale_x[b], lane[b])
//     lane[b] = fma(min_w[b], sum_x[b], lane[b])          (types with groups of 16: low halves, then high ones)
// and sum_of_lanes() makes one float of them. With groups the sums of a cell's halves are joined as floats,
// fma(high, scale_high, low * scale_low). The integer sums are exact, so how they are made is free: one row at a time
// (few tokens: unpacking is most of the work), or eight rows side by side, unpacked once for all tokens; and products
// with low bytes are left out where no cell is fine, for all of those are zero.
//
// An instruction set brings
//   dot<M>(sum, w, x)         adds the 16 products, each at most M, to the four sums: which to which is free.
//   arrange(v)                16 columns of eight rows as Sums wants them, in place.
//   Sums<T>                   sums of eight rows against T tokens: clear(), add<M>(w, x, at) for 16 columns whose
//                             activations lie at x[t] + at, times_high_unit(), floats(t).
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/kernels.h"
#include "kernels/neon_blocks.h"

namespace weir::kernels::neon {
namespace {

constexpr size_t kScaleAt = offsetof(Super, scale);
constexpr size_t kSumAt = offsetof(Super, sum);
constexpr size_t kSumLowAt = offsetof(Super, sum_low);
constexpr size_t kSumHighAt = offsetof(Super, sum_high);
constexpr size_t kCodesAt = offsetof(Super, codes);

constexpr int kMaxByte = 127;  // of activations, high or low

// The two integer forms of activations.
struct Int8 {
    static constexpr bool kTwoBytes = false;
};
struct Fine {
    static constexpr bool kTwoBytes = true;
};

[[gnu::always_inline]] inline int8x16_t codes_at(const char* p) { return vld1q_s8(reinterpret_cast<const int8_t*>(p)); }

[[gnu::always_inline]] inline int32x4_t zeros() { return vdupq_n_s32(0); }

// Sums of four cells, each spread over a vector.
[[gnu::always_inline]] inline int32x4_t sums_of(const int32x4_t* parts) {
    return vpaddq_s32(vpaddq_s32(parts[0], parts[1]), vpaddq_s32(parts[2], parts[3]));
}

[[gnu::always_inline]] inline Eight sums_of_cells(const int32x4_t (&parts)[kCellsPerSuper]) {
    return floats_of(sums_of(parts), sums_of(parts + 4));
}

// The sums of eight cells over halves kFirst to kLast, of bytes at `x`, which int8_place() put there.
template <class W, class D, int kFirst, int kLast, class S>
[[gnu::always_inline]] inline Eight sums_of_bytes(const S& s, const char* x) {
    constexpr int kMax = W::kMaxCode * kMaxByte;
    int32x4_t parts[kCellsPerSuper];
    for_each_cell([&]<int B>() __attribute__((always_inline)) {
        int32x4_t sum = D::template dot<kMax>(zeros(), W::template codes<B, kFirst>(s),
                                              codes_at(x + int8_place(B, 16 * kFirst)));
        if constexpr (kFirst != kLast) {
            sum = D::template dot<kMax>(sum, W::template codes<B, kLast>(s), codes_at(x + int8_place(B, 16 * kLast)));
        }
        parts[B] = sum;
    });
    return sums_of_cells(parts);
}

// The same of codes of one or of two bytes. 128 times a sum of bytes is exact, so that the whole is rounded once.
template <class W, class X, class D, int kFirst, int kLast, class S>
[[gnu::always_inline]] inline Eight sums_of_codes(const S& s, const char* x, const char* low) {
    Eight sums = sums_of_bytes<W, D, kFirst, kLast>(s, x + kCodesAt);
    if constexpr (X::kTwoBytes) {
        sums = mul(sums, kHighUnit);
        if (low != nullptr) sums = add(sums, sums_of_bytes<W, D, kFirst, kLast>(s, low));
    }
    return sums;
}

// 256 elements of one row against one token: its Super, and its low bytes where there are any.
template <class W, class X, class D, class S>
[[gnu::always_inline]] inline Eight accumulate(const S& s, const char* x, const char* low, Eight lanes) {
    const Eight x_scale = eight_at(x + kScaleAt);
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        const Eight first = sums_of_codes<W, X, D, 0, 0>(s, x, low);
        const Eight second = sums_of_codes<W, X, D, 1, 1>(s, x, low);
        lanes = fma(fma(second, g.scale_high, mul(first, g.scale_low)), mul(x_scale, g.d), lanes);
        lanes = fma(g.min_low, eight_at(x + kSumLowAt), lanes);
        return fma(g.min_high, eight_at(x + kSumHighAt), lanes);
    } else {
        Eight scale, min;
        W::scales(s, scale, min);
        lanes = fma(sums_of_codes<W, X, D, 0, 1>(s, x, low), mul(scale, x_scale), lanes);
        return W::kSigned ? lanes : fma(min, eight_at(x + kSumAt), lanes);
    }
}

// How far ahead of the block in work the row's bytes are asked for: as for AVX2, where it was measured.
constexpr size_t kPrefetchBytes = 2048;

template <class W, class X, class D>
float dot_row(const typename W::Block* row, size_t k, const char* x) {
    using Block = typename W::Block;
    Eight lanes = all(0.0f);
    const size_t supers = k / kSuperElements;
    const size_t left = k % kSuperElements / kCellElements;
    const size_t all_supers = supers + (left != 0 ? 1 : 0);
    const char* const lows = x + low_at(all_supers);
    const char* const fine = x + fine_at(all_supers);
    const auto low_of = [&](size_t i) { return X::kTwoBytes && fine[i] != 0 ? lows + i * kSuperElements : nullptr; };
    for (size_t i = 0; i < supers; ++i) {
        const char* ahead = reinterpret_cast<const char*>(row) + kPrefetchBytes;
        for (size_t line = 0; line < sizeof(Block) * W::kBlocks; line += 64) __builtin_prefetch(ahead + line);
        lanes = accumulate<W, X, D>(Blocks<Block>{row}, x, low_of(i), lanes);
        row += W::kBlocks;
        x += sizeof(Super);
    }
    if (left != 0) lanes = accumulate<W, X, D>(LastBlocks<Block>(row, left), x, low_of(supers), lanes);
    return sum_of_lanes(lanes);
}

constexpr size_t kTileRows = 8;

// 1024 columns unpacked at a time: 8 KiB of codes and up to 5 KiB of scales, which leaves room in a first-level cache
// of 32 KiB for the activations of four tokens (6 KiB).
constexpr size_t kTileSupers = 4;

// Tokens whose lanes (256 bytes each) are kept while the tile walks along its rows.
constexpr size_t kTokenBlock = 64;

// An Eight is the same thing of eight rows.
struct RowTile {
    int8x16_t codes[kTileSupers][kCellsPerSuper][2][8];  // of a half cell, see arrange()
    Eight scale[kTileSupers][kCellsPerSuper];            // of cells; of whole blocks where there are groups
    Eight min[kTileSupers][2][kCellsPerSuper];           // [0]: of cells, or of their low halves; [1]: of high halves
    Eight group[kTileSupers][2][kCellsPerSuper];         // scales of groups
};

// Four vectors as the columns of a matrix into its rows.
[[gnu::always_inline]] inline void transpose(float32x4_t& v0, float32x4_t& v1, float32x4_t& v2, float32x4_t& v3) {
    const float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(v0, v1));
    const float64x2_t odd01 = vreinterpretq_f64_f32(vtrn2q_f32(v0, v1));
    const float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(v2, v3));
    const float64x2_t odd23 = vreinterpretq_f64_f32(vtrn2q_f32(v2, v3));
    v0 = vreinterpretq_f32_f64(vtrn1q_f64(even01, even23));
    v1 = vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23));
    v2 = vreinterpretq_f32_f64(vtrn2q_f64(even01, even23));
    v3 = vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23));
}

// Eight entries of each row into eight rows of each entry.
[[gnu::always_inline]] inline void enter(const Eight (&rows)[kTileRows], Eight (&entries)[kCellsPerSuper]) {
    Eight v[8];
    for (size_t r = 0; r < 8; ++r) v[r] = rows[r];
    for (size_t r = 0; r < 8; r += 4) {
        transpose(v[r].low, v[r + 1].low, v[r + 2].low, v[r + 3].low);
        transpose(v[r].high, v[r + 1].high, v[r + 2].high, v[r + 3].high);
    }
    for (size_t i = 0; i < 4; ++i) {
        entries[i] = {v[i].low, v[i + 4].low};
        entries[i + 4] = {v[i].high, v[i + 4].high};
    }
}

// What eight rows have besides codes, on its way into a tile.
struct Unpacked {
    Eight scale[kTileRows];
    Eight min[2][kTileRows];
    Eight group[2][kTileRows];
};

template <class W, class S>
[[gnu::always_inline]] inline void unpack_row(const S& s, size_t r, int8x16_t (&codes)[kCellsPerSuper][2][8],
                                              Unpacked& out) {
    for_each_cell([&]<int B>() __attribute__((always_inline)) {
        codes[B][0][r] = W::template codes<B, 0>(s);
        codes[B][1][r] = W::template codes<B, 1>(s);
    });
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        out.scale[r] = all(g.d);
        out.min[0][r] = g.min_low;
        out.min[1][r] = g.min_high;
        out.group[0][r] = g.scale_low;
        out.group[1][r] = g.scale_high;
    } else {
        W::scales(s, out.scale[r], out.min[0][r]);
    }
}

// `supers` stretches of eight rows, from number `super` on, as a tile.
template <class W, class D>
void fill_tile(const typename W::Block* const (&row)[kTileRows], size_t k, size_t super, size_t supers, RowTile& tile) {
    using Block = typename W::Block;
    Unpacked unpacked;
    for (size_t i = 0; i < supers; ++i) {
        const size_t first = (super + i) * W::kBlocks;
        const size_t left = W::kBlocks == 1 ? kCellsPerSuper : k / kCellElements - first;
        for (size_t r = 0; r < kTileRows; ++r) {
            if (left >= kCellsPerSuper) {
                unpack_row<W>(Blocks<Block>{row[r] + first}, r, tile.codes[i], unpacked);
            } else {
                unpack_row<W>(LastBlocks<Block>(row[r] + first, left), r, tile.codes[i], unpacked);
            }
        }
        for (auto& cell : tile.codes[i]) {
            D::arrange(cell[0]);
            D::arrange(cell[1]);
        }
        enter(unpacked.scale, tile.scale[i]);
        for (size_t half = 0; half < (W::kGroups ? 2 : 1); ++half) enter(unpacked.min[half], tile.min[i][half]);
        for (size_t half = 0; half < (W::kGroups ? 2 : 0); ++half) enter(unpacked.group[half], tile.group[i][half]);
    }
}

// What the loop over a tile knows of the type in it, so that types that look alike there share one. For the loop a code
// is as large as the largest of its kind: 63 times 127, four of them, fit an int16.
template <bool kIsSigned, bool kHasGroups>
struct TileCodes {
    static constexpr bool kSigned = kIsSigned, kGroups = kHasGroups;
    static constexpr int kMaxCode = kIsSigned ? 128 : 63;
};

// The bytes of T tokens for the 256 columns of a stretch, and the cells of which one of the tokens' is fine.
template <size_t T>
struct Tokens {
    const char* x[T];
    const char* low[T];
    unsigned fine;
};

// The sums of halves first_half to last_half of cell b of eight rows against T tokens.
template <class C, class X, class D, size_t T>
[[gnu::always_inline]] inline void sum_halves(const RowTile& tile, size_t super, size_t b, size_t first_half,
                                              size_t last_half, const Tokens<T>& tokens,
                                              typename D::template Sums<T>& sums) {
    constexpr int kMax = C::kMaxCode * kMaxByte;
    const auto& codes = tile.codes[super][b];
    sums.clear();
    for (size_t half = first_half; half <= last_half; ++half) {
        sums.template add<kMax>(codes[half], tokens.x, kCodesAt + int8_place(b, 16 * half));
    }
    if constexpr (X::kTwoBytes) {
        sums.times_high_unit();
        if ((tokens.fine >> b & 1) == 0) return;
        for (size_t half = first_half; half <= last_half; ++half) {
            sums.template add<kMax>(codes[half], tokens.low, int8_place(b, 16 * half));
        }
    }
}

// Cells `b` of eight rows against T tokens: float sums, groups' scales included.
template <class C, class X, class D, size_t T>
[[gnu::always_inline]] inline void tile_cell(const RowTile& tile, size_t super, size_t b, const Tokens<T>& tokens,
                                             Eight (&out)[T]) {
    typename D::template Sums<T> sums;
    if constexpr (C::kGroups) {
        sum_halves<C, X, D, T>(tile, super, b, 0, 0, tokens, sums);
        for (size_t t = 0; t < T; ++t) out[t] = mul(sums.floats(t), tile.group[super][0][b]);
        sum_halves<C, X, D, T>(tile, super, b, 1, 1, tokens, sums);
        for (size_t t = 0; t < T; ++t) out[t] = fma(sums.floats(t), tile.group[super][1][b], out[t]);
    } else {
        sum_halves<C, X, D, T>(tile, super, b, 0, 1, tokens, sums);
        for (size_t t = 0; t < T; ++t) out[t] = sums.floats(t);
    }
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
};

using Lanes = Eight[kCellsPerSuper];  // each of eight rows

// `supers` stretches of the tile against T tokens. Cell by cell, so that lanes stay in registers from one stretch to
// the next.
template <class C, class X, class D, size_t T>
void run_tile(const RowTile& tile, size_t supers, const Chunk& chunk, Lanes* lanes) {
    Tokens<T> tokens[kTileSupers];
    for (size_t super = 0; super < supers; ++super) {
        tokens[super].fine = 0;
        for (size_t t = 0; t < T; ++t) {
            tokens[super].x[t] = chunk.x + t * chunk.stride + super * sizeof(Super);
            tokens[super].low[t] = chunk.low + t * chunk.stride + super * kSuperElements;
            if (X::kTwoBytes) tokens[super].fine |= static_cast<uint8_t>(chunk.fine[t * chunk.stride + super]);
        }
    }
    for (size_t b = 0; b < kCellsPerSuper; ++b) {
        Eight lane[T];
        for (size_t t = 0; t < T; ++t) lane[t] = lanes[t][b];
        for (size_t super = 0; super < supers; ++super) {
            Eight sum[T];
            tile_cell<C, X, D, T>(tile, super, b, tokens[super], sum);
            for (size_t t = 0; t < T; ++t) {
                const char* entry = tokens[super].x[t] + b * sizeof(float);
                Eight v = fma(sum[t], mul(tile.scale[super][b], float_at(entry + kScaleAt)), lane[t]);
                if constexpr (C::kGroups) {
                    v = fma(tile.min[super][0][b], float_at(entry + kSumLowAt), v);
                    v = fma(tile.min[super][1][b], float_at(entry + kSumHighAt), v);
                } else if constexpr (!C::kSigned) {
                    v = fma(tile.min[super][0][b], float_at(entry + kSumAt), v);
                }
                lane[t] = v;
            }
        }
        for (size_t t = 0; t < T; ++t) lanes[t][b] = lane[t];
    }
}

// sum_of_lanes() for eight rows at once.
[[gnu::always_inline]] inline Eight sums_of_lanes(const Lanes& lanes) {
    Eight four[4];
    for (size_t b = 0; b < 4; ++b) four[b] = add(lanes[b], lanes[b + 4]);
    return add(add(four[0], four[2]), add(four[1], four[3]));
}

// Up to eight rows, up to kTokenBlock tokens.
template <class W, class X, class D>
void multiply_tile(const char* w, size_t w_row_bytes, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                   size_t tokens, float* y, size_t y_stride) {
    using Block = typename W::Block;
    using Codes = TileCodes<W::kSigned, W::kGroups>;
    const Block* row[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) {  // rows that are not there repeat the last, and are not stored
        row[r] = reinterpret_cast<const Block*>(w + (r < rows ? r : rows - 1) * w_row_bytes);
    }
    RowTile tile;
    Lanes lanes[kTokenBlock];
    for (size_t t = 0; t < tokens; ++t) {
        for (Eight& lane : lanes[t]) lane = all(0.0f);
    }

    const size_t all_supers = (k + kSuperElements - 1) / kSuperElements;
    for (size_t super = 0; super < all_supers; super += kTileSupers) {
        const size_t supers = all_supers - super < kTileSupers ? all_supers - super : kTileSupers;
        fill_tile<W, D>(row, k, super, supers, tile);
        const Chunk chunk{x + super * sizeof(Super), x + low_at(all_supers) + super * kSuperElements,
                          x + fine_at(all_supers) + super, x_stride_bytes};
        size_t t = 0;
        for (; t + 4 <= tokens; t += 4) {
            run_tile<Codes, X, D, 4>(tile, supers, chunk.from_token(t), lanes + t);
        }
        for (; t < tokens; ++t) {
            run_tile<Codes, X, D, 1>(tile, supers, chunk.from_token(t), lanes + t);
        }
    }
    for (size_t t = 0; t < tokens; ++t) {
        float sums[kTileRows];
        store(sums, sums_of_lanes(lanes[t]));
        std::memcpy(y + t * y_stride, sums, rows * sizeof(float));
    }
}

// From here on eight rows side by side are taken, as for AVX2, where the crossing was measured.
constexpr size_t kTileTokens = 4;

template <class W, class X, class D>
void multiply(const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes, size_t tokens, float* y,
              size_t y_stride) {
    using Block = typename W::Block;
    const size_t w_row_bytes = k / (W::kBlocks == 1 ? kSuperElements : kCellElements) * sizeof(Block);
    const char* first_row = static_cast<const char*>(w);
    if (tokens < kTileTokens) {
        for (size_t r = 0; r < rows; ++r) {
            const auto* row = reinterpret_cast<const Block*>(first_row + r * w_row_bytes);
            for (size_t t = 0; t < tokens; ++t) y[t * y_stride + r] = dot_row<W, X, D>(row, k, x + t * x_stride_bytes);
        }
        return;
    }
    for (size_t t = 0; t < tokens; t += kTokenBlock) {
        const size_t block = tokens - t < kTokenBlock ? tokens - t : kTokenBlock;
        for (size_t r = 0; r < rows; r += kTileRows) {
            multiply_tile<W, X, D>(first_row + r * w_row_bytes, w_row_bytes,
                                   rows - r < kTileRows ? rows - r : kTileRows, k, x + t * x_stride_bytes,
                                   x_stride_bytes, block, y + t * y_stride + r, y_stride);
        }
    }
}

template <class D>
void multiply_any(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                  size_t tokens, float* y, size_t y_stride) {
    with_blocks_of(type, [&]<class W>() {
        if (a == Activation::kInt8) {
            multiply<W, Int8, D>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        } else {
            multiply<W, Fine, D>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        }
    });
}

// Eight rows of bytes so that a vector holds four columns of four rows: v[4 * q + step].
[[maybe_unused, gnu::always_inline]] inline void arrange_fours(int8x16_t (&v)[8]) {
    float32x4_t f[8];
    for (size_t i = 0; i < 8; ++i) f[i] = vreinterpretq_f32_s8(v[i]);
    transpose(f[0], f[1], f[2], f[3]);
    transpose(f[4], f[5], f[6], f[7]);
    for (size_t i = 0; i < 8; ++i) v[i] = vreinterpretq_s8_f32(f[i]);
}

// Sums of rows 4 * q and on, in vectors of four rows: what both kinds that multiply four columns at a time keep.
template <size_t T>
struct SumsOfRows {
    int32x4_t rows[T][2];

    [[gnu::always_inline]] void clear() {
        for (auto& r : rows) r[0] = r[1] = zeros();
    }
    [[gnu::always_inline]] void times_high_unit() {
        for (auto& r : rows) {
            r[0] = vmulq_n_s32(r[0], kHighUnit);
            r[1] = vmulq_n_s32(r[1], kHighUnit);
        }
    }
    [[gnu::always_inline]] Eight floats(size_t t) const { return floats_of(rows[t][0], rows[t][1]); }
};

}  // namespace
}  // namespace weir::kernels::neon
