// The operations between matrix products, of every table, against double: awkward lengths, ends at a guard
// page, NaN and infinities, in place.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/panels.h"
#include "tests/kernels/fixture.h"

namespace weir::test {
namespace {

constexpr size_t kLengths[] = {1, 2, 7, 8, 9, 31, 32, 33, 64, 253, 256, 576, 4096};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

double d(float x) {
    return static_cast<double>(x);
}

class Ops : public testing::TestWithParam<const KernelSet*> {
  protected:
    const KernelSet& set() const { return *GetParam(); }
    std::mt19937 rng_{17};
};

TEST_P(Ops, RmsNorm) {
    for (const size_t n : kLengths) {
        const Guarded<float> x(random_floats(n, 3.0f, rng_)), w(random_floats(n, 1.0f, rng_));
        const GuardedBytes y(n * sizeof(float));
        set().rms_norm(x.get(), w.get(), n, 1e-5f, y.as<float>());
        double squares = 0;
        for (size_t i = 0; i < n; ++i) squares += d(x.get()[i]) * d(x.get()[i]);
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + d(1e-5f));
        for (size_t i = 0; i < n; ++i) {
            const double want = d(x.get()[i]) * factor * d(w.get()[i]);
            EXPECT_NEAR(d(y.as<float>()[i]), want, std::fabs(want) * 3e-7) << n;
        }
        const std::vector<float> apart(y.as<float>(), y.as<float>() + n);
        set().rms_norm(x.get(), w.get(), n, 1e-5f, x.get());
        EXPECT_EQ(std::memcmp(x.get(), apart.data(), n * sizeof(float)), 0) << "in place, n=" << n;
    }
}

TEST_P(Ops, RmsNormOfLargeAndOfZero) {
    std::vector<float> x(40, 1e30f), w(40, 1.0f), y(40);
    set().rms_norm(x.data(), w.data(), 40, 1e-5f, y.data());
    for (const float v : y) EXPECT_NEAR(v, 1.0f, 1e-6f);  // squares are beyond a float's range
    std::fill(x.begin(), x.end(), 0.0f);
    set().rms_norm(x.data(), w.data(), 40, 1e-5f, y.data());
    for (const float v : y) EXPECT_EQ(v, 0.0f);
    x[39] = kNan;
    set().rms_norm(x.data(), w.data(), 40, 1e-5f, y.data());
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
}

TEST_P(Ops, Swiglu) {
    for (const size_t n : kLengths) {
        const Guarded<float> gate(random_floats(n, 8.0f, rng_)), up(random_floats(n, 2.0f, rng_));
        const GuardedBytes out(n * sizeof(float));
        set().swiglu(gate.get(), up.get(), n, out.as<float>());
        for (size_t i = 0; i < n; ++i) {
            const double g = d(gate.get()[i]);
            const double want = g / (1.0 + std::exp(-g)) * d(up.get()[i]);
            EXPECT_NEAR(d(out.as<float>()[i]), want, std::fabs(want) * 6e-7) << n;
        }
        const std::vector<float> apart(out.as<float>(), out.as<float>() + n);
        set().swiglu(gate.get(), up.get(), n, gate.get());
        EXPECT_EQ(std::memcmp(gate.get(), apart.data(), n * sizeof(float)), 0) << "in place, n=" << n;
    }
}

TEST_P(Ops, SwigluAtTheEnds) {
    const std::vector<float> gate = {-1e38f, -1000.0f, -104.0f, -88.0f, 0.0f, 88.0f, 1000.0f, 1e30f, kNan};
    const std::vector<float> up(gate.size(), 1.0f);
    std::vector<float> out(gate.size());
    set().swiglu(gate.data(), up.data(), gate.size(), out.data());
    for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isfinite(out[i])) << gate[i];
    for (size_t i = 0; i < 4; ++i) EXPECT_LE(std::fabs(out[i]), 1e-30f) << gate[i];
    EXPECT_EQ(out[6], 1000.0f);
    EXPECT_TRUE(std::isnan(out[8]));
}

