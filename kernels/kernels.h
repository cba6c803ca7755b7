// The arithmetic of the decoder, one table of functions per instruction set. select_kernels() returns the best
// table that this CPU can run; scalar is the specification and the last row. All functions are pure, thread
// safe and allocate nothing. A void pointer may have any alignment, a typed one its type's.
//
// One rule stands above speed: the value of an output depends on its weight row and its activation row alone.
// How many rows or tokens are computed by one call, and by which thread, never changes a bit: every dot product
// sums its blocks in one fixed order, whatever the tile around it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/nested.h"
#include "kernels/types.h"

namespace weir::kernels {

// How an activation row is held while it meets quantised weights.
enum class Activation : uint8_t {
    kF32,    // as it is; weights are dequantised on the fly
    kInt8,   // blocks of 32 int8 with a float scale
    kFine,  // the same, and a second byte in the blocks that stand out of their row: near kInt8's cost, half its error
    kWhole,  // the same with a second byte in all blocks: near kF32's answers; for many tokens at kFine's cost
};

struct KernelSet {
    const char* name;  // "scalar", "avx2", "neon", ...

    // Packs x[k] floats into out, activation_bytes(a, k) bytes. Non-finite inputs give non-finite outputs of matmul.
    void (*quantize)(Activation a, const float* x, size_t k, void* out);

    // y[t * y_stride + r] = sum over i of W[r, i] * x[t, i], for r < rows, t < tokens.
    // w: rows of row_bytes(type, k) bytes, back to back. x: row t at (char*)x + t * x_stride_bytes, as quantize()
    // packed it, in the form activation_for(type, wanted). y_stride in floats.
    void (*matmul)(Type type, Activation a, const void* w, size_t rows, size_t k, const void* x, size_t x_stride_bytes,
                   size_t tokens, float* y, size_t y_stride);

    // dst[n] floats from n elements of src; n a multiple of the type's block_elements.
    void (*dequantize)(Type type, const void* src, float* dst, size_t n);

    // y[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps). y may be x. (Zhang & Sennrich 2019)
    void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* y);

    // out[i] = silu(gate[i]) * up[i]; out may be gate. (Shazeer 2020, SwiGLU)
    void (*swiglu)(const float* gate, const float* up, size_t n, float* out);

    // The same with gelu in the place of silu, in its usual approximation by tanh (Hendrycks & Gimpel 2016; GeGLU).
    void (*geglu)(const float* gate, const float* up, size_t n, float* out);

    // x[i] = cap * tanh(x[i] / cap), for cap > 0. (Gemma Team 2024)
    void (*soft_cap)(float* x, size_t n, float cap);

    // x[i] += y[i]
    void (*add)(float* x, const float* y, size_t n);

    // Sum of a[i] * b[i].
    float (*dot_f32)(const float* a, const float* b, size_t n);

    // acc[i] += s * v[i]
    void (*axpy_f32)(float s, const float* v, size_t n, float* acc);

    // Round to nearest even, and back.
    void (*f32_to_f16)(const float* x, size_t n, uint16_t* y);
    void (*f16_to_f32)(const uint16_t* x, size_t n, float* y);

    // x[i] = exp(x[i] - max) / sum; returns nothing. n >= 1.
    void (*softmax)(float* x, size_t n);

    // y[t * y_stride + j] += sum over i < k of x[t * x_stride + i] * b(i, j), for t < tokens, j < n, by fused multiply-add
    // and ascending i: every table gives the same bits. b(i, j) lies at b[i * row_stride + j / 8 * panel_stride + j % 8],
    // floats or halves (type: kF32, kF16); strides in elements.
    void (*multiply_add)(Type type, const float* x, size_t x_stride, size_t tokens, const void* b, size_t row_stride,
                         size_t panel_stride, size_t k, size_t n, float* y, size_t y_stride);

    // dst[n] floats from panels of eight quantised rows (see panels.h): element i of row r of a panel goes to [i * 8 + r] of its
    // part. Types: Q8_0, Q4_0; n a multiple of 256. Exact: a half times a code fits a float.
    void (*unpack_panels)(Type type, const void* panels, float* dst, size_t n);

    // The next n >= 1 values of a softmax that is computed piece by piece (Milakov & Gimelshein 2018): x[i] = exp(x[i] -
    // m), where m is the larger of *max and the largest x. Returns f = exp(*max - m), which everything made with the old
    // *max is to be multiplied with; *sum = *sum * f + sum of the new x; *max = m. Begins with -infinity and 0.
    float (*softmax_piece)(float* x, size_t n, float* max, float* sum);

    // matmul() and dequantize() of nested rows (kernels/nested.h) at a level, straight from its planes; k a multiple of 32,
    // and any form of activations.
    void (*matmul_nested)(Level level, Activation a, const NestedRows& w, size_t rows, size_t k, const void* x,
                          size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride);
    void (*dequantize_nested)(Level level, const NestedRows& row, float* dst, size_t k);
};

// The form in which activations meet weights of this type: float weights always take kF32, and rows that are no
// multiple of 32 do too.
Activation activation_for(Type type, size_t k, Activation wanted) noexcept;

// Bytes of a packed activation row of k elements, a multiple of 64.
size_t activation_bytes(Activation a, size_t k) noexcept;

// The best table that this CPU runs, or the one that `forced` names ("" or nullptr: no wish; main passes the
// environment's WEIR_KERNELS). nullptr where the forced name is unknown or cannot run here.
const KernelSet* select_kernels(const char* forced) noexcept;

// Names of the tables compiled in, best first, nullptr-terminated, for messages.
const char* const* kernel_set_names() noexcept;

}  // namespace weir::kernels
