// Nested blocks (kernels/nested.h) straight from their planes.
//
// The bits of a few planes are put together for 256 weights at a time as vectors of nibbles: those of groups P, P + 2 in
// the halves of one byte, groups c and c + 4 in the lanes, as kernels/activation.h has the activations. The high half of a
// code and the low one are multiplied apart, as nibbles, whose sums of sixteen products fit an int16: no code of 8 bits ever
// meets an activation of 8 bits in one 16-bit product, so nothing saturates.
//
// The value of an output is that of kernels/avx2_matmul_codes.h, with the integer sum of a cell being
// sum(high) << shift + sum(low): exact, however it is made.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/avx2.h"
#include "kernels/avx2_tile.h"

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

template <Level L>
[[gnu::always_inline]] inline Row row_at(const NestedRows& w, size_t r, const RowBytes& bytes) {
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

// A short super-block in the form of a full one, with zeros for the groups that it does not have.
struct Whole {
    alignas(32) uint8_t one[2][kOneBit];
    alignas(32) uint8_t two[3][kTwoBits];
    ScaleBlock scales;

    static void spread_one(const uint8_t* from, size_t groups, uint8_t* to) {
        __m128i lanes[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
        for (size_t c = 0; c < groups; ++c) {
            const __m128i bits = _mm_set1_epi32(i32_at(from + 4 * c));
            const __m128i low = _mm_and_si128(_mm_srlv_epi32(bits, _mm_setr_epi32(0, 1, 2, 3)), _mm_set1_epi8(1));
            const __m128i high = _mm_and_si128(_mm_srlv_epi32(bits, _mm_setr_epi32(4, 5, 6, 7)), _mm_set1_epi8(1));
            const __m128i both = _mm_or_si128(low, _mm_add_epi8(high, high));
            lanes[c / 4] = _mm_or_si128(lanes[c / 4], _mm_sll_epi16(both, _mm_cvtsi32_si128(static_cast<int>(c % 4 * 2))));
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), two_lanes(lanes[0], lanes[1]));
    }

    static void spread_two(const uint8_t* from, size_t groups, uint8_t* to) {
        for (int h = 0; h < 2; ++h) {
            const __m128i places = _mm_setr_epi32(4 * h, 4 * h, 4 * h + 2, 4 * h + 2);
            __m128i lanes[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
            for (size_t c = 0; c < groups; ++c) {
                const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * c));
                const __m128i bits = _mm_srlv_epi32(_mm_unpacklo_epi64(eight, eight), places);
                const __m128i codes = _mm_and_si128(bits, _mm_set1_epi8(3));
                lanes[c / 4] = _mm_or_si128(lanes[c / 4], _mm_sll_epi16(codes, _mm_cvtsi32_si128(static_cast<int>(c % 4 * 2))));
            }
            _mm256_store_si256(reinterpret_cast<__m256i*>(to + 32 * h), two_lanes(lanes[0], lanes[1]));
        }
    }

    void spread_scales(const uint8_t* from, size_t groups) {
        unsigned scale[8] = {}, min[8] = {};
        for (size_t c = 0; c < groups; ++c) {
            const unsigned both = static_cast<unsigned>(u16_at(from + 4 + c * 12 / 8)) >> (c % 2 * 4);
            scale[c] = both & 63;
            min[c] = both >> 6 & 63;
        }
        std::memcpy(scales.d, from, 2);
        std::memcpy(scales.dmin, from + 2, 2);
        for (size_t c = 0; c < 4; ++c) {
            scales.scales[c] = static_cast<uint8_t>(scale[c] | scale[c + 4] >> 4 << 6);
            scales.scales[c + 4] = static_cast<uint8_t>(min[c] | min[c + 4] >> 4 << 6);
            scales.scales[c + 8] = static_cast<uint8_t>((scale[c + 4] & 15) | (min[c + 4] & 15) << 4);
        }
    }

    template <Level L>
    Row spread(const Row& from, size_t groups) {
        Row row{};
        spread_two(from.p1, groups, two[0]);
        row.p1 = two[0];
        if constexpr (L >= Level::k3) spread_one(from.p2, groups, one[0]), row.p2 = one[0];
        if constexpr (L >= Level::k4) spread_one(from.p3, groups, one[1]), row.p3 = one[1];
        if constexpr (L >= Level::k6) spread_two(from.p4a, groups, two[1]), row.p4a = two[1];
        if constexpr (L >= Level::k8) spread_two(from.p4b, groups, two[2]), row.p4b = two[2];
        spread_scales(from.scales, groups);
        row.scales = scales.d;
        return row;
    }
};

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

