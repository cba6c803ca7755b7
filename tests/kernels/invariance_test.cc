// The rule above speed: an output depends on its weight row and its activation row alone. Every output of a
// large product, in whatever tiles a table computes it, equals to the bit the one computed alone.
#include <gtest/gtest.h>

#include <bit>
#include <tuple>

#include "tests/kernels/fixture.h"

namespace weir::test {
namespace {

using Param = std::tuple<const KernelSet*, TypeTraits, Activation>;

class Invariance : public testing::TestWithParam<Param> {
  protected:
    static constexpr size_t kRows = 35, kTokens = 130;

    void compare(size_t k) {
        // Not a structured binding: clang 14 lets no lambda capture one.
        const auto& param = GetParam();
        const auto& set = std::get<0>(param);
        const auto& t = std::get<1>(param);
        const auto a = std::get<2>(param);
        std::mt19937 rng(41);
        const std::vector<std::byte> w = random_weights(t.type, kRows * k, rng);
        std::vector<float> inputs = random_floats(k * kTokens, 1.0f, rng);
        for (size_t i = 0; i < inputs.size(); i += 197) inputs[i] *= 5;  // some cells of most tokens stand out of their row
        const std::vector<std::byte> x = pack(*set, a, inputs, k, kTokens);
        const size_t w_bytes = row_bytes(t.type, k), x_bytes = activation_bytes(a, k);

        std::vector<float> alone(kRows * kTokens);  // [token][row]
        for (size_t i = 0; i < alone.size(); ++i) {
            set->matmul(t.type, a, w.data() + i % kRows * w_bytes, 1, k, x.data() + i / kRows * x_bytes,
                        x_bytes, 1, &alone[i], 1);
        }
        const auto check = [&](size_t first_row, size_t rows, size_t first_token, size_t tokens) {
            std::vector<float> y(rows * tokens);
            set->matmul(t.type, a, w.data() + first_row * w_bytes, rows, k, x.data() + first_token * x_bytes,
                        x_bytes, tokens, y.data(), rows);
            for (size_t i = 0; i < y.size(); ++i) {
                const float want = alone[(first_token + i / rows) * kRows + first_row + i % rows];
                ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(want))
                    << "k=" << k << " rows=" << rows << " tokens=" << tokens << " row " << i % rows
                    << " token " << i / rows;
            }
        };
        for (size_t tokens = 1; tokens <= 17; ++tokens) {
            for (size_t rows = 1; rows <= 9; ++rows) check(tokens % 5, rows, rows % 7, tokens);
        }
        for (const size_t tokens : {47, 48, 49, 63, 64, 65, 130}) check(0, kRows, 0, tokens);
    }
};

TEST_P(Invariance, OutputsDoNotDependOnTheTile) {
    const size_t block = std::get<1>(GetParam()).block_elements;
    compare(block == 256 ? 512 : block == 32 ? 288 : 77);
}

TEST_P(Invariance, NorWhereRowsAreLongerThanATile) {
    const size_t block = std::get<1>(GetParam()).block_elements;
    compare(block == 256 ? 1536 : block == 32 ? 1344 : 1101);
}

// Types whose blocks become bytes first share all that comes after: two stand for the eight, one by its scales for 32 and
// one for 16.
bool stood_for(Type type) {
    switch (type) {
        case Type::kIQ1_S:
        case Type::kIQ1_M:
        case Type::kIQ2_XXS:
        case Type::kIQ2_XS:
        case Type::kIQ3_XXS:
        case Type::kTQ1_0:
            return true;
        default:
            return false;
    }
}

std::vector<Param> params() {
    std::vector<Param> all;
    for (const KernelSet* set : runnable_sets()) {
        for (const TypeTraits& t : all_traits()) {
            if (stood_for(t.type)) continue;
            for (const Activation a : kActivations) {
                if (activation_for(t.type, 256, a) == a) all.emplace_back(set, t, a);
            }
        }
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, Invariance, testing::ValuesIn(params()), [](const auto& info) {
    return std::string(std::get<0>(info.param)->name) + '_' + std::get<1>(info.param).name + '_' +
           name_of(std::get<2>(info.param));
});

}  // namespace
}  // namespace weir::test
