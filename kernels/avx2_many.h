// Products for many tokens: rows are unpacked into tiles, and each tile meets a block of tokens. Internal to kernels/.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/avx2_matmul_codes.h"
#include "kernels/avx2_wide.h"
#include "kernels/kernels.h"
#include "kernels/types.h"

namespace weir::kernels::avx2 {
namespace {

// 16-bit codes are for where bytes are widened at each step.
template <class R, class I, class X>
constexpr bool kIsWide = X::kTwoBytes && I::template kWidens<R> && R::kSigned && !R::kGroups;

// `supers` stretches of the rows, from number `super` on, as a tile.
template <class R, class I, class X, class Tile>
void fill_tile(const Source& w, const char* const (&row)[kTileRows], size_t super, size_t supers, Tile& tile) {
    Unpacked unpacked[kVectorRows];
    for (size_t i = 0; i < supers; ++i) {
        const size_t cells = w.cells_from(super + i);
        for (size_t v = 0; v < kVectors; ++v) {
            for (size_t r = 0; r < kVectorRows; ++r) {
                w.unpack(row[v * kVectorRows + r] + (super + i) * w.super_bytes, cells, unpacked[r]);
            }
            if constexpr (kIsWide<R, I, X>) enter_wide<true>(unpacked, tile, i, v);
            else enter<R::kGroups, I::template kFlips<R>>(unpacked, tile, i, v);
        }
        if constexpr (X::kTwoBytes && !kIsWide<R, I, X>) take_high_unit(tile, i);
    }
}

// Up to kTileRows rows from `first` on, up to kTokenBlock tokens.
template <class R, class I, class X>
void multiply_tile(const Source& w, size_t first, size_t rows, const char* x, size_t x_stride_bytes, size_t tokens, float* y,
                   size_t y_stride) {
    const char* row[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) row[r] = w.row(first + (r < rows ? r : rows - 1));  // what is not there repeats the last
    constexpr bool kWide = kIsWide<R, I, X>;
    constexpr size_t kSupers = kWide ? kWideSupers : kTileSupers;
    std::conditional_t<kWide, WideTile, RowTile> tile;
    alignas(64) Lanes lanes[kTokenBlock];
    std::memset(lanes, 0, tokens * sizeof(Lanes));

    const size_t all_supers = w.supers();
    for (size_t super = 0; super < all_supers; super += kSupers) {
        const size_t supers = all_supers - super < kSupers ? all_supers - super : kSupers;
        const size_t next_bytes = kSupers * w.super_bytes;
        const size_t ahead = super + supers < all_supers ? next_bytes : kTileRows * w.row_bytes - super * w.super_bytes;
        fill_tile<R, I, X>(w, row, super, supers, tile);
        const Chunk chunk = chunk_at(x, x_stride_bytes, all_supers, super);
        const auto run = [&]<size_t T>(size_t at) __attribute__((always_inline)) {
            if constexpr (kWide) run_wide<true, T>(tile, supers, chunk.from_token(at), lanes + at);
            else run_tile<R, I, X, T>(tile, supers, chunk.from_token(at), lanes + at);
        };
        size_t t = 0;
        const size_t strides = tokens / I::kTokens;
        for (; t + I::kTokens <= tokens; t += I::kTokens) {
            // While the tokens pass, the weights of the next chunk are asked for, some rows at a time: sixteen are too many
            // short streams for the hardware to foresee, and too many lines to ask for at once.
            const size_t stride = t / I::kTokens;
            for (size_t r = stride * kTileRows / strides; r < (stride + 1) * kTileRows / strides; ++r) {
                const char* const next = row[r] + super * w.super_bytes + ahead;
                for (size_t line = 0; line < next_bytes; line += 64) _mm_prefetch(next + line, _MM_HINT_T1);
            }
            run.template operator()<I::kTokens>(t);
        }
        if constexpr (I::kTokens > 4) {
            for (; t + 4 <= tokens; t += 4) run.template operator()<4>(t);
        }
        for (; t < tokens; ++t) run.template operator()<1>(t);
    }
    for (size_t t = 0; t < tokens; ++t) store_sums(lanes[t], rows, y + t * y_stride);
}

// From here on rows side by side are faster than row by row. Bench: matmul/*/2 to 16.
constexpr size_t kTileTokens = 8;

template <class R, class I, class X>
void multiply_many(const Source& w, size_t rows, const char* x, size_t x_stride_bytes, size_t tokens, float* y,
                   size_t y_stride) {
    for (size_t t = 0; t < tokens; t += kTokenBlock) {
        const size_t block = tokens - t < kTokenBlock ? tokens - t : kTokenBlock;
        for (size_t r = 0; r < rows; r += kTileRows) {
            multiply_tile<R, I, X>(w, r, rows - r < kTileRows ? rows - r : kTileRows, x + t * x_stride_bytes, x_stride_bytes,
                                   block, y + t * y_stride + r, y_stride);
        }
    }
}

// What few tokens are computed by: the types that most files are made of unpack in registers.
template <class W, class I, class X>
constexpr Dots dots_of() {
    if constexpr (I::template kOwnPath<W>) {
        return {dot<W, I, X, 1>, dot<W, I, X, 2>, dot<W, I, X, 4>};
    } else {
        using R = ReadyOf<W>;
        return {dot_unpacked<R, I, X, 1>, dot_unpacked<R, I, X, 2>, dot_unpacked<R, I, X, 4>};
    }
}

template <class I, class X>
void multiply_in(Type type, const Source& w, size_t rows, const char* x, size_t x_stride_bytes, size_t tokens, float* y,
                 size_t y_stride) {
    with_blocks_of(type, [&]<class W>() {
        using R = ReadyOf<W>;
        if (tokens >= kTileTokens) return multiply_many<R, I, X>(w, rows, x, x_stride_bytes, tokens, y, y_stride);
        const Tokens few{x, x_stride_bytes, w.supers()};
        multiply_few(dots_of<W, I, X>(), w, rows, few, tokens, y, y_stride);
    });
}

// matmul() for weights in blocks and integer activations.
template <class I>
void multiply_any(Type type, Activation a, const void* weights, size_t rows, size_t k, const char* x,
                  size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    const Source w{static_cast<const char*>(weights), row_bytes(type, k), row_bytes(type, kSuperElements),
                   unpacker(type), k};
    if (has_low_bytes(a)) return multiply_in<I, Fine>(type, w, rows, x, x_stride_bytes, tokens, y, y_stride);
    multiply_in<I, Int8>(type, w, rows, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace
}  // namespace weir::kernels::avx2