// Codes 4 * high + low.
[[gnu::always_inline]] inline Nibbles nibbles_of(const Pairs& high, const Pairs& low) {
    Nibbles n;
    for (size_t h = 0; h < 2; ++h) {
        n.even[h] = _mm256_or_si256(masked(_mm256_slli_epi16(high.v[h], 2), 0xcc), masked(low.v[h], 0x33));
        n.odd[h] = _mm256_or_si256(masked(high.v[h], 0xcc), masked(_mm256_srli_epi16(low.v[h], 2), 0x33));
    }
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
        n.even[h] = _mm256_or_si256(n.even[h], masked(_mm256_slli_epi16(high.v[h], 1), 0x66));
        n.odd[h] = _mm256_or_si256(n.odd[h], masked(_mm256_srli_epi16(high.v[h], 1), 0x66));
    }
    return n;
}

// Two planes of one bit as one of two: codes 2 * high + low.
[[gnu::always_inline]] inline Pairs pairs_of(__m256i high, __m256i low) {
    return {{_mm256_or_si256(masked(_mm256_slli_epi16(high, 1), 0xaa), masked(low, 0x55)),
             _mm256_or_si256(masked(high, 0xaa), masked(_mm256_srli_epi16(low, 1), 0x55))}};
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

// How the halves of a code stand to each other: code = (high << shift) + low, weight = scale * step * code + ...
struct Refinement {
    int shift;
    float step;
    float centre;
};

template <Level L>
[[gnu::always_inline]] inline Refinement refinement_of(uint8_t span_log2) {
    constexpr int kBits = L == Level::k8 ? 4 : 2;
    const int shift = kBits - span_log2;
    return {shift, 1.0f / static_cast<float>(1 << shift), L == Level::k8 ? 7.5f : 1.5f};
}

template <Level L>
[[gnu::always_inline]] inline void scales_of(const Row& row, const Refinement& f, __m256& scale, __m256& min) {
    k_scales(Blocks<ScaleBlock>{reinterpret_cast<const ScaleBlock*>(row.scales)}, scale, min);
    if constexpr (Halves<L>::kLow) {
        scale = _mm256_mul_ps(scale, _mm256_set1_ps(f.step));
        min = _mm256_sub_ps(min, _mm256_mul_ps(_mm256_set1_ps(f.centre), scale));
    }
}

// ---- one row at a time

// Sums of the eight cells of a super-block with the bytes at x.
template <Level L, class High, class Low>
[[gnu::always_inline]] inline __m256 sums_with(const High& high, const Low& low, const Refinement& f, const char* x) {
    __m256i sum = Bytes::cells<decltype(Halves<L>::codes_of(high))>(high, x);
    if constexpr (Halves<L>::kLow) {
        sum = _mm256_sll_epi32(sum, _mm_cvtsi32_si128(f.shift));
        sum = _mm256_add_epi32(sum, Bytes::cells<decltype(Halves<L>::codes_of(low))>(low, x));
    }
    return _mm256_cvtepi32_ps(sum);
}

template <Level L>
[[gnu::always_inline]] inline __m256 accumulate_nested(const Row& row, const Refinement& f, const char* x, bool two_bytes,
                                                       const char* low_bytes, __m256 lanes) {
    __m256 scale, min;
    scales_of<L>(row, f, scale, min);
    scale = _mm256_mul_ps(scale, floats_at(x + kScaleAt));
    const auto high = Halves<L>::high(row);
    const auto low = [&] {
        if constexpr (Halves<L>::kLow) return Halves<L>::low(row);
        else return 0;
    }();
    __m256 sums = sums_with<L>(high, low, f, x + kCodesAt);
    if (two_bytes) sums = _mm256_mul_ps(sums, _mm256_set1_ps(kHighUnit));
    if (low_bytes != nullptr) sums = _mm256_add_ps(sums, sums_with<L>(high, low, f, low_bytes));
    lanes = _mm256_fmadd_ps(sums, scale, lanes);
    return _mm256_fmadd_ps(min, floats_at(x + kSumAt), lanes);
}

// Of each plane, so far ahead: a row's bytes come from three to six streams, which the hardware follows within a page.
constexpr size_t kAhead = 512;

template <Level L, class X>
float dot_nested(const Row& row, const Refinement& f, size_t k, const char* x) {
    __m256 lanes = _mm256_setzero_ps();
    const size_t supers = k / kSuperElements;
    const size_t left = k % kSuperElements / kCellElements;
    const size_t all = supers + (left != 0 ? 1 : 0);
    const char* const lows = x + low_at(all);
    const char* const fine = x + fine_at(all);
    const auto low_of = [&](size_t i) { return X::kTwoBytes && fine[i] != 0 ? lows + i * kSuperElements : nullptr; };
    for (size_t i = 0; i < supers; ++i) {
        const Row at = super_of<L>(row, i);
        _mm_prefetch(at.p1 + 2 * kAhead, _MM_HINT_T0);
        if constexpr (L >= Level::k3) _mm_prefetch(at.p2 + kAhead, _MM_HINT_T0);
        if constexpr (L >= Level::k4) _mm_prefetch(at.p3 + kAhead, _MM_HINT_T0);
        if constexpr (L >= Level::k6) _mm_prefetch(at.p4a + 2 * kAhead, _MM_HINT_T0);
        if constexpr (L >= Level::k8) _mm_prefetch(at.p4b + 2 * kAhead, _MM_HINT_T0);
        _mm_prefetch(at.scales + kAhead, _MM_HINT_T0);
        lanes = accumulate_nested<L>(at, f, x, X::kTwoBytes, low_of(i), lanes);
        x += sizeof(Super);
    }
    if (left != 0) {
        Whole whole;
        lanes = accumulate_nested<L>(whole.spread<L>(super_of<L>(row, supers), left), f, x, X::kTwoBytes, low_of(supers), lanes);
    }
    return sum_of_lanes(lanes);
}

// ---- sixteen rows side by side

using TileOfNibbles = TileCodes<8, false, false>;

template <Level L, class X>
[[gnu::noinline]] void fill_nested(const Row (&rows)[kTileRows], const Refinement& f, size_t k, size_t super, size_t supers,
                                   RowTile& high, RowTile& low) {
    Unpacked unpacked, unpacked_low;
    Whole whole;
    for (size_t i = 0; i < supers; ++i) {
        const size_t left = k / kCellElements - (super + i) * kCellsPerSuper;
        for (size_t v = 0; v < kVectors; ++v) {
            for (size_t r = 0; r < kVectorRows; ++r) {
                Row at = super_of<L>(rows[v * kVectorRows + r], super + i);
                if (left < kCellsPerSuper) at = whole.spread<L>(at, left);
                __m256 scale, min;
                scales_of<L>(at, f, scale, min);
                unpacked.scale[r] = unpacked_low.scale[r] = _mm256_castps_si256(scale);
                unpacked.min[0][r] = unpacked_low.min[0][r] = _mm256_castps_si256(min);
                const auto codes = Halves<L>::high(at);
                unpack_codes<decltype(Halves<L>::codes_of(codes))>(codes, r, unpacked);
                if constexpr (Halves<L>::kLow) {
                    const auto rest = Halves<L>::low(at);
                    unpack_codes<decltype(Halves<L>::codes_of(rest))>(rest, r, unpacked_low);
                }
            }
            enter<false>(unpacked, high, i, v);
            if constexpr (Halves<L>::kLow) enter<false>(unpacked_low, low, i, v);
            if (X::kTwoBytes && !Halves<L>::kLow) take_high_unit(high, i, v);
        }
    }
}

// run_tile() for codes of two halves. `unit`: of the high half.
template <class X, size_t T>
void run_halves(const RowTile& high, const RowTile& low, float unit, size_t supers, const Chunk& chunk, Lanes* lanes) {
    const __m256 high_unit = _mm256_set1_ps(unit);
    for (size_t super = 0; super < supers; ++super) {
        const char* x[T];
        const char* low_bytes[T];
        unsigned fine = 0;
        for (size_t t = 0; t < T; ++t) {
            x[t] = chunk.x + t * chunk.stride + super * sizeof(Super);
            low_bytes[t] = chunk.low + t * chunk.stride + super * kSuperElements;
            if (X::kTwoBytes) fine |= static_cast<uint8_t>(chunk.fine[t * chunk.stride + super]);
        }
        for (size_t b = 0; b < kCellsPerSuper; ++b) {
            // exact: below 32 * 255 * 127
            const auto sums = [&](const char* const(&bytes)[T], size_t at, Sums<T>& out) __attribute__((always_inline)) {
                Sums<T> rest;
                sum_cells<TileOfNibbles, T>(high, super, b, bytes, at, out);
                sum_cells<TileOfNibbles, T>(low, super, b, bytes, at, rest);
                for (size_t t = 0; t < T; ++t) {
                    for (size_t v = 0; v < kVectors; ++v) out[t][v] = _mm256_fmadd_ps(out[t][v], high_unit, rest[t][v]);
                }
            };
            Sums<T> sum, fine_sum;
            sums(x, kCodesAt, sum);
            const bool is_fine_cell = X::kTwoBytes && (fine >> b & 1) != 0;
            if (is_fine_cell) sums(low_bytes, 0, fine_sum);
            for (size_t t = 0; t < T; ++t) {
                for (size_t v = 0; v < kVectors; ++v) {
                    if (X::kTwoBytes) {
                        const __m256 rest = is_fine_cell ? fine_sum[t][v] : _mm256_setzero_ps();
                        sum[t][v] = _mm256_fmadd_ps(sum[t][v], _mm256_set1_ps(kHighUnit), rest);
                    }
                    const __m256 scale = _mm256_mul_ps(high.scale[super][b][v], broadcast(x[t] + kScaleAt, b));
                    const __m256 lane = _mm256_fmadd_ps(sum[t][v], scale, lanes[t][b][v]);
                    lanes[t][b][v] = _mm256_fmadd_ps(high.min[super][0][b][v], broadcast(x[t] + kSumAt, b), lane);
                }
            }
        }
    }
}

// Where there are two halves, tiles of half the length: both together stay in a first-level cache.
template <Level L>
constexpr size_t kNestedSupers = Halves<L>::kLow ? kTileSupers / 2 : kTileSupers;

template <Level L, class X, size_t T>
[[gnu::always_inline]] inline void run_nested(const RowTile& high, const RowTile& low, float unit, size_t supers,
                                              const Chunk& chunk, Lanes* lanes) {
    if constexpr (Halves<L>::kLow) {
        run_halves<X, T>(high, low, unit, supers, chunk, lanes);
    } else {
        run_tile<TileOfNibbles, X, T>(high, supers, chunk, lanes);
    }
}

// Up to kTileRows rows from `first` on, up to kTokenBlock tokens.
template <Level L, class X>
void multiply_nested_tile(const NestedRows& w, size_t first, const RowBytes& bytes, size_t rows, size_t k, const char* x,
                          size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    const Refinement f = refinement_of<L>(w.span_log2);
    Row row[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) row[r] = row_at<L>(w, first + (r < rows ? r : rows - 1), bytes);
    RowTile high, low;
    Lanes lanes[kTokenBlock];
    for (size_t t = 0; t < tokens; ++t) {
        for (auto& cell : lanes[t]) {
            for (__m256& lane : cell) lane = _mm256_setzero_ps();
        }
    }
    const float unit = static_cast<float>(1 << f.shift);
    const size_t all = (k + kSuperElements - 1) / kSuperElements;
    for (size_t super = 0; super < all; super += kNestedSupers<L>) {
        const size_t supers = all - super < kNestedSupers<L> ? all - super : kNestedSupers<L>;
        fill_nested<L, X>(row, f, k, super, supers, high, low);
        const Chunk chunk{x + super * sizeof(Super), x + low_at(all) + super * kSuperElements, x + fine_at(all) + super,
                          x_stride_bytes};
        size_t t = 0;
        for (; t + 4 <= tokens; t += 4) run_nested<L, X, 4>(high, low, unit, supers, chunk.from_token(t), lanes + t);
        for (; t < tokens; ++t) run_nested<L, X, 1>(high, low, unit, supers, chunk.from_token(t), lanes + t);
    }
    for (size_t t = 0; t < tokens; ++t) {
        alignas(32) float sums[kTileRows];
        for (size_t v = 0; v < kVectors; ++v) _mm256_store_ps(sums + v * kVectorRows, sums_of_lanes(lanes[t], v));
        std::memcpy(y + t * y_stride, sums, rows * sizeof(float));
    }
}

template <Level L, class X>
void multiply_codes(const NestedRows& w, size_t rows, size_t k, const char* x, size_t x_stride_bytes, size_t tokens, float* y,
                    size_t y_stride) {
    const RowBytes bytes(k);
    if (tokens < kTileTokens) {
        const Refinement f = refinement_of<L>(w.span_log2);
        for (size_t r = 0; r < rows; ++r) {
            const Row row = row_at<L>(w, r, bytes);
            for (size_t t = 0; t < tokens; ++t) y[t * y_stride + r] = dot_nested<L, X>(row, f, k, x + t * x_stride_bytes);
        }
        return;
    }
    for (size_t t = 0; t < tokens; t += kTokenBlock) {
        const size_t block = tokens - t < kTokenBlock ? tokens - t : kTokenBlock;
        for (size_t r = 0; r < rows; r += kTileRows) {
            multiply_nested_tile<L, X>(w, r, bytes, rows - r < kTileRows ? rows - r : kTileRows, k, x + t * x_stride_bytes,
                                       x_stride_bytes, block, y + t * y_stride + r, y_stride);
        }
    }
}

// ---- floats

template <class Codes, class S>
[[gnu::always_inline]] inline void store_codes(const S& s, uint8_t* to) {
    const auto store = [&](size_t place, __m256i v) __attribute__((always_inline)) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * place), v);
    };
    store(0, Codes::template codes<0, 0>(s));
    store(1, Codes::template codes<0, 1>(s));
    store(2, Codes::template codes<1, 0>(s));
    store(3, Codes::template codes<1, 1>(s));
    store(4, Codes::template codes<2, 0>(s));
    store(5, Codes::template codes<2, 1>(s));
    store(6, Codes::template codes<3, 0>(s));
    store(7, Codes::template codes<3, 1>(s));
}

