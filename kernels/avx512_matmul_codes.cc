// Quantised weights with integer activations on CPUs with AVX-512 and its VNNI: sixteen rows in a vector; row by row
// the vectors stay as long as AVX2's, for reads of weights bound there.
#include "kernels/avx2.h"
#include "kernels/avx2_many.h"
#include "kernels/dpbusd.h"

namespace weir::kernels::avx2 {

void matmul_codes_avx512(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x,
                         size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    multiply_any<Dpbusd<Zmm>>(type, a, w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace weir::kernels::avx2
