// Quantised weights with integer activations by SMMLA: two rows of eight bytes times two tokens of eight, twice the
// products of SDOT. For one token at a time it gains nothing, and SDOT is taken.
#include "kernels/neon.h"
#include "kernels/neon_matmul_codes.h"

namespace weir::kernels::neon {
namespace {

[[gnu::always_inline]] inline int8x16_t low_halves(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
[[gnu::always_inline]] inline int8x16_t high_halves(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

struct MatrixProduct {
    template <int>
    [[gnu::always_inline]] static int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t x) {
        return vdotq_s32(sum, w, x);
    }

    // v[2 * p] and v[2 * p + 1]: the first and the last eight columns of rows 2 * p and 2 * p + 1.
    [[gnu::always_inline]] static void arrange(int8x16_t (&v)[8]) {
        for (size_t i = 0; i < 8; i += 2) {
            const int8x16_t first = low_halves(v[i], v[i + 1]);
            v[i + 1] = high_halves(v[i], v[i + 1]);
            v[i] = first;
        }
    }

    // A token without a partner is its own.
    template <size_t T>
    struct Sums {
        static_assert(T == 1 || T % 2 == 0);
        static constexpr size_t kPairs = (T + 1) / 2;
        int32x4_t pairs[kPairs][4];  // [two tokens][two rows]: row by row, two tokens of each

        [[gnu::always_inline]] void clear() {
            for (auto& tokens : pairs) {
                for (int32x4_t& sum : tokens) sum = zeros();
            }
        }
        [[gnu::always_inline]] void times_high_unit() {
            for (auto& tokens : pairs) {
                for (int32x4_t& sum : tokens) sum = vmulq_n_s32(sum, kHighUnit);
            }
        }
        template <int>
        [[gnu::always_inline]] void add(const int8x16_t (&w)[8], const char* const (&x)[T], size_t at) {
            for (size_t i = 0; i < kPairs; ++i) {
                const int8x16_t a = codes_at(x[2 * i] + at);
                const int8x16_t b = T == 1 ? a : codes_at(x[T == 1 ? 0 : 2 * i + 1] + at);
                const int8x16_t first = low_halves(a, b), second = high_halves(a, b);
                for (size_t p = 0; p < 4; ++p) {
                    pairs[i][p] = vmmlaq_s32(vmmlaq_s32(pairs[i][p], w[2 * p], first), w[2 * p + 1], second);
                }
            }
        }
        [[gnu::always_inline]] Eight floats(size_t t) const {
            const auto& v = pairs[t / 2];
            if (t % 2 == 0) return floats_of(vuzp1q_s32(v[0], v[1]), vuzp1q_s32(v[2], v[3]));
            return floats_of(vuzp2q_s32(v[0], v[1]), vuzp2q_s32(v[2], v[3]));
        }
    };
};

}  // namespace

void matmul_codes_i8mm(Type type, Activation a, const void* w, size_t rows, size_t k, const char* x,
                       size_t x_stride_bytes, size_t tokens, float* y, size_t y_stride) {
    multiply_any<MatrixProduct>(type, a, w, rows, k, x, x_stride_bytes, tokens, y, y_stride);
}

}  // namespace weir::kernels::neon
