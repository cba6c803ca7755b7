// Products of every type with every form of activations, of every table, against dequantised weights and
// activations multiplied in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "tests/kernels/fixture.h"

namespace weir::test {
namespace {

constexpr float kUntouched = 123456.0f;

using Param = std::tuple<const KernelSet*, TypeTraits, Activation>;

class Matmul : public testing::TestWithParam<Param> {
  protected:
    const KernelSet& set() const { return *std::get<0>(GetParam()); }
    const TypeTraits& type() const { return std::get<1>(GetParam()); }
    Activation form() const { return std::get<2>(GetParam()); }

    struct Case {
        size_t rows, k, tokens;
        size_t w_before_end = 0, x_before_end = 0;  // bytes between the data's end and the guard page
    };

    // Runs the case and compares each output with the reference.
    void check(const Case& c, const std::vector<std::byte>& weights, const std::vector<std::byte>& packed) {
        const size_t x_bytes = activation_bytes(form(), c.k);
        const GuardedBytes w(weights.size(), c.w_before_end);
        if (!weights.empty()) std::memcpy(w.data(), weights.data(), weights.size());
        // float activations end at their last element: the rest of the row's 64 bytes need not be there
        const size_t used = form() == Activation::kF32 ? (c.tokens - 1) * x_bytes + c.k * 4 : packed.size();
        const GuardedBytes x(used, c.x_before_end);
        if (used != 0) std::memcpy(x.data(), packed.data(), used);

        const size_t y_stride = c.rows + 3;
        std::vector<float> y(c.tokens * y_stride, kUntouched);
        set().matmul(type().type, form(), w.data(), c.rows, c.k, x.data(), x_bytes, c.tokens, y.data(),
                     y_stride);

        std::vector<std::vector<double>> values;
        std::vector<double> magnitudes;
        for (size_t t = 0; t < c.tokens; ++t) {
            values.push_back(unpack_activations(form(), packed.data() + t * x_bytes, c.k));
            double magnitude = 0;
            for (const double v : values.back()) magnitude += std::fabs(v);
            magnitudes.push_back(magnitude);
        }
        std::vector<float> row(c.k);
        for (size_t r = 0; r < c.rows; ++r) {
            scalar_set().dequantize(type().type, weights.data() + r * row_bytes(type().type, c.k), row.data(),
                                    c.k);
            float largest = 0;
            for (const float v : row) largest = std::max(largest, std::fabs(v));
            for (size_t t = 0; t < c.tokens; ++t) {
                const double* const x_of_t = values[t].data();
                double want = 0;
                for (size_t i = 0; i < c.k; ++i) want += static_cast<double>(row[i]) * x_of_t[i];
                const double allowed = 1e-6 * static_cast<double>(largest) * magnitudes[t] + 1e-37;
                ASSERT_NEAR(static_cast<double>(y[t * y_stride + r]), want, allowed)
                    << "k=" << c.k << " row " << r << " of " << c.rows << " token " << t << " of "
                    << c.tokens;
            }
        }
        for (size_t t = 0; t < c.tokens; ++t) {
            for (size_t r = c.rows; r < y_stride; ++r) ASSERT_EQ(y[t * y_stride + r], kUntouched);
        }
    }

    std::vector<std::byte> random_packed(size_t k, size_t tokens) {
        return pack(scalar_set(), form(), random_floats(k * tokens, 1.0f, rng_), k, tokens);
    }

