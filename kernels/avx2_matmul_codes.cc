// Quantised weights with integer activations on any CPU that has AVX2.
#include "kernels/avx2.h"
#include "kernels/avx2_maddubs.h"
#include "kernels/avx2_many.h"

namespace weir::kernels::avx2 {

void matmul_codes(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                  size_t tokens, float* y, size_t y_stride) {
    multiply_any<Maddubs>(type, a, w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace weir::kernels::avx2
