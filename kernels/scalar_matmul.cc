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

void put_code(Int8Super& out, size_t b, size_t i, int code) {
    out.codes[int8_place(b, i)] = static_cast<int8_t>(code);
}

void put_code(Int16Super& out, size_t b, size_t i, int code) {
    const int high = (code + 128) >> 8;
    out.codes[int16_place(b, i)] = static_cast<int16_t>(code);
    out.high[int8_place(b, i)] = static_cast<int8_t>(high);
    out.low[int8_place(b, i)] = static_cast<int8_t>(code - 256 * high);
}

size_t place(int8_t, size_t b, size_t i) {
    return int8_place(b, i);
}
size_t place(int16_t, size_t b, size_t i) {
    return int16_place(b, i);
}

// One cell of 32 elements; `out` comes zeroed.
template <class Super>
void pack_cell(const float* x, size_t b, float code_max, Super& out) {
    const float largest = largest_magnitude(x, kCellElements);
    if (!std::isfinite(largest)) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        out.scale[b] = out.sum[b] = out.sum_low[b] = out.sum_high[b] = nan;
        return;
    }
    if (largest < kSmallestMagnitude) return;
    const float scale = largest / code_max;
    const float inverse = code_max / largest;
    int sums[2] = {0, 0};
    for (size_t i = 0; i < kCellElements; ++i) {
        const float rounded = std::nearbyint(x[i] * inverse);
        const int code = static_cast<int>(std::clamp(rounded, -code_max, code_max));
        put_code(out, b, i, code);
        sums[i / 16] += code;
    }
    out.scale[b] = scale;
    out.sum_low[b] = scale * static_cast<float>(sums[0]);
    out.sum_high[b] = scale * static_cast<float>(sums[1]);
    out.sum[b] = scale * static_cast<float>(sums[0] + sums[1]);
}

template <class Super>
void pack(const float* x, size_t k, float code_max, char* out) {
    const size_t cells = k / kCellElements;
    for (size_t first = 0; first < cells; first += kCellsPerSuper) {
        Super super{};
        const size_t count = std::min(kCellsPerSuper, cells - first);
        for (size_t b = 0; b < count; ++b) {
            pack_cell(x + (first + b) * kCellElements, b, code_max, super);
        }
        std::memcpy(out, &super, sizeof super);
        out += sizeof super;
    }
}

template <class Code, class Super>
double dot_cell(const Cell& cell, const Super& x, size_t b) {
    int32_t sums[2] = {0, 0};  // at most 16 * 128 * 32767
    for (size_t i = 0; i < kCellElements; ++i) {
        sums[i / 16] += int32_t{cell.code[i]} * int32_t{x.codes[place(Code{}, b, i)]};
    }
    const double products =
        static_cast<double>(cell.scale[0]) * sums[0] + static_cast<double>(cell.scale[1]) * sums[1];
    return products * static_cast<double>(x.scale[b]) +
           static_cast<double>(cell.min[0]) * static_cast<double>(x.sum_low[b]) +
           static_cast<double>(cell.min[1]) * static_cast<double>(x.sum_high[b]);
}

// Tokens that share one unpacking of a row.
constexpr size_t kTokenGroup = 16;

template <class Super, class Code>
void matmul_codes(Type type, const uint8_t* w, size_t k, const char* x, size_t x_stride_bytes, size_t tokens,
                  float* y, size_t y_stride) {
    double sums[kTokenGroup] = {};
    for (size_t first = 0; first < k; first += kSuperElements) {
        const size_t n = std::min(kSuperElements, k - first);
        Cell cells[kCellsPerSuper];
        unpack(type, w + row_bytes(type, first), n, cells);
        for (size_t t = 0; t < tokens; ++t) {
            Super super;
            std::memcpy(&super, x + t * x_stride_bytes + first / kSuperElements * sizeof super, sizeof super);
            for (size_t b = 0; b < n / kCellElements; ++b) sums[t] += dot_cell<Code>(cells[b], super, b);
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
            return pack<Int8Super>(x, k, kInt8Max, static_cast<char*>(out));
        case Activation::kInt16:
            return pack<Int16Super>(x, k, kInt16Max, static_cast<char*>(out));
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
                    matmul_codes<Int8Super, int8_t>(type, row, k, group, x_stride_bytes, count, out,
                                                    y_stride);
                    break;
                case Activation::kInt16:
                    matmul_codes<Int16Super, int16_t>(type, row, k, group, x_stride_bytes, count, out,
                                                      y_stride);
                    break;
            }
        }
    }
}

}  // namespace weir::kernels::scalar
