// Packing of activations, and products by the definition: sums of exact integer products of 16 elements, put
// together in double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/activation.h"
#include "kernels/half.h"
#include "kernels/scalar.h"

namespace weir::kernels::scalar {
namespace {

// The largest magnitude of n floats; infinity or NaN where one of them is. Compared as integers, in which
// order NaN stands above infinity and is never lost.
float largest_magnitude(const float* x, size_t n) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; ++i) {
        largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
    }
    return std::bit_cast<float>(largest);
}

// One cell of 32 elements. Codes are whole multiples of `unit`, of at most code_max units; they come out apart.
void pack_cell(const float* x, size_t b, float code_max, int unit, Super& out, int (&codes)[kCellElements]) {
    const float largest = largest_magnitude(x, kCellElements);
    std::fill(std::begin(codes), std::end(codes), 0);
    if (!std::isfinite(largest)) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        out.scale[b] = out.sum[b] = out.sum_low[b] = out.sum_high[b] = nan;
        return;
    }
    if (largest < kSmallestMagnitude) return;
    const float scale = largest / (code_max * static_cast<float>(unit));
    const float inverse = code_max / largest;
    int sums[2] = {0, 0};
    for (size_t i = 0; i < kCellElements; ++i) {
        const float rounded = std::nearbyint(x[i] * inverse);
        codes[i] = static_cast<int>(std::clamp(rounded, -code_max, code_max)) * unit;
        sums[i / 16] += codes[i];
    }
    out.scale[b] = scale;
    out.sum_low[b] = scale * static_cast<float>(sums[0]);
    out.sum_high[b] = scale * static_cast<float>(sums[1]);
    out.sum[b] = scale * static_cast<float>(sums[0] + sums[1]);
}

void pack_int8(const float* x, size_t k, char* out) {
    const size_t cells = k / kCellElements;
    for (size_t first = 0; first < cells; first += kCellsPerSuper, out += sizeof(Super)) {
        Super super{};
        for (size_t b = 0; b < std::min(kCellsPerSuper, cells - first); ++b) {
            int codes[kCellElements];
            pack_cell(x + (first + b) * kCellElements, b, kInt8Max, 1, super, codes);
            for (size_t i = 0; i < kCellElements; ++i) super.codes[int8_place(b, i)] = static_cast<int8_t>(codes[i]);
        }
        std::memcpy(out, &super, sizeof super);
    }
}

void pack_fine(const float* x, size_t k, double ratio, char* out) {
    const size_t cells = k / kCellElements;
    if (cells == 0) return;  // where there may be no memory at all
    const size_t supers = (cells + kCellsPerSuper - 1) / kCellsPerSuper;
    std::memset(out, 0, fine_row_bytes(supers));
    double sum = 0;
    for (size_t c = 0; c < cells; ++c) sum += static_cast<double>(largest_magnitude(x + c * kCellElements, kCellElements));
    for (size_t s = 0; s < supers; ++s) {
        Super super{};
        int8_t low[kSuperElements] = {};
        int16_t whole[kSuperElements] = {};
        uint8_t fine_cells = 0;
        for (size_t b = 0; b < std::min(kCellsPerSuper, cells - s * kCellsPerSuper); ++b) {
            const float* const cell = x + (s * kCellsPerSuper + b) * kCellElements;
            const bool fine = is_fine(largest_magnitude(cell, kCellElements), sum, cells, ratio);
            if (fine) fine_cells = static_cast<uint8_t>(fine_cells | 1u << b);
            int codes[kCellElements];
            pack_cell(cell, b, fine ? kFineMax : kInt8Max, fine ? 1 : kHighUnit, super, codes);
            for (size_t i = 0; i < kCellElements; ++i) {
                whole[b * kCellElements + i] = static_cast<int16_t>(codes[i]);
                const int high = (codes[i] + kHighUnit / 2) >> 7;
                super.codes[int8_place(b, i)] = static_cast<int8_t>(high);
                low[int8_place(b, i)] = static_cast<int8_t>(codes[i] - kHighUnit * high);
            }
        }
        std::memcpy(out + s * sizeof super, &super, sizeof super);
        std::memcpy(out + low_at(supers) + s * sizeof low, low, sizeof low);
        std::memcpy(out + fine_at(supers) + s, &fine_cells, 1);
        std::memcpy(out + whole_at(supers) + s * sizeof whole, whole, sizeof whole);
    }
}

// `low`: low bytes of the Super's codes, nullptr where codes are all there is.
double dot_cell(const Cell& cell, const Super& x, const int8_t* low, size_t b) {
    int32_t sums[2] = {0, 0};  // at most 16 * 128 * 16319
    for (size_t i = 0; i < kCellElements; ++i) {
        const size_t at = int8_place(b, i);
        const int32_t code = low == nullptr ? x.codes[at] : kHighUnit * x.codes[at] + low[at];
        sums[i / 16] += int32_t{cell.code[i]} * code;
    }
    const double products =
        static_cast<double>(cell.scale[0]) * sums[0] + static_cast<double>(cell.scale[1]) * sums[1];
    return products * static_cast<double>(x.scale[b]) +
           static_cast<double>(cell.min[0]) * static_cast<double>(x.sum_low[b]) +
           static_cast<double>(cell.min[1]) * static_cast<double>(x.sum_high[b]);
}

