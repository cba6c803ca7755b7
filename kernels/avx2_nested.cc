// Products with nested blocks straight from their planes. For few tokens the high half of a code and the low one are multiplied
// apart, as nibbles, whose sums of sixteen products fit an int16: no code of 8 bits ever meets an activation of 8 bits in one
// 16-bit product, so nothing saturates. For many, whole codes are multiplied as 16 bits, into 32.
//
// The value of an output is that of kernels/avx2_matmul_codes.h, with the integer sum of a cell being
// unit * sum(high) + sum(low): exact, however it is made.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/avx2.h"
#include "kernels/avx2_maddubs.h"
#include "kernels/avx2_short.h"
#include "kernels/avx2_wide.h"

namespace weir::kernels::avx2 {
namespace {

// For one token to four.
constexpr size_t kDotTokens = 4;

// The tokens' activations for the short super-block.
struct ShortTokens {
    ShortInput high[kDotTokens], low[kDotTokens];
    bool fine[kDotTokens];  // low is there

    template <class X>
    void take(size_t t, const Tokens& tokens, size_t super) {
        const char* const low_bytes = tokens.low<X>(t, super);
        high[t].take(tokens.super(t, super) + kCodesAt);
        fine[t] = low_bytes != nullptr;
        if (fine[t]) low[t].take(low_bytes);
    }
};

// All rows against a few tokens. `last`: activations of the tokens' short super-blocks, where rows have one.
using DotRows = void (*)(const Nested& w, size_t rows, const Tokens& tokens, const ShortTokens* last, float* y,
                         size_t y_stride);

struct RowDots {
    DotRows of[kDotTokens];  // [tokens - 1]
};

// What a level is to code that is the same for several.
struct AtLevel {
    void (*unpack)(const Nested& w, size_t r, size_t i, Unpacked& high, Unpacked& low);
    RowDots dots;
    Refinement f;
};

// ---- one row at a time

template <Level L>
[[gnu::always_inline]] inline __m256 add_products(__m256 sums, __m256 scale, __m256 min, const char* x, __m256 lanes) {
    lanes = _mm256_fmadd_ps(sums, _mm256_mul_ps(scale, floats_at(x + kScaleAt)), lanes);
    return _mm256_fmadd_ps(min, floats_at(x + kSumAt), lanes);
}

// sums_of(bytes): the integer sums with a token's bytes; of those in two, the low ones are worth it where a cell is fine.
template <class X, class SumsOf, class Bytes>
[[gnu::always_inline]] inline __m256 sums_in(const SumsOf& sums_of, const Bytes* high, const Bytes* low) {
    __m256 sums = _mm256_cvtepi32_ps(sums_of(high));
    if (X::kTwoBytes) sums = _mm256_mul_ps(sums, _mm256_set1_ps(kHighUnit));
    if (X::kTwoBytes && low != nullptr) sums = _mm256_add_ps(sums, _mm256_cvtepi32_ps(sums_of(low)));
    return sums;
}

// Sums of the eight cells of a super-block with the bytes at x.
template <Level L, class High, class Low>
[[gnu::always_inline]] inline __m256i sums_with(const High& high, const Low& low, const Refinement& f, const char* x) {
    __m256i sum = Maddubs::cells<decltype(Halves<L>::codes_of(high))>(high, x);
    if constexpr (Halves<L>::kLow) {
        sum = _mm256_mullo_epi32(sum, _mm256_set1_epi32(f.unit));
        sum = _mm256_add_epi32(sum, Maddubs::cells<decltype(Halves<L>::codes_of(low))>(low, x));
    }
    return sum;
}

// Of each plane, so far ahead: a row's bytes come from three to six streams, which the hardware follows within a page.
constexpr size_t kAhead = 512;

template <Level L>
[[gnu::always_inline]] inline void ask_ahead(const Row& at) {
    _mm_prefetch(at.p1 + 2 * kAhead, _MM_HINT_T0);
    if constexpr (L >= Level::k3) _mm_prefetch(at.p2 + kAhead, _MM_HINT_T0);
    if constexpr (L >= Level::k4) _mm_prefetch(at.p3 + kAhead, _MM_HINT_T0);
    if constexpr (L >= Level::k6) _mm_prefetch(at.p4a + 2 * kAhead, _MM_HINT_T0);
    if constexpr (L >= Level::k8) _mm_prefetch(at.p4b + 2 * kAhead, _MM_HINT_T0);
    _mm_prefetch(at.scales + kAhead, _MM_HINT_T0);
}

template <Level L, class X, size_t T>
void dot_rows(const Nested& w, size_t rows, const Tokens& tokens, const ShortTokens* last, float* y, size_t y_stride) {
    const Refinement f = refinement_of<L>(w.rows.fine_steps);
    const size_t whole = w.k / kSuperElements, groups = w.k % kSuperElements / kCellElements;
    for (size_t r = 0; r < rows; ++r) {
        const Row row = row_at<L>(w, r);
        __m256 lanes[T];
        for (__m256& lane : lanes) lane = _mm256_setzero_ps();
        for (size_t i = 0; i < whole; ++i) {
            const Row at = super_of<L>(row, i);
            ask_ahead<L>(at);
            const auto high = Halves<L>::high(at);
            const auto low = [&] {
                if constexpr (Halves<L>::kLow) return Halves<L>::low(at);
                else return 0;
            }();
            const auto sums_of = [&](const char* bytes) __attribute__((always_inline)) {
                return sums_with<L>(high, low, f, bytes);
            };
            // The codes of one half fit the registers from the high bytes to the low ones if scales come after; those of two
            // do not fit, and scales first are better. Before the codes they made both wait for spills: 256 weights from
            // cache, fine, one token: 12.1 ns (level 4) and 18.5 (8), so 10.9 and 17.0.
            __m256 sums[T], scale, min;
            if constexpr (Halves<L>::kLow) scales_of<L>(at, f, scale, min);
#pragma GCC unroll 4
            for (size_t t = 0; t < T; ++t) sums[t] = sums_in<X>(sums_of, tokens.super(t, i) + kCodesAt, tokens.low<X>(t, i));
            if constexpr (!Halves<L>::kLow) scales_of<L>(at, f, scale, min);
#pragma GCC unroll 4
            for (size_t t = 0; t < T; ++t) lanes[t] = add_products<L>(sums[t], scale, min, tokens.super(t, i), lanes[t]);
        }
        if (groups != 0) {
            const Row at = super_of<L>(row, whole);
            ask_ahead<L>(at);
            __m256 scale, min;
            short_scales<L>(at.scales, groups, f, scale, min);
            const ShortCodes<L> codes(at, groups);
            const auto sums_of = [&](const ShortInput* x) __attribute__((always_inline)) {
                return codes.sums_with(*x, f);
            };
#pragma GCC unroll 4
            for (size_t t = 0; t < T; ++t) {
                const __m256 sums = sums_in<X>(sums_of, &last->high[t], last->fine[t] ? &last->low[t] : nullptr);
                lanes[t] = add_products<L>(sums, scale, min, tokens.super(t, whole), lanes[t]);
            }
        }
        for (size_t t = 0; t < T; ++t) y[t * y_stride + r] = sum_of_lanes(lanes[t]);
    }
}

// Few tokens, as many at a time as dots has.
template <class X>
void multiply_few(const RowDots& dots, const Nested& w, size_t rows, const char* x, size_t x_stride_bytes, size_t tokens,
                  float* y, size_t y_stride) {
    const size_t whole = w.k / kSuperElements;
    for (size_t t = 0; t < tokens;) {
        const size_t left = tokens - t;  // five as three and two
        const size_t step = left <= kDotTokens ? left : left < 2 * kDotTokens ? (left + 1) / 2 : kDotTokens;
        const Tokens some{x + t * x_stride_bytes, x_stride_bytes, w.supers()};
        ShortTokens last;
        if (whole < w.supers()) {
            for (size_t i = 0; i < step; ++i) last.take<X>(i, some, whole);
        }
        dots.of[step - 1](w, rows, some, &last, y + t * y_stride, y_stride);
        t += step;
    }
}

// ---- sixteen rows side by side

using TileOfNibbles = Ready<15, false, false>;
// A tile of bytes for codes of one half, of 16 bits for whole codes of two.
template <bool kLow>
using TileOf = std::conditional_t<kLow, WideTile, RowTile>;
template <bool kLow>
constexpr size_t kSupersOf = kLow ? kWideSupers : kTileSupers;

template <bool kLow>
void fill_nested(const Nested& w, const AtLevel& level, const size_t (&row)[kTileRows], size_t super, size_t supers,
                 TileOf<kLow>& tile) {
    Unpacked unpacked[kVectorRows], low = {};
    const __m256i unit = _mm256_set1_epi16(static_cast<int16_t>(level.f.unit));  // 16 times 15 at most: none crosses its byte
    for (size_t i = 0; i < supers; ++i) {
        for (size_t v = 0; v < kVectors; ++v) {
            for (size_t r = 0; r < kVectorRows; ++r) {
                level.unpack(w, row[v * kVectorRows + r], super + i, unpacked[r], low);
                for (size_t c = 0; kLow && c < kCellsPerSuper; ++c) {
                    __m256i& code = unpacked[r].code[c];
                    code = _mm256_add_epi8(_mm256_mullo_epi16(code, unit), low.code[c]);
                }
            }
            if constexpr (kLow) enter_wide<false>(unpacked, tile, i, v);
            else enter<false>(unpacked, tile, i, v);
        }
    }
}

// Up to kTileRows rows from `first` on, up to kTokenBlock tokens. kLow: codes have a low half.
template <bool kLow, class X>
void multiply_nested_tile(const Nested& w, const AtLevel& level, size_t first, size_t rows, const char* x,
                          size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    size_t row[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) row[r] = first + (r < rows ? r : rows - 1);
    TileOf<kLow> tile;
    alignas(64) Lanes lanes[kTokenBlock];
    std::memset(lanes, 0, tokens * sizeof(Lanes));
    const size_t all = w.supers();
    for (size_t super = 0; super < all; super += kSupersOf<kLow>) {
        const size_t supers = all - super < kSupersOf<kLow> ? all - super : kSupersOf<kLow>;
        fill_nested<kLow>(w, level, row, super, supers, tile);
        const Chunk chunk = chunk_at(x, x_stride_bytes, all, super);
        const auto run = [&]<size_t T>(size_t t) {
            if constexpr (kLow) run_wide<false, T>(tile, supers, chunk.from_token(t), lanes + t);
            else run_tile<TileOfNibbles, Maddubs, X, T>(tile, supers, chunk.from_token(t), lanes + t);
        };
        if constexpr (X::kTwoBytes && !kLow) {
            for (size_t i = 0; i < supers; ++i) take_high_unit(tile, i);
        }
        size_t t = 0;
        for (; t + 4 <= tokens; t += 4) run.template operator()<4>(t);
        for (; t < tokens; ++t) run.template operator()<1>(t);
    }
    for (size_t t = 0; t < tokens; ++t) store_sums(lanes[t], rows, y + t * y_stride);
}

// From so many tokens on they share a tile, whose codes are put together once. Bench, nested/640/*/fine, tile to rows one by
// one: 8 tokens 79 to 69 ms (level 8) and 110 to 61 (4), 16 tokens 104 to 145 and 166 to 171.
constexpr size_t kSharedTokens = 12;

template <bool kLow, class X>
void multiply_codes(const Nested& w, const AtLevel& level, size_t rows, const char* x, size_t x_stride_bytes, size_t tokens,
                    float* y, size_t y_stride) {
    constexpr bool kTiles = X::kTwoBytes || !kLow;  // 16-bit codes meet whole codes of activations
    if (!kTiles || tokens < kSharedTokens) return multiply_few<X>(level.dots, w, rows, x, x_stride_bytes, tokens, y, y_stride);
    for (size_t t = 0; kTiles && t < tokens; t += kTokenBlock) {
        const size_t block = tokens - t < kTokenBlock ? tokens - t : kTokenBlock;
        for (size_t r = 0; r < rows; r += kTileRows) {
            multiply_nested_tile<kLow, X>(w, level, r, rows - r < kTileRows ? rows - r : kTileRows, x + t * x_stride_bytes,
                                          x_stride_bytes, block, y + t * y_stride + r, y_stride);
        }
    }
}

// ---- floats

// A super-block's weights: as many as it has. The same bits as the scalar kernels'.
template <bool kLow>
void expand(const Nested& w, const AtLevel& level, size_t r, size_t i, float* to) {
    Unpacked halves[2] = {};
    level.unpack(w, r, i, halves[0], halves[1]);
    alignas(32) float scale[8], min[8];
    _mm256_store_ps(scale, halves[0].scale);
    _mm256_store_ps(min, halves[0].min);
    const auto eight = [&](size_t half, size_t e) __attribute__((always_inline)) {  // the codes are in the order of int8_place()
        const char* const codes = reinterpret_cast<const char*>(halves[half].code) + int8_place(e / 32, e % 32);
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    };
    const __m256i unit = _mm256_set1_epi32(level.f.unit);
    for (size_t e = 0; e < kCellElements * w.cells_from(i); e += 8) {
        __m256i code = eight(0, e);
        if (kLow) code = _mm256_add_epi32(_mm256_mullo_epi32(code, unit), eight(1, e));
        const __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(scale[e / 32]), _mm256_cvtepi32_ps(code));
        _mm256_storeu_ps(to + e, _mm256_add_ps(scaled, _mm256_set1_ps(min[e / 32])));
    }
}

// Lane j of an output takes elements j, j + 8, ... in order by fused multiply-add, as in avx2_matmul_floats.cc.
constexpr size_t kFloatTokens = 16;  // that share one expansion

template <bool kLow>
void multiply_floats(const Nested& w, const AtLevel& level, size_t rows, const char* x, size_t x_stride_bytes, size_t tokens,
                     float* y, size_t y_stride) {
    for (size_t r = 0; r < rows; ++r) {
        for (size_t first = 0; first < tokens; first += kFloatTokens) {
            const size_t count = tokens - first < kFloatTokens ? tokens - first : kFloatTokens;
            __m256 lanes[kFloatTokens];
            for (__m256& lane : lanes) lane = _mm256_setzero_ps();
            for (size_t i = 0; i < w.supers(); ++i) {
                alignas(32) float weights[kSuperElements];
                expand<kLow>(w, level, r, i, weights);
                for (size_t t = 0; t < count; ++t) {
                    const char* const values = x + (first + t) * x_stride_bytes + i * kSuperElements * sizeof(float);
                    __m256 lane = lanes[t];
                    for (size_t e = 0; e < kCellElements * w.cells_from(i); e += 8) {
                        lane = _mm256_fmadd_ps(_mm256_load_ps(weights + e), floats_at(values + e * sizeof(float)), lane);
                    }
                    lanes[t] = lane;
                }
            }
            for (size_t t = 0; t < count; ++t) y[(first + t) * y_stride + r] = sum_of_lanes(lanes[t]);
        }
    }
}

template <Level L, class X>
AtLevel at_level(uint8_t fine_steps) {
    return {unpack_level<L>, {{dot_rows<L, X, 1>, dot_rows<L, X, 2>, dot_rows<L, X, 3>, dot_rows<L, X, 4>}},
            refinement_of<L>(fine_steps)};
}

template <class X>
AtLevel at_level(Level level, uint8_t fine_steps) {
    switch (level) {
        case Level::k2: return at_level<Level::k2, X>(fine_steps);
        case Level::k3: return at_level<Level::k3, X>(fine_steps);
        case Level::k4: return at_level<Level::k4, X>(fine_steps);
        case Level::k6: return at_level<Level::k6, X>(fine_steps);
        case Level::k8: return at_level<Level::k8, X>(fine_steps);
    }
    __builtin_trap();
}

template <bool kLow>
void multiply(Level l, Activation a, const Nested& w, size_t rows, const char* x, size_t x_stride_bytes, size_t tokens,
              float* y, size_t y_stride) {
    const AtLevel level = has_low_bytes(a) ? at_level<Fine>(l, w.rows.fine_steps) : at_level<Int8>(l, w.rows.fine_steps);
    switch (a) {
        case Activation::kF32: return multiply_floats<kLow>(w, level, rows, x, x_stride_bytes, tokens, y, y_stride);
        case Activation::kInt8: return multiply_codes<kLow, Int8>(w, level, rows, x, x_stride_bytes, tokens, y, y_stride);
        case Activation::kFine:
        case Activation::kWhole: return multiply_codes<kLow, Fine>(w, level, rows, x, x_stride_bytes, tokens, y, y_stride);
    }
}

}  // namespace

void matmul_nested(Level level, Activation a, const NestedRows& rows_of, size_t rows, size_t k, const void* x,
                   size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    const Nested w(rows_of, k);
    const auto* const in = static_cast<const char*>(x);
    if (level >= Level::k6) return multiply<true>(level, a, w, rows, in, x_stride_bytes, tokens, y, y_stride);
    return multiply<false>(level, a, w, rows, in, x_stride_bytes, tokens, y, y_stride);
}

void dequantize_nested(Level level, const NestedRows& row, float* dst, size_t k) {
    const Nested w(row, k);
    const AtLevel at = at_level<Int8>(level, row.fine_steps);
    for (size_t i = 0; i < w.supers(); ++i) {
        float* const to = dst + i * kSuperElements;
        if (level >= Level::k6) expand<true>(w, at, 0, i, to);
        if (level < Level::k6) expand<false>(w, at, 0, i, to);
    }
}

}  // namespace weir::kernels::avx2
