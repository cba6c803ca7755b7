// Quantised weights with int8 activations.
#include "kernels/avx2.h"
#include "kernels/avx2_tile.h"

namespace weir::kernels::avx2 {

void matmul_int8(Type type, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                 size_t tokens, float* y, size_t y_stride) {
    multiply_any<Int8>(type, w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace weir::kernels::avx2
