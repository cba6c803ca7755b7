#include "kernels/panels.h"

#include <cstdint>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/scalar.h"

namespace weir::kernels {
namespace {

// `units` pieces of `bytes` each, from one behind the other to one in each group of eight.
void scatter(const uint8_t* from, size_t bytes, size_t units, uint8_t* to) {
    for (size_t i = 0; i < units; ++i) std::memcpy(to + i * kPanelRows * bytes, from + i * bytes, bytes);
}

}  // namespace

void place_in_panel(Type type, const void* row, size_t n, size_t r, void* panel) noexcept {
    const auto* from = static_cast<const uint8_t*>(row);
    auto* to = static_cast<uint8_t*>(panel);
    const TypeTraits& t = traits(type);
    if (t.block_elements == 1) return scatter(from, t.block_bytes, n, to + r * t.block_bytes);
    constexpr size_t kScaleBytes = sizeof BlockQ8_0::d;
    static_assert(sizeof BlockQ4_0::d == kScaleBytes);
    const size_t code_bytes = t.block_bytes - kScaleBytes;
    for (size_t i = 0; i < n; i += t.block_elements, from += t.block_bytes, to += kPanelRows * t.block_bytes) {
        scatter(from, kScaleBytes, 1, to + r * kScaleBytes);
        scatter(from + kScaleBytes, 1, code_bytes, to + kPanelRows * kScaleBytes + r);
    }
}

namespace scalar {

void unpack_panels(Type type, const void* panels, float* dst, size_t n) {
    const auto* at = static_cast<const uint8_t*>(panels);
    const size_t block_bytes = traits(type).block_bytes;
    for (size_t i = 0; i < n; i += kPanelRows * kCellElements, at += kPanelRows * block_bytes) {
        for (size_t r = 0; r < kPanelRows; ++r) {
            uint8_t block[sizeof(BlockQ8_0)];
            std::memcpy(block, at + 2 * r, 2);
            for (size_t b = 2; b < block_bytes; ++b) block[b] = at[kPanelRows * b + r];
            float row[kCellElements];
            dequantize(type, block, row, kCellElements);
            for (size_t e = 0; e < kCellElements; ++e) dst[i + e * kPanelRows + r] = row[e];
        }
    }
}

}  // namespace scalar
}  // namespace weir::kernels
