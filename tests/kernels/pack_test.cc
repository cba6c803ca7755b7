// Activations packed for the integer forms: the error of rounding, exact sums, non-finite and tiny values,
// and the same bits from every table.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/fixture.h"

namespace weir::test {
namespace {

constexpr Activation kIntegerForms[] = {Activation::kInt8, Activation::kFine, Activation::kWhole};

std::vector<float> awkward_floats(size_t n, std::mt19937& rng) {
    std::vector<float> x = random_floats(n, 1.0f, rng);
    for (size_t i = 0; i < n; i += 97) x[i] *= 1000.0f;  // outliers
    for (size_t cell = 0; cell + 32 <= n; cell += 32) {
        const float unit = std::ldexp(1.0f, static_cast<int>(rng() % 200) - 100);
        for (size_t i = 0; i < 32; ++i) x[cell + i] *= unit;
    }
    return x;
}

TEST(Pack, ErrorIsHalfAStep) {
    std::mt19937 rng(3);
    const size_t k = 1056;
    std::vector<float> x = random_floats(k, 2.0f, rng);
    x[70] = 25.0f;  // cell 2 stands out
    for (const Activation a : kIntegerForms) {
        const std::vector<std::byte> packed = pack(scalar_set(), a, x, k, 1);
        const std::vector<double> back = unpack_activations(a, packed.data(), k);
        for (size_t cell = 0; cell < k; cell += 32) {
            float largest = 0;
            for (size_t i = cell; i < cell + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
            const bool fine = a == Activation::kWhole || (a == Activation::kFine && cell == 64);
            const double step = static_cast<double>(largest) / (fine ? 16319.0 : 127.0);
            for (size_t i = cell; i < cell + 32; ++i) {
                EXPECT_LE(std::fabs(back[i] - static_cast<double>(x[i])), step * 0.5 * (1 + 1e-3)) << i;
            }
        }
    }
}

// Cells are fine where their largest magnitude is above kFineRatio times the mean one, and no others have low bytes.
TEST(Pack, CellsThatStandOutAreFine) {
    const size_t k = 512, supers = k / kSuperElements;
    std::vector<float> x(k, 1.0f);
    for (size_t i = 1; i < k; i += 2) x[i] = 0.37f;
    x[5 * 32 + 3] = 4.0f;     // cell 5
    x[11 * 32 + 30] = -3.0f;  // cell 3 of the second Super
    x[12 * 32] = 1.5f;
    for (const KernelSet* set : runnable_sets()) {
        const std::vector<std::byte> packed = pack(*set, Activation::kFine, x, k, 1);
        EXPECT_EQ(packed[fine_at(supers)], std::byte{1 << 5}) << set->name;
        EXPECT_EQ(packed[fine_at(supers) + 1], std::byte{1 << 3}) << set->name;
        for (size_t cell = 0; cell < k / 32; ++cell) {
            bool any = false;
            for (size_t i = 0; i < 32; ++i) {
                any = any || packed[low_at(supers) + cell / 8 * kSuperElements + int8_place(cell % 8, i)] != std::byte{0};
            }
            EXPECT_EQ(any, cell == 5 || cell == 11) << set->name << " cell " << cell;
        }
    }
}

TEST(Pack, SumsAreThoseOfTheCodes) {
    std::mt19937 rng(4);
    const size_t k = 288;
    const std::vector<float> x = awkward_floats(k, rng);
    const std::vector<std::byte> packed = pack(scalar_set(), Activation::kInt8, x, k, 1);
    for (size_t cell = 0; cell < k / 32; ++cell) {
        Super s;
        std::memcpy(&s, packed.data() + cell / 8 * sizeof s, sizeof s);
        const size_t b = cell % 8;
        int low = 0, high = 0;
        for (size_t i = 0; i < 16; ++i) low += s.codes[int8_place(b, i)];
        for (size_t i = 16; i < 32; ++i) high += s.codes[int8_place(b, i)];
        EXPECT_EQ(s.sum_low[b], s.scale[b] * static_cast<float>(low));
        EXPECT_EQ(s.sum_high[b], s.scale[b] * static_cast<float>(high));
        EXPECT_EQ(s.sum[b], s.scale[b] * static_cast<float>(low + high));
    }
}

TEST(Pack, PlacesAreAPermutation) {
    std::vector<int> seen(kSuperElements);
    for (size_t b = 0; b < 8; ++b) {
        for (size_t i = 0; i < 32; ++i) ++seen.at(int8_place(b, i));
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 256);
}

TEST(Pack, AllTablesGiveTheSameBits) {
    std::mt19937 rng(5);
    for (const size_t k :
         {size_t{0}, size_t{32}, size_t{64}, size_t{224}, size_t{256}, size_t{288}, size_t{4096}}) {
        std::vector<float> x = awkward_floats(k, rng);
        for (int round = 0; round < 3; ++round) {
            if (round == 1 && k > 33) x[33] = std::numeric_limits<float>::infinity();
            if (round == 2 && k > 5) x[5] = -std::numeric_limits<float>::quiet_NaN();
            const Guarded<float> guarded(x);
            for (const Activation a : kActivations) {
                const std::vector<std::byte> want = pack(scalar_set(), a, x, k, 1);
                for (const KernelSet* set : runnable_sets()) {
                    const GuardedBytes got(activation_bytes(a, k), round == 0 ? 0 : 1);  // at any alignment
                    set->quantize(a, guarded.get(), k, got.data());
                    const size_t used = a == Activation::kF32 ? k * sizeof(float) : want.size();
                    EXPECT_TRUE(used == 0 || std::memcmp(got.data(), want.data(), used) == 0)
                        << set->name << ' ' << name_of(a) << " k=" << k;
                }
            }
        }
    }
}

TEST(Pack, HalvesRoundToEven) {
    std::vector<float> x(32, 0.0f);
    x[0] = 127.0f;
    x[1] = 0.5f;
    x[2] = 1.5f;
    x[3] = -2.5f;
    x[4] = -127.0f;
    for (const KernelSet* set : runnable_sets()) {
        const std::vector<double> back =
            unpack_activations(Activation::kInt8, pack(*set, Activation::kInt8, x, 32, 1).data(), 32);
        EXPECT_EQ(back[0], 127.0);
        EXPECT_EQ(back[1], 0.0);
        EXPECT_EQ(back[2], 2.0);
        EXPECT_EQ(back[3], -2.0);
        EXPECT_EQ(back[4], -127.0);
    }
}

TEST(Pack, TinyCellsBecomeZero) {
    std::vector<float> x(64, 1e-38f);
    x[40] = std::numeric_limits<float>::denorm_min();
    for (const KernelSet* set : runnable_sets()) {
        for (const Activation a : kIntegerForms) {
            for (const double v : unpack_activations(a, pack(*set, a, x, 64, 1).data(), 64))
                EXPECT_EQ(v, 0.0);
        }
    }
}

}  // namespace
}  // namespace weir::test
