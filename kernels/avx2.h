// The parts of the AVX2+FMA+F16C table, each from an object of its own, and of those that differ from it in their
// products of integers alone. Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace weir::kernels::avx2 {

void quantize(Activation a, const float* x, size_t k, void* out);
void dequantize(Type type, const void* src, float* dst, size_t n);

// matmul() for integer activations, by the instructions that the CPU has, and for float ones.
using MatmulCodes = void(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x,
                         size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride);
MatmulCodes matmul_codes, matmul_codes_avx_vnni, matmul_codes_avx512;
void matmul_floats(Type type, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                   size_t tokens, float* y, size_t y_stride);

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y);
void swiglu(const float* gate, const float* up, size_t n, float* out);
void geglu(const float* gate, const float* up, size_t n, float* out);
void soft_cap(float* x, size_t n, float cap);
void add(float* x, const float* y, size_t n);
float dot_f32(const float* a, const float* b, size_t n);
void axpy_f32(float s, const float* v, size_t n, float* acc);
void f32_to_f16(const float* x, size_t n, uint16_t* y);
void f16_to_f32(const uint16_t* x, size_t n, float* y);
void softmax(float* x, size_t n);
float softmax_piece(float* x, size_t n, float* max, float* sum);

void multiply_add(Type type, const float* x, size_t x_stride, size_t tokens, const void* b, size_t row_stride,
                  size_t panel_stride, size_t k, size_t n, float* y, size_t y_stride);
void unpack_panels(Type type, const void* panels, float* dst, size_t n);

void matmul_nested(Level level, Activation a, const NestedRows& w, size_t rows, size_t k, const void* x,
                   size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride);
void dequantize_nested(Level level, const NestedRows& row, float* dst, size_t k);

extern const KernelSet kKernels, kAvxVnniKernels, kAvx512Kernels;

}  // namespace weir::kernels::avx2