TEST_P(Ops, Geglu) {
    for (const size_t n : kLengths) {
        const Guarded<float> gate(random_floats(n, 4.0f, rng_)), up(random_floats(n, 2.0f, rng_));
        const GuardedBytes out(n * sizeof(float));
        set().geglu(gate.get(), up.get(), n, out.as<float>());
        for (size_t i = 0; i < n; ++i) {
            const double g = d(gate.get()[i]);
            const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
            const double want = g / (1 + std::exp(-2 * u)) * d(up.get()[i]);
            // The exponent is rounded: what is far below zero loses as many bits as it has.
            EXPECT_NEAR(d(out.as<float>()[i]), want, std::fabs(want) * (1e-6 + 6e-7 * std::fabs(u)) + 1e-38) << n;
        }
        const std::vector<float> apart(out.as<float>(), out.as<float>() + n);
        set().geglu(gate.get(), up.get(), n, gate.get());
        EXPECT_EQ(std::memcmp(gate.get(), apart.data(), n * sizeof(float)), 0) << "in place, n=" << n;
    }
}

TEST_P(Ops, GegluAtTheEnds) {
    const std::vector<float> gate = {-1e38f, -1000.0f, -20.0f, 0.0f, 20.0f, 1000.0f, 1e30f, kNan};
    const std::vector<float> up(gate.size(), 1.0f);
    std::vector<float> out(gate.size());
    set().geglu(gate.data(), up.data(), gate.size(), out.data());
    for (size_t i = 0; i < 4; ++i) EXPECT_LE(std::fabs(out[i]), 1e-30f) << gate[i];
    for (size_t i = 4; i < 7; ++i) EXPECT_EQ(out[i], gate[i]);
    EXPECT_TRUE(std::isnan(out[7]));
}

TEST_P(Ops, SoftCap) {
    for (const size_t n : kLengths) {
        for (const float cap : {30.0f, 50.0f}) {
            const Guarded<float> x(random_floats(n, 60.0f, rng_));
            const std::vector<float> before(x.get(), x.get() + n);
            set().soft_cap(x.get(), n, cap);
            for (size_t i = 0; i < n; ++i) {
                EXPECT_NEAR(d(x.get()[i]), d(cap) * std::tanh(d(before[i]) / d(cap)), d(cap) * 3e-7) << n;
            }
        }
    }
    std::vector<float> ends = {-kInfinity, -1e38f, 0.0f, 1e38f, kInfinity, kNan};
    set().soft_cap(ends.data(), ends.size(), 30.0f);
    EXPECT_EQ(std::vector<float>(ends.begin(), ends.end() - 1), (std::vector<float>{-30.0f, -30.0f, 0.0f, 30.0f, 30.0f}));
    EXPECT_TRUE(std::isnan(ends.back()));
}

TEST_P(Ops, AddAndAxpy) {
    for (const size_t n : kLengths) {
        const std::vector<float> a = random_floats(n, 1.0f, rng_), b = random_floats(n, 1.0f, rng_);
        const Guarded<float> v(b);
        const Guarded<float> sum(a), plain(a);
        set().add(sum.get(), v.get(), n);
        set().axpy_f32(0.37f, v.get(), n, plain.get());
        for (size_t i = 0; i < n; ++i) {
            EXPECT_EQ(sum.get()[i], a[i] + b[i]);
            EXPECT_NEAR(d(plain.get()[i]), d(a[i]) + d(0.37f) * d(b[i]),
                        2e-7 * (std::fabs(d(a[i])) + std::fabs(d(b[i]))));
        }
    }
}