// A super-block's weights: 32 * groups floats. The same bits as the scalar kernels'.
template <Level L>
void expand_nested(const Row& row, const Refinement& f, size_t groups, float* to) {
    Whole whole;
    const Row at = groups < kCellsPerSuper ? whole.spread<L>(row, groups) : row;
    __m256 scales, mins;
    scales_of<L>(at, f, scales, mins);
    alignas(32) float scale[8], min[8];
    _mm256_store_ps(scale, scales);
    _mm256_store_ps(min, mins);
    uint8_t high[kSuperElements], low[kSuperElements] = {};  // in the order of int8_place()
    const auto codes = Halves<L>::high(at);
    store_codes<decltype(Halves<L>::codes_of(codes))>(codes, high);
    if constexpr (Halves<L>::kLow) {
        const auto rest = Halves<L>::low(at);
        store_codes<decltype(Halves<L>::codes_of(rest))>(rest, low);
    }
    const __m128i shift = _mm_cvtsi32_si128(Halves<L>::kLow ? f.shift : 0);
    for (size_t e = 0; e < 32 * groups; e += 8) {
        const size_t from = int8_place(e / 32, e % 32);
        const __m256i top = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(high + from)));
        const __m256i rest = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(low + from)));
        const __m256 code = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_sll_epi32(top, shift), rest));
        const __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(scale[e / 32]), code);
        _mm256_storeu_ps(to + e, _mm256_add_ps(scaled, _mm256_set1_ps(min[e / 32])));
    }
}

