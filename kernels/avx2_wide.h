// Sixteen weight rows side by side as 16-bit codes, for many tokens: beside avx2_tile.h, whose bytes serve the other types.
// Internal to kernels/.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_tile.h"

namespace weir::kernels::avx2 {
namespace {

// Sixteen rows as 16-bit codes, against the whole codes of activations: for types whose products of bytes do not add up in an
// int16. Each of those takes a multiplication more to widen, so 16 bits cost no more, and no cell costs more for being fine.
constexpr size_t kWideSupers = kTileSupers / 2;

struct alignas(64) WideTile {
    __m256i codes[kWideSupers][kCellsPerSuper][kCellElements / 2][kVectors];  // [pair of columns][rows]: two int16 of each row
    RowFloats scale[kWideSupers][kCellsPerSuper];
    RowFloats min[kWideSupers][kCellsPerSuper];  // of unsigned codes
};

// 256 columns of eight rows into a tile.
template <bool kSigned>
[[gnu::noinline]] void enter_wide(const Unpacked (&rows)[kVectorRows], WideTile& tile, size_t super, size_t vector) {
    __m256i entries[8];
    // Bytes of each row's four, in the upper halves of int16s.
    const __m256i first = _mm256_set1_epi32(static_cast<int>(0x01800080u));
    const __m256i second = _mm256_set1_epi32(static_cast<int>(0x03800280u));
    const __m256i four = _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const auto pair_of = [four](__m256i codes, __m256i which) __attribute__((always_inline)) {
        const __m256i upper = _mm256_shuffle_epi8(codes, _mm256_or_si256(four, which));
        return kSigned ? _mm256_srai_epi16(upper, 8) : _mm256_srli_epi16(upper, 8);
    };
    for (size_t v = 0; v < 8; ++v) {
        const size_t cell = v / 2, pair = v % 2 * 8;
        gather(rows, [v](const Unpacked& u) { return u.code[v]; }, entries);
        for (size_t i = 0; i < 4; ++i) {
            tile.codes[super][cell][pair + 2 * i][vector] = pair_of(entries[i], first);
            tile.codes[super][cell][pair + 2 * i + 1][vector] = pair_of(entries[i], second);
            tile.codes[super][cell + 4][pair + 2 * i][vector] = pair_of(entries[i + 4], first);
            tile.codes[super][cell + 4][pair + 2 * i + 1][vector] = pair_of(entries[i + 4], second);
        }
    }
    const auto enter_floats = [&](RowFloats (&to)[kCellsPerSuper], auto of) __attribute__((always_inline)) {
        gather(rows, [of](const Unpacked& u) { return _mm256_castps_si256(of(u)); }, entries);
        for (size_t b = 0; b < kCellsPerSuper; ++b) {
            _mm256_store_ps(to[b] + kVectorRows * vector, _mm256_castsi256_ps(entries[b]));
        }
    };
    enter_floats(tile.scale[super], [](const Unpacked& u) { return u.scale; });
    if (!kSigned) enter_floats(tile.min[super], [](const Unpacked& u) { return u.min; });
}

// `supers` stretches of the tile against T tokens.
template <bool kSigned, size_t T>
void run_wide(const WideTile& tile, size_t supers, const Chunk& chunk, Lanes* lanes) {
    for (size_t super = 0; super < supers; ++super) {
        const char* x[T];
        const char* whole[T];
        for (size_t t = 0; t < T; ++t) {
            x[t] = chunk.x + t * chunk.stride + super * sizeof(Super);
            whole[t] = chunk.whole + t * chunk.stride + super * kSuperElements * sizeof(int16_t);
        }
        for (size_t b = 0; b < kCellsPerSuper; ++b) {
            __m256i sum[T][kVectors];  // at most 32 * 255 * 16319
#pragma GCC unroll 16
            for (size_t pair = 0; pair < kCellElements / 2; ++pair) {
                __m256i w[kVectors];
                for (size_t v = 0; v < kVectors; ++v) w[v] = tile.codes[super][b][pair][v];
#pragma GCC unroll 8
                for (size_t t = 0; t < T; ++t) {
                    const __m256i a = _mm256_set1_epi32(i32_at(whole[t] + (b * kCellElements + 2 * pair) * sizeof(int16_t)));
                    for (size_t v = 0; v < kVectors; ++v) {
                        const __m256i products = _mm256_madd_epi16(w[v], a);
                        sum[t][v] = pair == 0 ? products : _mm256_add_epi32(sum[t][v], products);
                        keep_order(sum[t][v]);
                    }
                }
                keep_loads();
            }
            __m256 scale[kVectors], min[kVectors];
            for (size_t v = 0; v < kVectors; ++v) {
                scale[v] = _mm256_load_ps(tile.scale[super][b] + kVectorRows * v);
                if (!kSigned) min[v] = _mm256_load_ps(tile.min[super][b] + kVectorRows * v);
            }
            for (size_t t = 0; t < T; ++t) {
                const __m256 scale_x = _mm256_set1_ps(float_at(x[t] + kScaleAt, b));
                const __m256 sum_x = _mm256_set1_ps(float_at(x[t] + kSumAt, b));
                for (size_t v = 0; v < kVectors; ++v) {
                    float* const at = lanes[t][b] + kVectorRows * v;
                    const __m256 unit = _mm256_mul_ps(scale[v], scale_x);
                    __m256 lane = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t][v]), unit, _mm256_load_ps(at));
                    if (!kSigned) lane = _mm256_fmadd_ps(min[v], sum_x, lane);
                    _mm256_store_ps(at, lane);
                }
                keep_loads();
            }
        }
    }
}

}  // namespace
}  // namespace weir::kernels::avx2
