// What a decoder does besides matrix products, by the definition; and the scalar table.
#include <algorithm>
#include <cmath>

#include "kernels/half.h"
#include "kernels/scalar.h"

namespace weir::kernels::scalar {
namespace {

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y) {
    double squares = 0.0;
    for (size_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double mean = squares / static_cast<double>(n);
    const auto factor = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
    for (size_t i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

void swiglu(const float* gate, const float* up, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

// gelu(g) = g / 2 * (1 + tanh(u)) = g / (1 + exp(-2 u)), u = sqrt(2 / pi) * (g + 0.044715 g^3)
void geglu(const float* gate, const float* up, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) {
        const float g = gate[i];
        const float minus_2u = -1.59576912f * g * (1.0f + 0.044715f * g * g);
        out[i] = g / (1.0f + std::exp(minus_2u)) * up[i];
    }
}

void soft_cap(float* x, size_t n, float cap) {
    for (size_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void add(float* x, const float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) x[i] += y[i];
}

float dot_f32(const float* a, const float* b, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return static_cast<float>(sum);
}

void axpy_f32(float s, const float* v, size_t n, float* acc) {
    for (size_t i = 0; i < n; ++i) acc[i] += s * v[i];
}

void f32_to_f16(const float* x, size_t n, uint16_t* y) {
    for (size_t i = 0; i < n; ++i) y[i] = float_to_half(x[i]);
}

void f16_to_f32(const uint16_t* x, size_t n, float* y) {
    for (size_t i = 0; i < n; ++i) y[i] = half_to_float(x[i]);
}

void softmax(float* x, size_t n) {
    float largest = x[0];
    for (size_t i = 1; i < n; ++i) largest = std::max(largest, x[i]);
    double sum = 0.0;  // a NaN anywhere reaches it, and with it every element
    for (size_t i = 0; i < n; ++i) {
        x[i] = std::exp(x[i] - largest);
        sum += static_cast<double>(x[i]);
    }
    const auto inverse = static_cast<float>(1.0 / sum);
    for (size_t i = 0; i < n; ++i) x[i] *= inverse;
}

void multiply_add(Type type, const float* x, size_t x_stride, size_t tokens, const void* b, size_t row_stride,
                  size_t panel_stride, size_t k, size_t n, float* y, size_t y_stride) {
    for (size_t t = 0; t < tokens; ++t) {
        for (size_t j = 0; j < n; ++j) {
            float sum = y[t * y_stride + j];
            for (size_t i = 0; i < k; ++i) {
                const size_t at = i * row_stride + j / 8 * panel_stride + j % 8;
                const float value = type == Type::kF16 ? half_to_float(static_cast<const uint16_t*>(b)[at])
                                                       : static_cast<const float*>(b)[at];
                sum = std::fma(x[t * x_stride + i], value, sum);
            }
            y[t * y_stride + j] = sum;
        }
    }
}

float softmax_piece(float* x, size_t n, float* max, float* sum) {
    float largest = *max;
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
    double added = 0.0;
    for (size_t i = 0; i < n; ++i) {
        x[i] = std::exp(x[i] - largest);
        added += static_cast<double>(x[i]);
    }
    const float factor = std::exp(*max - largest);
    *sum = *sum * factor + static_cast<float>(added);
    *max = largest;
    return factor;
}

}  // namespace

const KernelSet kKernels = {
    .name = "scalar",
    .quantize = quantize,
    .matmul = matmul,
    .dequantize = dequantize,
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .geglu = geglu,
    .soft_cap = soft_cap,
    .add = add,
    .dot_f32 = dot_f32,
    .axpy_f32 = axpy_f32,
    .f32_to_f16 = f32_to_f16,
    .f16_to_f32 = f16_to_f32,
    .softmax = softmax,
    .multiply_add = multiply_add,
    .unpack_panels = unpack_panels,
    .softmax_piece = softmax_piece,
    .matmul_nested = matmul_nested,
    .dequantize_nested = dequantize_nested,
};

}  // namespace weir::kernels::scalar
