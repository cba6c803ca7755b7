// Quantised weights with integer activations by SDOT: four products of bytes added to an int32.
#include "kernels/neon.h"
#include "kernels/neon_matmul_codes.h"

namespace weir::kernels::neon {
namespace {

struct DotProduct {
    template <int>
    [[gnu::always_inline]] static int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t x) {
        return vdotq_s32(sum, w, x);
    }

    [[gnu::always_inline]] static void arrange(int8x16_t (&v)[8]) { arrange_fours(v); }

    template <size_t T>
    struct Sums : SumsOfRows<T> {
        template <int>
        [[gnu::always_inline]] void add(const int8x16_t (&w)[8], const char* const (&x)[T], size_t at) {
            int8x16_t a[T];
            for (size_t t = 0; t < T; ++t) a[t] = codes_at(x[t] + at);
            for (size_t q = 0; q < 2; ++q) {
                for (size_t t = 0; t < T; ++t) {
                    int32x4_t& sum = this->rows[t][q];
                    sum = vdotq_laneq_s32(sum, w[4 * q], a[t], 0);
                    sum = vdotq_laneq_s32(sum, w[4 * q + 1], a[t], 1);
                    sum = vdotq_laneq_s32(sum, w[4 * q + 2], a[t], 2);
                    sum = vdotq_laneq_s32(sum, w[4 * q + 3], a[t], 3);
                }
            }
        }
    };
};

}  // namespace

void matmul_codes_dotprod(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x,
                          size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    multiply_any<DotProduct>(type, a, w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace weir::kernels::neon