    std::mt19937 rng_{23};
};

TEST_P(Matmul, MatchesTheReferenceAtEveryLength) {
    for (const size_t k : row_lengths(type().type)) {
        for (const size_t tokens : {1, 2, 5}) {
            const size_t rows = k >= 1000 ? 9 : 10;
            check({rows, k, tokens}, random_weights(type().type, rows * k, rng_), random_packed(k, tokens));
        }
    }
}

TEST_P(Matmul, TakesAnyAlignment) {
    const size_t k = type().block_elements == 256 ? 512 : 288;
    for (const size_t shift : {1, 2, 3, 7, 13}) {
        for (const size_t tokens : {1, 6}) {
            check({5, k, tokens, shift, shift}, random_weights(type().type, 5 * k, rng_),
                  random_packed(k, tokens));
        }
    }
}

TEST_P(Matmul, NoRowsOrNoTokensTouchNothing) {
    set().matmul(type().type, form(), nullptr, 0, 256, nullptr, 384, 0, nullptr, 0);
    const std::vector<std::byte> x = random_packed(256, 1);
    set().matmul(type().type, form(), nullptr, 0, 256, x.data(), x.size(), 1, nullptr, 0);
}

// Codes and integer scales at their extremes against activations at theirs: an int16 or int32 that overflowed
// would be far off. Every byte of the block takes the value, the halves stay 1.
TEST_P(Matmul, ExtremesDoNotSaturate) {
    const size_t k = 512;
    for (const int fill : {0x00, 0x7f, 0x80, 0x81, 0xff, 0xf0, 0x0f}) {
        std::vector<std::byte> w = random_weights(type().type, 2 * k, rng_);
        if (type().block_elements != 1) {
            std::fill(w.begin(), w.end(), static_cast<std::byte>(fill));
            for (size_t at = 0; at < w.size(); at += type().block_bytes) {
                for (const size_t offset : half_offsets(type().type)) {
                    put_half(type().type, w.data() + at, offset, 0x3c00);  // one
                }
            }
        }
        for (const size_t period : {1, 2, 3, 4, 16}) {
            for (const size_t tokens : {1, 4, 8}) {  // eight: row beside row
                std::vector<float> x(k * tokens);
                for (size_t i = 0; i < x.size(); ++i) x[i] = i / period % 2 == 0 ? 100.0f : -100.0f;
                if (period == 1) std::fill(x.begin(), x.end(), fill % 2 == 0 ? 100.0f : -100.0f);
                check({2, k, tokens}, w, pack(scalar_set(), form(), x, k, tokens));
            }
        }
    }
}

TEST_P(Matmul, NonFiniteActivationsPoisonTheirTokenOnly) {
    const size_t k = 512, rows = 9;
    for (const size_t tokens : {1, 2, 5}) {
        for (const float bad :
             {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            for (const size_t at : {size_t{0}, size_t{100}, k - 1}) {
                std::vector<float> x = random_floats(k * tokens, 1.0f, rng_);
                x[k * (tokens - 1) + at] = bad;
                const std::vector<std::byte> w = random_weights(type().type, rows * k, rng_);
                std::vector<float> y(rows * tokens);
                const std::vector<std::byte> packed = pack(set(), form(), x, k, tokens);
                set().matmul(type().type, form(), w.data(), rows, k, packed.data(),
                             activation_bytes(form(), k), tokens, y.data(), rows);
                for (size_t i = 0; i < y.size(); ++i)
                    EXPECT_EQ(std::isfinite(y[i]), i / rows != tokens - 1) << i;
            }
        }
    }
}

TEST_P(Matmul, NonFiniteWeightsPoisonTheirRowOnly) {
    if (type().type == Type::kMXFP4) return;  // has no infinite scales
    const size_t k = 512, rows = 9;
    const std::vector<std::byte> packed = random_packed(k, 5);
    for (const uint16_t bad : {0x7c00, 0x7e00, 0xfc00}) {
        std::vector<std::byte> w = random_weights(type().type, rows * k, rng_);
        const size_t bytes = row_bytes(type().type, k);
        for (const size_t offset : half_offsets(type().type)) {
            const uint16_t value = type().type == Type::kBF16 || type().type == Type::kF32
                                       ? static_cast<uint16_t>(bad == 0x7c00   ? 0x7f80
                                                               : bad == 0x7e00 ? 0x7fc0
                                                                               : 0xff80)
                                       : bad;
            const size_t within = type().type == Type::kF32 ? 2 : offset;  // the upper half of a float
            put_half(type().type, w.data() + 4 * bytes + type().block_bytes, within, value);
        }
        for (const size_t tokens : {1, 5}) {
            std::vector<float> y(rows * tokens);
            set().matmul(type().type, form(), w.data(), rows, k, packed.data(), activation_bytes(form(), k),
                         tokens, y.data(), rows);
            for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i % rows != 4) << i;
        }
    }
}

TEST_P(Matmul, SubnormalScalesCount) {
    const size_t k = 512;
    std::vector<std::byte> w = random_weights(type().type, 3 * k, rng_);
    for (size_t at = 0; at < w.size(); at += type().block_bytes) {
        for (const size_t offset : half_offsets(type().type)) {
            const uint16_t small =
                static_cast<uint16_t>(rng_() % 0x400);  // subnormal as half and as bfloat16
            if (type().type == Type::kF32) {
                const uint32_t tiny = small;
                std::memcpy(w.data() + at, &tiny, sizeof tiny);
            } else {
                put_half(type().type, w.data() + at, offset, small);
            }
        }
    }
    check({3, k, 1}, w, random_packed(k, 1));
    check({3, k, 5}, w, random_packed(k, 5));
}

std::vector<Param> params() {
    std::vector<Param> all;
    for (const KernelSet* set : runnable_sets()) {
        for (const TypeTraits& t : all_traits()) {
            for (const Activation a : kActivations) {
                if (activation_for(t.type, 256, a) == a) all.emplace_back(set, t, a);
            }
        }
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, Matmul, testing::ValuesIn(params()), [](const auto& info) {
    return std::string(std::get<0>(info.param)->name) + '_' + std::get<1>(info.param).name + '_' +
           name_of(std::get<2>(info.param));
});

}  // namespace
}  // namespace weir::test