// Lane j of an output takes elements j, j + 8, ... in order by fused multiply-add, as in avx2_matmul_floats.cc.
constexpr size_t kFloatTokens = 16;  // that share one expansion

template <Level L>
void multiply_floats(const NestedRows& w, size_t rows, size_t k, const char* x, size_t x_stride_bytes, size_t tokens, float* y,
                     size_t y_stride) {
    const RowBytes bytes(k);
    const Refinement f = refinement_of<L>(w.span_log2);
    for (size_t r = 0; r < rows; ++r) {
        const Row row = row_at<L>(w, r, bytes);
        for (size_t first = 0; first < tokens; first += kFloatTokens) {
            const size_t count = tokens - first < kFloatTokens ? tokens - first : kFloatTokens;
            __m256 lanes[kFloatTokens];
            for (__m256& lane : lanes) lane = _mm256_setzero_ps();
            for (size_t i = 0; i * kSuperElements < k; ++i) {
                alignas(32) float weights[kSuperElements];
                const size_t left = k / kCellElements - i * kCellsPerSuper;
                const size_t groups = left < kCellsPerSuper ? left : kCellsPerSuper;
                expand_nested<L>(super_of<L>(row, i), f, groups, weights);
                for (size_t t = 0; t < count; ++t) {
                    const char* const values = x + (first + t) * x_stride_bytes + i * kSuperElements * sizeof(float);
                    __m256 lane = lanes[t];
                    for (size_t e = 0; e < 32 * groups; e += 8) {
                        lane = _mm256_fmadd_ps(_mm256_load_ps(weights + e), floats_at(values + e * sizeof(float)), lane);
                    }
                    lanes[t] = lane;
                }
            }
            for (size_t t = 0; t < count; ++t) y[(first + t) * y_stride + r] = sum_of_lanes(lanes[t]);
        }
    }
}