TEST_P(Ops, Dot) {
    EXPECT_EQ(set().dot_f32(nullptr, nullptr, 0), 0.0f);
    for (const size_t n : kLengths) {
        const Guarded<float> a(random_floats(n, 1.0f, rng_)), b(random_floats(n, 1.0f, rng_));
        double want = 0, magnitude = 0;
        for (size_t i = 0; i < n; ++i) {
            want += d(a.get()[i]) * d(b.get()[i]);
            magnitude += std::fabs(d(a.get()[i]) * d(b.get()[i]));
        }
        EXPECT_NEAR(d(set().dot_f32(a.get(), b.get(), n)), want, 1e-6 * magnitude) << n;
        a.get()[n - 1] = kNan;
        EXPECT_TRUE(std::isnan(set().dot_f32(a.get(), b.get(), n)));
    }
}

// Matrices as attention has them: keys in panels of eight columns, values in rows. The same bits as the chain of fused
// multiplications, in every table.
TEST_P(Ops, MultiplyAddIsOneChain) {
    const size_t k = 21;
    for (const size_t n : {0, 1, 7, 8, 16, 24, 33, 64, 70}) {
        for (const size_t tokens : {0, 1, 3, 4, 5, 17}) {
            for (const bool panels : {false, true}) {
                const size_t panel_stride = panels ? 8 * k : 8, row_stride = panels ? 8 : n;
                const size_t elements = panels ? (n + 7) / 8 * 8 * k : n * k;
                const Guarded<float> b(random_floats(elements, 1.0f, rng_)), x(random_floats(tokens * k, 1.0f, rng_));
                std::vector<uint16_t> halves(elements);
                for (size_t i = 0; i < elements; ++i) halves[i] = float_to_half(b.get()[i]);
                const Guarded<uint16_t> h(halves);
                for (const Type type : {Type::kF32, Type::kF16}) {
                    const std::vector<float> start = random_floats(tokens * n, 1.0f, rng_);
                    const Guarded<float> y(start);
                    const void* matrix = type == Type::kF16 ? static_cast<const void*>(h.get()) : b.get();
                    set().multiply_add(type, x.get(), k, tokens, matrix, row_stride, panel_stride, k, n, y.get(), n);
                    for (size_t at = 0; at < tokens * n; ++at) {
                        float want = start[at];
                        for (size_t i = 0; i < k; ++i) {
                            const size_t place = i * row_stride + at % n / 8 * panel_stride + at % n % 8;
                            const float value = type == Type::kF16 ? half_to_float(halves[place]) : b.get()[place];
                            want = std::fma(x.get()[at / n * k + i], value, want);
                        }
                        ASSERT_EQ(y.get()[at], want) << n << ' ' << tokens << ' ' << at;
                    }
                }
            }
        }
    }
}

// Eight rows of their own scales through a panel are what each is by itself, whichever came first.
TEST_P(Ops, PanelsOfQuantisedRows) {
    for (const Type type : {Type::kQ8_0, Type::kQ4_0}) {
        for (const size_t n : {32, 64, 96, 256}) {
            const Guarded<std::byte> panel(std::vector<std::byte>(8 * row_bytes(type, n), std::byte{0x5a}));
            const GuardedBytes got(8 * n * sizeof(float));
            std::vector<float> want(8 * n);
            for (const size_t r : {3, 0, 7, 1, 2, 6, 4, 5}) {
                const Guarded<float> values(random_floats(n, r == 6 ? 1e-7f : static_cast<float>(r * r) + 0.5f, rng_));
                if (r == 5) values.get()[1] = 1e30f;  // a scale of infinity
                const GuardedBytes row(row_bytes(type, n));
                quantize_weights(type, values.get(), row.data(), n);
                place_in_panel(type, row.data(), n, r, panel.data());
                std::vector<float> floats(n);
                select_kernels("scalar")->dequantize(type, row.data(), floats.data(), n);
                for (size_t i = 0; i < n; ++i) want[8 * i + r] = floats[i];
            }
            set().unpack_panels(type, panel.data(), got.as<float>(), 8 * n);
            for (size_t i = 0; i < 8 * n; ++i) {
                if (std::isnan(want[i])) {
                    ASSERT_TRUE(std::isnan(got.as<float>()[i])) << n << ' ' << i;
                } else {
                    ASSERT_EQ(got.as<float>()[i], want[i]) << n << ' ' << i;
                }
            }
        }
    }
}

