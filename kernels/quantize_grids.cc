// By plain search: the largest magnitude of a group becomes the grid's largest, and every eight (or four) weights the
// point that is nearest. Real quantisers weigh the errors; this one makes files for tests.
#include "kernels/quantize_grids.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/grid_blocks.h"
#include "kernels/rounding.h"

namespace weir::kernels {
namespace {

float largest_magnitude(const float* x, size_t n) {
    float largest = 0.0f;
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
    return largest;
}

// Scales of kGroups groups, unit * d * (2 * bits + 1), under which their largest elements are `top`.
template <size_t kGroups>
struct OddScales {
    uint32_t bits[kGroups];
    float scale[kGroups];

    OddScales(const float* x, float top, int most_bits, float unit, uint8_t* d_bytes) {
        constexpr size_t n = kSuperElements / kGroups;
        const float most = static_cast<float>(2 * most_bits + 1);
        const float d = unit * store_half(d_bytes, largest_magnitude(x, kSuperElements) / (top * most * unit));
        for (size_t g = 0; g < kGroups; ++g) {
            const float wanted = largest_magnitude(x + g * n, n) / top;
            bits[g] = static_cast<uint32_t>(nearest((wanted * inverse_of(d) - 1.0f) * 0.5f, 0, most_bits));
            scale[g] = d * static_cast<float>(2 * bits[g] + 1);
        }
    }
};

template <class Point, size_t n>
uint32_t nearest_point(const std::array<Point, n>& grid, const float* target, float* error = nullptr) {
    uint32_t best = 0;
    float least = HUGE_VALF;
    for (uint32_t i = 0; i < n; ++i) {
        int8_t values[sizeof(Point)];
        std::memcpy(values, &grid[i], sizeof values);
        float sum = 0.0f;
        for (size_t j = 0; j < sizeof(Point); ++j) {
            const float off = target[j] - static_cast<float>(values[j]);
            sum += off * off;
        }
        if (sum < least) {
            least = sum;
            best = i;
        }
    }
    if (error != nullptr) *error = least;
    return best;
}

// Eight weights as magnitudes under a scale, and their signs. Where the number of signs has to be even and is not, the
// smallest weight gets the other one.
uint8_t take_signs(const float* x, float scale, bool even, float (&magnitudes)[8]) {
    uint32_t signs = 0;
    for (size_t j = 0; j < 8; ++j) {
        magnitudes[j] = std::fabs(x[j]) * inverse_of(scale);
        if (x[j] < 0.0f) signs |= 1u << j;
    }
    if (even && std::popcount(signs) % 2 != 0) {
        signs ^= 1u << (std::min_element(magnitudes, magnitudes + 8) - magnitudes);
    }
    return static_cast<uint8_t>(signs);
}

void store_u32(uint8_t* p, uint32_t v) { std::memcpy(p, &v, sizeof v); }

void store_nibbles(const uint32_t (&bits)[16], uint8_t (&scales)[8]) {
    for (size_t i = 0; i < 8; ++i) scales[i] = static_cast<uint8_t>(bits[2 * i] | bits[2 * i + 1] << 4);
}

void pack_block(const float* x, BlockIQ2_XXS& b) {
    const OddScales<8> groups(x, 43.0f, 15, 0.125f, b.d);
    for (size_t g = 0; g < 8; ++g) {
        uint32_t word = groups.bits[g] << 28;
        for (size_t i = 0; i < 4; ++i) {
            float magnitudes[8];
            const uint32_t signs = take_signs(x + 32 * g + 8 * i, groups.scale[g], true, magnitudes);
            b.qs[8 * g + i] = static_cast<uint8_t>(nearest_point(kIq2XxsGrid, magnitudes));
            word |= (signs & 127u) << (7 * i);
        }
        store_u32(b.qs + 8 * g + 4, word);
    }
}

void pack_block(const float* x, BlockIQ2_XS& b) {
    const OddScales<16> groups(x, 43.0f, 15, 0.125f, b.d);
    store_nibbles(groups.bits, b.scales);
    for (size_t i = 0; i < 32; ++i) {
        float magnitudes[8];
        const uint32_t signs = take_signs(x + 8 * i, groups.scale[i / 2], true, magnitudes);
        store_u16(b.qs + 2 * i, static_cast<uint16_t>(nearest_point(kIq2XsGrid, magnitudes) | (signs & 127u) << 9));
    }
}

void pack_block(const float* x, BlockIQ2_S& b) {
    const OddScales<16> groups(x, 43.0f, 15, 0.125f, b.d);
    store_nibbles(groups.bits, b.scales);
    std::memset(b.qh, 0, sizeof b.qh);
    for (size_t i = 0; i < 32; ++i) {
        float magnitudes[8];
        b.signs[i] = take_signs(x + 8 * i, groups.scale[i / 2], false, magnitudes);
        const uint32_t point = nearest_point(kIq2SGrid, magnitudes);
        b.qs[i] = static_cast<uint8_t>(point);
        b.qh[i / 4] = static_cast<uint8_t>(b.qh[i / 4] | point >> 8 << (i % 4 * 2));
    }
}

void pack_block(const float* x, BlockIQ3_XXS& b) {
    const OddScales<8> groups(x, 62.0f, 15, 0.25f, b.d);
    for (size_t g = 0; g < 8; ++g) {
        uint32_t word = groups.bits[g] << 28;
        for (size_t i = 0; i < 4; ++i) {
            float magnitudes[8];
            const uint32_t signs = take_signs(x + 32 * g + 8 * i, groups.scale[g], true, magnitudes);
            for (size_t half = 0; half < 2; ++half) {
                b.qs[8 * g + 2 * i + half] = static_cast<uint8_t>(nearest_point(kIq3XxsGrid, magnitudes + 4 * half));
            }
            word |= (signs & 127u) << (7 * i);
        }
        store_u32(b.words + 4 * g, word);
    }
}

void pack_block(const float* x, BlockIQ3_S& b) {
    const OddScales<8> groups(x, 15.0f, 15, 1.0f, b.d);
    for (size_t i = 0; i < 4; ++i) b.scales[i] = static_cast<uint8_t>(groups.bits[2 * i] | groups.bits[2 * i + 1] << 4);
    std::memset(b.qh, 0, sizeof b.qh);
    for (size_t i = 0; i < 32; ++i) {
        float magnitudes[8];
        b.signs[i] = take_signs(x + 8 * i, groups.scale[i / 4], false, magnitudes);
        for (size_t half = 0; half < 2; ++half) {
            const size_t at = 2 * i + half;
            const uint32_t point = nearest_point(kIq3SGrid, magnitudes + 4 * half);
            b.qs[at] = static_cast<uint8_t>(point);
            b.qh[at / 8] = static_cast<uint8_t>(b.qh[at / 8] | point >> 8 << (at % 8));
        }
    }
}

// The points of `count` times eight weights, all an eighth above or all an eighth below; true for below.
bool nearest_ternary(const float* x, float scale, size_t count, uint32_t* points) {
    float errors[2] = {0.0f, 0.0f};
    uint32_t found[2][4];
    for (size_t less = 0; less < 2; ++less) {
        for (size_t i = 0; i < count; ++i) {
            const float delta = less != 0 ? -0.125f : 0.125f;
            float target[8], error = 0.0f;
            for (size_t j = 0; j < 8; ++j) target[j] = x[8 * i + j] * inverse_of(scale) - delta;
            found[less][i] = nearest_point(kIq1Grid, target, &error);
            errors[less] += error;
        }
    }
    const size_t less = errors[1] < errors[0] ? 1 : 0;
    std::copy_n(found[less], count, points);
    return less != 0;
}

void pack_block(const float* x, BlockIQ1_S& b) {
    const OddScales<8> groups(x, 1.125f, 7, 1.0f, b.d);
    for (size_t g = 0; g < 8; ++g) {
        uint32_t points[4];
        uint32_t word = groups.bits[g] << 12;
        if (nearest_ternary(x + 32 * g, groups.scale[g], 4, points)) word |= 0x8000u;
        for (size_t i = 0; i < 4; ++i) {
            b.qs[4 * g + i] = static_cast<uint8_t>(points[i]);
            word |= points[i] >> 8 << (3 * i);
        }
        store_u16(b.qh + 2 * g, static_cast<uint16_t>(word));
    }
}

void pack_block(const float* x, BlockIQ1_M& b) {
    uint8_t d[2];
    const OddScales<16> groups(x, 1.125f, 7, 1.0f, d);
    for (size_t w = 0; w < 4; ++w) {
        uint32_t word = (load_u16(d) >> (4 * w) & 15u) << 12;
        for (size_t g = 0; g < 4; ++g) word |= groups.bits[4 * w + g] << (3 * g);
        store_u16(b.scales + 2 * w, static_cast<uint16_t>(word));
    }
    std::memset(b.qh, 0, sizeof b.qh);
    for (size_t i = 0; i < 32; ++i) {
        uint32_t point = 0;
        const bool less = nearest_ternary(x + 8 * i, groups.scale[i / 2], 1, &point);
        b.qs[i] = static_cast<uint8_t>(point);
        b.qh[i / 2] = static_cast<uint8_t>(b.qh[i / 2] | (point >> 8 | (less ? 8u : 0u)) << (i % 2 * 4));
    }
}

// The digits of `digits` times `count` codes, see BlockTQ1_0. Rounded up, so that multiplying finds each of them again.
void encode_digits(const uint8_t* codes, size_t count, size_t digits, uint8_t* bytes) {
    for (size_t l = 0; l < count; ++l) {
        uint32_t value = 0;
        for (size_t n = 0; n < 5; ++n) value = 3 * value + (n < digits ? codes[n * count + l] : 0u);
        bytes[l] = static_cast<uint8_t>((value * 256 + 242) / 243);
    }
}

void pack_block(const float* x, BlockTQ1_0& b) {
    uint8_t codes[kSuperElements];
    const float inverse = inverse_of(store_half(b.d, largest_magnitude(x, kSuperElements)));
    for (size_t e = 0; e < kSuperElements; ++e) codes[e] = static_cast<uint8_t>(nearest(x[e] * inverse, -1, 1) + 1);
    encode_digits(codes, 32, 5, b.qs);
    encode_digits(codes + 160, 16, 5, b.qs + 32);
    encode_digits(codes + 240, 4, 4, b.qh);
}

template <class Block>
bool pack_row(const float* src, uint8_t* dst, size_t n) {
    for (size_t i = 0; i < n; i += kSuperElements, dst += sizeof(Block)) {
        Block block;
        pack_block(src + i, block);
        std::memcpy(dst, &block, sizeof block);
    }
    return true;
}

}  // namespace

bool quantize_grids(Type type, const float* src, uint8_t* dst, size_t n) noexcept {
    switch (type) {
        case Type::kIQ1_S: return pack_row<BlockIQ1_S>(src, dst, n);
        case Type::kIQ1_M: return pack_row<BlockIQ1_M>(src, dst, n);
        case Type::kIQ2_XXS: return pack_row<BlockIQ2_XXS>(src, dst, n);
        case Type::kIQ2_XS: return pack_row<BlockIQ2_XS>(src, dst, n);
        case Type::kIQ2_S: return pack_row<BlockIQ2_S>(src, dst, n);
        case Type::kIQ3_XXS: return pack_row<BlockIQ3_XXS>(src, dst, n);
        case Type::kIQ3_S: return pack_row<BlockIQ3_S>(src, dst, n);
        case Type::kTQ1_0: return pack_row<BlockTQ1_0>(src, dst, n);
        default: return false;
    }
}

}  // namespace weir::kernels