template <Level L>
void multiply_nested(Activation a, const NestedRows& w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                     size_t tokens, float* y, size_t y_stride) {
    switch (a) {
        case Activation::kF32: return multiply_floats<L>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Activation::kInt8: return multiply_codes<L, Int8>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
        case Activation::kFine: return multiply_codes<L, Fine>(w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
    }
}

template <Level L>
void expand_row(const NestedRows& w, float* dst, size_t k) {
    const Row row = row_at<L>(w, 0, RowBytes(k));
    for (size_t i = 0; i * kSuperElements < k; ++i) {
        const size_t left = k / kCellElements - i * kCellsPerSuper;
        expand_nested<L>(super_of<L>(row, i), refinement_of<L>(w.span_log2), left < kCellsPerSuper ? left : kCellsPerSuper,
                         dst + i * kSuperElements);
    }
}

}  // namespace

void matmul_nested(Level level, Activation a, const NestedRows& w, size_t rows, size_t k, const void* x,
                   size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    const auto* const in = static_cast<const char*>(x);
    switch (level) {
        case Level::k2: return multiply_nested<Level::k2>(a, w, rows, k, in, x_stride_bytes, tokens, y, y_stride);
        case Level::k3: return multiply_nested<Level::k3>(a, w, rows, k, in, x_stride_bytes, tokens, y, y_stride);
        case Level::k4: return multiply_nested<Level::k4>(a, w, rows, k, in, x_stride_bytes, tokens, y, y_stride);
        case Level::k6: return multiply_nested<Level::k6>(a, w, rows, k, in, x_stride_bytes, tokens, y, y_stride);
        case Level::k8: return multiply_nested<Level::k8>(a, w, rows, k, in, x_stride_bytes, tokens, y, y_stride);
    }
}

void dequantize_nested(Level level, const NestedRows& row, float* dst, size_t k) {
    switch (level) {
        case Level::k2: return expand_row<Level::k2>(row, dst, k);
        case Level::k3: return expand_row<Level::k3>(row, dst, k);
        case Level::k4: return expand_row<Level::k4>(row, dst, k);
        case Level::k6: return expand_row<Level::k6>(row, dst, k);
        case Level::k8: return expand_row<Level::k8>(row, dst, k);
    }
}

}  // namespace weir::kernels::avx2