TEST_P(Ops, PanelsOfFloats) {
    const std::vector<float> row = random_floats(24, 1.0f, rng_);
    const Guarded<float> panel(std::vector<float>(8 * 24, 7.0f));
    place_in_panel(Type::kF32, row.data(), 24, 5, panel.get());
    for (size_t i = 0; i < 8 * 24; ++i) EXPECT_EQ(panel.get()[i], i % 8 == 5 ? row[i / 8] : 7.0f);
    std::vector<uint16_t> halves(24), in_panel(8 * 24);
    set().f32_to_f16(row.data(), 24, halves.data());
    place_in_panel(Type::kF16, halves.data(), 24, 2, in_panel.data());
    for (size_t i = 0; i < 24; ++i) EXPECT_EQ(in_panel[8 * i + 2], halves[i]);
}

TEST_P(Ops, SoftmaxInPieces) {
    for (const size_t n : kLengths) {
        if (n == 0) continue;
        std::vector<float> whole = random_floats(n, 5.0f, rng_), x = whole;
        double largest = -1e30, total = 0;
        for (const float v : whole) largest = std::max(largest, d(v));
        for (const float v : whole) total += std::exp(d(v) - largest);
        float max = -std::numeric_limits<float>::infinity(), sum = 0;
        std::vector<double> weights;
        for (size_t at = 0; at < n; at += 64) {
            const size_t count = std::min<size_t>(64, n - at);
            const Guarded<float> piece(std::vector<float>(x.begin() + static_cast<ptrdiff_t>(at),
                                                          x.begin() + static_cast<ptrdiff_t>(at + count)));
            const float factor = set().softmax_piece(piece.get(), count, &max, &sum);
            for (double& w : weights) w *= d(factor);
            for (size_t i = 0; i < count; ++i) weights.push_back(d(piece.get()[i]));
        }
        EXPECT_EQ(d(max), largest);
        EXPECT_NEAR(d(sum), total, 1e-5 * total);
        for (size_t i = 0; i < n; ++i) {
            EXPECT_NEAR(weights[i] / d(sum), std::exp(d(whole[i]) - largest) / total, 1e-5) << n;
        }
    }
    float nan[3] = {0.0f, kNan, 1.0f};
    float max = 0, sum = 0;
    set().softmax_piece(nan, 3, &max, &sum);
    EXPECT_TRUE(std::isnan(sum));
}

TEST_P(Ops, HalfToFloatAllOfThem) {
    std::vector<uint16_t> all(0x10000);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> got(all.size());
    set().f16_to_f32(all.data(), all.size(), got.data());
    for (size_t i = 0; i < all.size(); ++i) {
        const int exponent = static_cast<int>(i >> 10 & 31), fraction = static_cast<int>(i & 1023);
        double want = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
        if (exponent == 31) want = fraction == 0 ? HUGE_VAL : NAN;
        if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(got[i]));
        } else {
            EXPECT_EQ(d(got[i]), i >= 0x8000 ? -want : want) << i;
        }
    }
}

TEST_P(Ops, FloatToHalfRoundsToNearestEven) {
    std::vector<float> x;
    std::vector<uint16_t> want;
    for (uint32_t h = 0; h < 0x7c00;
         ++h) {  // each half, and what lies half way and next to half way to the next one
        const float low = half_to_float(static_cast<uint16_t>(h));
        const float high = h == 0x7bff ? 65536.0f : half_to_float(static_cast<uint16_t>(h + 1));
        const float middle = (low + high) / 2;
        const auto even = static_cast<uint16_t>(h % 2 == 0 ? h : h + 1);
        for (const auto& [value, half] : {std::pair{low, static_cast<uint16_t>(h)},
                                          {std::nextafter(middle, low), static_cast<uint16_t>(h)},
                                          {middle, even},
                                          {std::nextafter(middle, high), static_cast<uint16_t>(h + 1)}}) {
            x.push_back(value);
            want.push_back(half);
            x.push_back(-value);
            want.push_back(half | 0x8000);
        }
    }
    x.insert(x.end(), {1e30f, -kInfinity, std::numeric_limits<float>::denorm_min()});
    want.insert(want.end(), {0x7c00, 0xfc00, 0});
    std::vector<uint16_t> got(x.size());
    set().f32_to_f16(x.data(), x.size(), got.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], want[i]) << x[i];
    uint16_t nan = 0;
    set().f32_to_f16(&kNan, 1, &nan);
    EXPECT_TRUE(std::isnan(half_to_float(nan)));
}

