// The parts of the NEON tables, each from an object of its own. Three tables: what every 64-bit ARM CPU has, the same
// with dot products of bytes (FEAT_DotProd: Cortex-A55, A75 and later), and with products of matrices of bytes besides
// (FEAT_I8MM: Neoverse V1, Cortex-A510, A710 and later). They differ in the integer sums alone, which are exact, so
// that all three give the same bits. Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace weir::kernels::neon {

void quantize(Activation a, const float* x, size_t k, void* out);
void dequantize(Type type, const void* src, float* dst, size_t n);
void multiply_add(Type type, const float* x, size_t x_stride, size_t tokens, const void* b, size_t row_stride,
                  size_t panel_stride, size_t k, size_t n, float* y, size_t y_stride);
void unpack_panels(Type type, const void* panels, float* dst, size_t n);

// matmul() for float activations, and for the integer forms by each instruction set.
void matmul_floats(Type type, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes, size_t tokens,
                   float* y, size_t y_stride);
void matmul_codes(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                  size_t tokens, float* y, size_t y_stride);
void matmul_codes_dotprod(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x,
                          size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride);
void matmul_codes_i8mm(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x,
                       size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride);

extern const KernelSet kKernels;
extern const KernelSet kDotprodKernels;
extern const KernelSet kI8mmKernels;

}  // namespace weir::kernels::neon
