// Quantised weights with int8 activations and the second byte of fine cells.
#include "kernels/avx2.h"
#include "kernels/avx2_tile.h"

namespace weir::kernels::avx2 {

void matmul_fine(Type type, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                  size_t tokens, float* y, size_t y_stride) {
    multiply_any<Fine>(type, w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace weir::kernels::avx2
