// Weights of any type to floats. The same bits as the scalar kernels': scale * code is exact or rounded once with the
// min, in both. Internal to kernels/.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/neon_blocks.h"
#include "kernels/types.h"

namespace weir::kernels::neon {
namespace {

template <class L>
void expand_floats(const char* src, float* dst, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) store(dst + i, L::eight(src + i * L::kBytes));
    if (i == n) return;
    float last[8];
    store(last, L::some(src + i * L::kBytes, n - i));
    std::memcpy(dst + i, last, (n - i) * sizeof(float));
}

template <class W, int B, int H, class S>
[[gnu::always_inline]] inline void expand_half(const S& s, const float* scale, const float* min, float* dst) {
    const int8x16_t codes = W::template codes<B, H>(s);
    const Eight first = floats_of(vmovl_s8(vget_low_s8(codes)));
    const Eight second = floats_of(vmovl_high_s8(codes));
    store(dst + 32 * B + 16 * H, fma(first, scale[B], all(min[B])));
    store(dst + 32 * B + 16 * H + 8, fma(second, scale[B], all(min[B])));
}

template <class W, class S>
[[gnu::always_inline]] inline void expand_super(const S& s, float* dst) {
    float scale[2][kCellsPerSuper], min[2][kCellsPerSuper];  // of low and of high halves of the cells
    if constexpr (W::kGroups) {
        const Groups g = W::groups(s);
        store(scale[0], mul(g.scale_low, g.d));
        store(scale[1], mul(g.scale_high, g.d));
        store(min[0], g.min_low);
        store(min[1], g.min_high);
    } else {
        Eight cell_scale, cell_min;
        W::scales(s, cell_scale, cell_min);
        for (size_t h = 0; h < 2; ++h) {
            store(scale[h], cell_scale);
            store(min[h], cell_min);
        }
    }
    const auto cell = [&]<int B>() __attribute__((always_inline)) {
        expand_half<W, B, 0>(s, scale[0], min[0], dst);
        expand_half<W, B, 1>(s, scale[1], min[1], dst);
    };
    for_each_cell(cell);
}

template <class W>
void expand_row(const char* src, float* dst, size_t n) {
    using Block = typename W::Block;
    const auto* row = reinterpret_cast<const Block*>(src);
    for (; n >= kSuperElements; n -= kSuperElements) {
        expand_super<W>(Blocks<Block>{row}, dst);
        row += W::kBlocks;
        dst += kSuperElements;
    }
    if constexpr (W::kBlocks != 1) {
        if (n == 0) return;
        float last[kSuperElements];
        expand_super<W>(LastBlocks<Block>(row, n / kCellElements), last);
        std::memcpy(dst, last, n * sizeof(float));
    }
}

[[maybe_unused]] void expand_any(Type type, const char* src, float* dst, size_t n) {
    switch (type) {
        case Type::kF32: return expand_floats<LoadF32>(src, dst, n);
        case Type::kF16: return expand_floats<LoadF16>(src, dst, n);
        case Type::kBF16: return expand_floats<LoadBF16>(src, dst, n);
        default: return with_blocks_of(type, [&]<class W>() { expand_row<W>(src, dst, n); });
    }
}

}  // namespace
}  // namespace weir::kernels::neon