// Tokens that share one unpacking of a row.
constexpr size_t kTokenGroup = 16;

void matmul_codes(Type type, bool two_bytes, const uint8_t* w, size_t k, const char* x, size_t x_stride_bytes,
                  size_t tokens, float* y, size_t y_stride) {
    const size_t supers = (k + kSuperElements - 1) / kSuperElements;
    double sums[kTokenGroup] = {};
    for (size_t first = 0; first < k; first += kSuperElements) {
        const size_t n = std::min(kSuperElements, k - first);
        Cell cells[kCellsPerSuper];
        unpack(type, w + row_bytes(type, first), n, cells);
        for (size_t t = 0; t < tokens; ++t) {
            const char* const row = x + t * x_stride_bytes;
            Super super;
            std::memcpy(&super, row + first / kSuperElements * sizeof super, sizeof super);
            const auto* const low = reinterpret_cast<const int8_t*>(row + low_at(supers) + first);
            for (size_t b = 0; b < n / kCellElements; ++b) {
                sums[t] += dot_cell(cells[b], super, two_bytes ? low : nullptr, b);
            }
        }
    }
    for (size_t t = 0; t < tokens; ++t) y[t * y_stride] = static_cast<float>(sums[t]);
}

void matmul_floats(Type type, const uint8_t* w, size_t k, const char* x, size_t x_stride_bytes, size_t tokens,
                   float* y, size_t y_stride) {
    double sums[kTokenGroup] = {};
    for (size_t first = 0; first < k; first += kSuperElements) {
        const size_t n = std::min(kSuperElements, k - first);
        float weights[kSuperElements];
        dequantize(type, w + row_bytes(type, first), weights, n);
        for (size_t t = 0; t < tokens; ++t) {
            float values[kSuperElements];
            std::memcpy(values, x + t * x_stride_bytes + first * sizeof(float), n * sizeof(float));
            for (size_t i = 0; i < n; ++i)
                sums[t] += static_cast<double>(weights[i]) * static_cast<double>(values[i]);
        }
    }
    for (size_t t = 0; t < tokens; ++t) y[t * y_stride] = static_cast<float>(sums[t]);
}

}  // namespace

void quantize(Activation a, const float* x, size_t k, void* out) {
    switch (a) {
        case Activation::kF32:
            if (k != 0) std::memcpy(out, x, k * sizeof(float));
            return;
        case Activation::kInt8:
            return pack_int8(x, k, static_cast<char*>(out));
        case Activation::kFine:
        case Activation::kWhole:
            return pack_fine(x, k, fine_ratio(a), static_cast<char*>(out));
    }
}

void dequantize(Type type, const void* src, float* dst, size_t n) {
    const auto* bytes = static_cast<const uint8_t*>(src);
    switch (type) {
        case Type::kF32:
            if (n != 0) std::memcpy(dst, src, n * sizeof(float));
            return;
        case Type::kF16:
            for (size_t i = 0; i < n; ++i) dst[i] = load_half(bytes + 2 * i);
            return;
        case Type::kBF16:
            for (size_t i = 0; i < n; ++i) dst[i] = bfloat_to_float(load_u16(bytes + 2 * i));
            return;
        default:
            break;
    }
    for (size_t first = 0; first < n; first += kSuperElements) {
        const size_t count = std::min(kSuperElements, n - first);
        Cell cells[kCellsPerSuper];
        unpack(type, bytes + row_bytes(type, first), count, cells);
        for (size_t i = 0; i < count; ++i) {
            const Cell& cell = cells[i / kCellElements];
            const size_t j = i % kCellElements;
            dst[first + i] = cell.scale[j / 16] * static_cast<float>(cell.code[j]) + cell.min[j / 16];
        }
    }
}

void matmul(Type type, Activation a, const void* w, size_t rows, size_t k, const void* x,
            size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    const size_t bytes = row_bytes(type, k);
    for (size_t r = 0; r < rows; ++r) {
        const auto* row = static_cast<const uint8_t*>(w) + r * bytes;
        for (size_t t = 0; t < tokens; t += kTokenGroup) {
            const size_t count = std::min(kTokenGroup, tokens - t);
            const char* group = static_cast<const char*>(x) + t * x_stride_bytes;
            float* out = y + t * y_stride + r;
            switch (a) {
                case Activation::kF32:
                    matmul_floats(type, row, k, group, x_stride_bytes, count, out, y_stride);
                    break;
                case Activation::kInt8:
                case Activation::kFine:
                case Activation::kWhole:
                    matmul_codes(type, has_low_bytes(a), row, k, group, x_stride_bytes, count, out, y_stride);
                    break;
            }
        }
    }
}

}  // namespace weir::kernels::scalar
