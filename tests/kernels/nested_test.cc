// Every table's nested kernels against the definition, in memory where each plane ends at a guard page and planes that the
// level does not read are not there at all.
#include <gtest/gtest.h>

#include <bit>
#include <tuple>

#include "tests/kernels/nested_fixture.h"

namespace weir::test {
namespace {

using Param = std::tuple<const KernelSet*, Level>;

class Nested : public testing::TestWithParam<Param> {
  protected:
    static const KernelSet& set() { return *std::get<0>(GetParam()); }
    static Level level() { return std::get<1>(GetParam()); }

    static std::vector<float> multiply(const NestedRows& w, Activation a, size_t rows, size_t k, const std::byte* x, size_t tokens) {
        std::vector<float> y(rows * tokens, -1.0f);
        set().matmul_nested(level(), a, w, rows, k, x, activation_bytes(a, k), tokens, y.data(), rows);
        return y;
    }

    void check(const NestedMatrix& w, Activation a, const std::vector<float>& x, size_t tokens) {
        const std::vector<std::byte> plain = pack(scalar_set(), a, x, w.k(), tokens);
        const Guarded<std::byte> packed(plain);
        const std::vector<float> y = multiply(w.view(level()), a, w.rows(), w.k(), packed.get(), tokens);
        std::vector<std::vector<double>> in;
        for (size_t t = 0; t < tokens; ++t) {
            in.push_back(unpack_activations(a, plain.data() + t * activation_bytes(a, w.k()), w.k()));
        }
        std::vector<double> weights(w.k());
        for (size_t r = 0; r < w.rows(); ++r) {
            for (size_t i = 0; i < w.k(); ++i) weights[i] = w.weight(level(), r, i);
            for (size_t t = 0; t < tokens; ++t) {
                const double* const x_of_t = in[t].data();
                double want = 0, size = 0;
                for (size_t i = 0; i < w.k(); ++i) {
                    want += weights[i] * x_of_t[i];
                    size += (std::fabs(weights[i]) + 0.1) * std::fabs(x_of_t[i]);  // a min may cancel most of a weight
                }
                ASSERT_NEAR(static_cast<double>(y[t * w.rows() + r]), want, 1e-5 * size + 1e-6)
                    << "k=" << w.k() << " row " << r << " token " << t << " of " << tokens << ' ' << name_of(a);
            }
        }
    }

    std::mt19937 rng_{29};
};

constexpr size_t kLengths[] = {32, 64, 96, 128, 224, 256, 288, 576, 640, 896, 1024, 1376, 2560};

TEST_P(Nested, DequantizesByTheDefinition) {
    for (const size_t k : kLengths) {
        for (const uint8_t steps : {1, 2, 3, 4}) {
            const NestedMatrix w(1, k, steps, static_cast<uint32_t>(k + steps));
            const GuardedBytes out(k * sizeof(float)), same(k * sizeof(float));
            set().dequantize_nested(level(), w.view(level()), out.as<float>(), k);
            scalar_set().dequantize_nested(level(), w.view(level()), same.as<float>(), k);
            for (size_t i = 0; i < k; ++i) {
                ASSERT_NEAR(static_cast<double>(out.as<float>()[i]), w.weight(level(), 0, i), 2e-6) << k << ' ' << i;
                ASSERT_EQ(std::bit_cast<uint32_t>(out.as<float>()[i]), std::bit_cast<uint32_t>(same.as<float>()[i]));
            }
        }
    }
}

TEST_P(Nested, MultipliesByTheDefinition) {
    for (const size_t k : kLengths) {
        const NestedMatrix w(k > 1000 ? 17 : 9, k, static_cast<uint8_t>(1 + k / 32 % 4), static_cast<uint32_t>(k), -1, k % 2);
        for (const Activation a : kActivations) {
            for (const size_t tokens : {1, 2, 5}) {
                std::vector<float> x = random_floats(k * tokens, 1.0f, rng_);
                for (size_t i = 0; i < x.size(); i += 97) x[i] *= 20;  // cells that stand out, and get a second byte
                check(w, a, x, tokens);
            }
        }
    }
}

// All codes at their greatest against activations at theirs, of one sign and of both: an int16 that saturated or an int32
// that overflowed would be far off.
TEST_P(Nested, ExtremesDoNotSaturate) {
    for (const int fill : {0x00, 0x0f, 0xf0, 0xff}) {
        const NestedMatrix w(2, 512, kMostFineSteps, 1, fill);
        for (const size_t period : {1, 2, 16, 1024}) {
            for (const float sign : {1.0f, -1.0f}) {
                for (const size_t tokens : {1, 4}) {
                    std::vector<float> x(512 * tokens);
                    for (size_t i = 0; i < x.size(); ++i) x[i] = i / period % 2 == 0 ? 100.0f * sign : -100.0f * sign;
                    for (const Activation a : {Activation::kInt8, Activation::kFine, Activation::kWhole}) check(w, a, x, tokens);
                    // One cell far above the others has both bytes at their extremes.
                    for (size_t i = 0; i < 32; ++i) x[i] *= 1000;
                    for (const Activation a : {Activation::kFine, Activation::kWhole}) check(w, a, x, tokens);
                }
            }
        }
    }
}

TEST_P(Nested, OutputsDoNotDependOnTheTile) {
    constexpr size_t kRows = 35, kTokens = 130;
    for (const size_t k : {size_t{640}, size_t{1344}}) {
        const NestedMatrix w(kRows, k, 3, 3);
        const NestedRows view = w.view(level());
        for (const Activation a : kActivations) {
            std::vector<float> input = random_floats(k * kTokens, 1.0f, rng_);
            for (size_t i = 0; i < input.size(); i += 331) input[i] *= 20;
            const std::vector<std::byte> x = pack(set(), a, input, k, kTokens);
            const size_t stride = activation_bytes(a, k);
            std::vector<float> alone(kRows * kTokens);
            for (size_t i = 0; i < alone.size(); ++i)
                alone[i] = multiply(view.from(i % kRows, k), a, 1, k, x.data() + i / kRows * stride, 1)[0];
            const auto compare = [&](size_t first_row, size_t rows, size_t first, size_t tokens) {
                const std::vector<float> y = multiply(view.from(first_row, k), a, rows, k, x.data() + first * stride, tokens);
                for (size_t i = 0; i < y.size(); ++i) {
                    ASSERT_EQ(std::bit_cast<uint32_t>(y[i]),
                              std::bit_cast<uint32_t>(alone[(first + i / rows) * kRows + first_row + i % rows]))
                        << k << ' ' << name_of(a) << " rows " << rows << " tokens " << tokens;
                }
            };
            for (size_t tokens = 1; tokens <= 9; ++tokens) compare(tokens % 5, 1 + tokens, tokens % 3, tokens);
            for (const size_t tokens : {17, 130}) compare(0, kRows, 0, tokens);
        }
    }
}

TEST_P(Nested, NothingTouchesNothing) {
    set().matmul_nested(level(), Activation::kInt8, {}, 0, 256, nullptr, 384, 0, nullptr, 0);
    set().matmul_nested(level(), Activation::kF32, {}, 0, 256, nullptr, 1024, 0, nullptr, 0);
}

std::vector<Param> params() {
    std::vector<Param> all;
    for (const KernelSet* set : runnable_sets()) {
        for (const Level level : kLevels) all.emplace_back(set, level);
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, Nested, testing::ValuesIn(params()), [](const auto& info) {
    return std::string(std::get<0>(info.param)->name) + "_Level" + std::to_string(static_cast<int>(std::get<1>(info.param)));
});

}  // namespace
}  // namespace weir::test
