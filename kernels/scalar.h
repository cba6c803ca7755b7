// The scalar kernels: the specification of every other table. Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"
#include "kernels/kernels.h"

namespace weir::kernels::scalar {

// 32 weights as integers: element i is scale[i / 16] * code[i] + min[i / 16].
struct Cell {
    float scale[2];
    float min[2];
    int8_t code[kCellElements];
};

// Weights [0, n) of one block row into n / 32 cells; n a multiple of the type's block, type not a float type.
void unpack(Type type, const uint8_t* src, size_t n, Cell* cells);

void quantize(Activation a, const float* x, size_t k, void* out);
void dequantize(Type type, const void* src, float* dst, size_t n);
void matmul(Type type, Activation a, const void* w, size_t rows, size_t k, const void* x,
            size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride);
void matmul_nested(Level level, Activation a, const NestedRows& w, size_t rows, size_t k, const void* x,
                   size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride);
void dequantize_nested(Level level, const NestedRows& row, float* dst, size_t k);

void unpack_panels(Type type, const void* panels, float* dst, size_t n);

extern const KernelSet kKernels;

}  // namespace weir::kernels::scalar