TEST_P(Ops, HalfConversionsAtEveryLength) {
    for (const size_t n : kLengths) {
        const Guarded<float> x(random_floats(n, 1.0f, rng_));
        const GuardedBytes halves(n * sizeof(uint16_t)), back(n * sizeof(float));
        set().f32_to_f16(x.get(), n, halves.as<uint16_t>());
        set().f16_to_f32(halves.as<uint16_t>(), n, back.as<float>());
        for (size_t i = 0; i < n; ++i)
            EXPECT_EQ(back.as<float>()[i], half_to_float(float_to_half(x.get()[i])));
    }
}

TEST_P(Ops, Softmax) {
    for (const size_t n : kLengths) {
        const std::vector<float> x = random_floats(n, 5.0f, rng_);
        const Guarded<float> y(x);
        set().softmax(y.get(), n);
        double largest = -HUGE_VAL, sum = 0;
        for (const float v : x) largest = std::max(largest, d(v));
        for (const float v : x) sum += std::exp(d(v) - largest);
        for (size_t i = 0; i < n; ++i) {
            const double want = std::exp(d(x[i]) - largest) / sum;
            // x - max is rounded, by half an ULP of up to 64
            EXPECT_NEAR(d(y.get()[i]), want, want * 4e-6 + 1e-38) << n;
        }
    }
}

TEST_P(Ops, SoftmaxAtTheEnds) {
    std::vector<float> x = {-kInfinity, 1e30f, -1e30f, 1e30f, 0.0f, -kInfinity, 3.0f, 1.0f, -2.0f};
    set().softmax(x.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i == 1 || i == 3 ? 0.5f : 0.0f);

    for (const size_t n :
         {size_t{3}, size_t{9}, size_t{40}}) {  // all negative: what lies past the end must not count
        std::vector<float> same(n, -50.0f);
        set().softmax(same.data(), n);
        for (const float v : same) EXPECT_NEAR(v, 1.0f / static_cast<float>(n), 1e-7f);
        for (size_t at = 0; at < n; ++at) {
            std::vector<float> poisoned(n, 1.0f);
            poisoned[at] = kNan;
            set().softmax(poisoned.data(), n);
            for (const float v : poisoned) EXPECT_TRUE(std::isnan(v)) << at;
        }
    }
}

// With a zero beside it and far below it, softmax gives exp(x) itself: the sum is 1.
TEST_P(Ops, ExpIsWithinElevenTenthsOfAnUlp) {
    double worst = 0;
    for (float x = -17.5f; x > -87.0f; x -= 0.000731f) {
        float pair[2] = {0.0f, x};
        set().softmax(pair, 2);
        const double want = std::exp(d(x));
        const double ulp = std::ldexp(1.0, std::ilogb(want) - 23);
        worst = std::max(worst, std::fabs(d(pair[1]) - want) / ulp);
    }
    EXPECT_LE(worst, 1.1);
    RecordProperty("worst_ulp", std::to_string(worst));
    for (const float x : {-90.0f, -100.0f, -103.0f}) {  // subnormal results
        float pair[2] = {0.0f, x};
        set().softmax(pair, 2);
        EXPECT_NEAR(d(pair[1]), std::exp(d(x)), 1.5e-45);
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, Ops, testing::ValuesIn(runnable_sets()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace weir::test
