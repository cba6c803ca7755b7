// Quantised weights with integer activations on any 64-bit ARM CPU: products of bytes in int16, added up there as far
// as they fit.
#include "kernels/neon_matmul_codes.h"

#include "kernels/neon.h"

namespace weir::kernels::neon {
namespace {

struct Multiply {
    // How many products of at most kMax an int16 holds, of four.
    static constexpr int fitting(int max) { return 4 * max <= INT16_MAX ? 4 : 2 * max <= INT16_MAX ? 2 : 1; }

    template <int kMax>
    [[gnu::always_inline]] static int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t x) {
        const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
        if constexpr (fitting(kMax) >= 2) return vpadalq_s16(sum, vmlal_high_s8(low, w, x));
        return vpadalq_s16(vpadalq_s16(sum, low), vmull_high_s8(w, x));
    }

    [[gnu::always_inline]] static void arrange(int8x16_t (&v)[8]) { arrange_fours(v); }

    template <size_t T>
    struct Sums : SumsOfRows<T> {
        template <int kMax>
        [[gnu::always_inline]] void add(const int8x16_t (&w)[8], const char* const (&x)[T], size_t at) {
            for (size_t t = 0; t < T; ++t) {
                const int32x4_t a = vreinterpretq_s32_s8(codes_at(x[t] + at));
                const int8x16_t four[4] = {
                    vreinterpretq_s8_s32(vdupq_laneq_s32(a, 0)), vreinterpretq_s8_s32(vdupq_laneq_s32(a, 1)),
                    vreinterpretq_s8_s32(vdupq_laneq_s32(a, 2)), vreinterpretq_s8_s32(vdupq_laneq_s32(a, 3))};
                for (size_t q = 0; q < 2; ++q) add_four_rows<kMax>(w + 4 * q, four, this->rows[t][q]);
            }
        }

      private:
        // Two rows in each of `low` and `high`, in pairs of columns.
        template <int kMax>
        [[gnu::always_inline]] static void add_four_rows(const int8x16_t* w, const int8x16_t (&x)[4], int32x4_t& sum) {
            constexpr size_t kSteps = fitting(kMax);
            for (size_t first = 0; first < 4; first += kSteps) {
                int16x8_t low = vmull_s8(vget_low_s8(w[first]), vget_low_s8(x[first]));
                int16x8_t high = vmull_high_s8(w[first], x[first]);
                for (size_t i = first + 1; i < first + kSteps; ++i) {
                    low = vmlal_s8(low, vget_low_s8(w[i]), vget_low_s8(x[i]));
                    high = vmlal_high_s8(high, w[i], x[i]);
                }
                sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
            }
        }
    };
};

}  // namespace

void matmul_codes(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x, size_t x_stride_bytes,
                  size_t tokens, float* y, size_t y_stride) {
    multiply_any<Multiply>(type, a, w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace weir::kernels::neon
