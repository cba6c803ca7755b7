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
    // kMostRows: two tiles of sixteen and three. kMostTokens: above the 128 that a tile is unpacked for.
    static constexpr size_t kMostRows = 35, kMostTokens = 130;

    void compare(size_t k, size_t rows_there, size_t tokens_there) {
        // Not a structured binding: clang 14 lets no lambda capture one.
        const auto& param = GetParam();
        const auto& set = std::get<0>(param);
        const auto& t = std::get<1>(param);
        const auto a = std::get<2>(param);
        std::mt19937 rng(41);
        const std::vector<std::byte> w = random_weights(t.type, rows_there * k, rng);
        std::vector<float> inputs = random_floats(k * tokens_there, 1.0f, rng);
        for (size_t i = 0; i < inputs.size(); i += 197) inputs[i] *= 5;  // some cells of most tokens stand out of their row
        const std::vector<std::byte> x = pack(*set, a, inputs, k, tokens_there);
        const size_t w_bytes = row_bytes(t.type, k), x_bytes = activation_bytes(a, k);

        std::vector<float> alone(rows_there * tokens_there);  // [token][row]
        for (size_t i = 0; i < alone.size(); ++i) {
            set->matmul(t.type, a, w.data() + i % rows_there * w_bytes, 1, k, x.data() + i / rows_there * x_bytes,
                        x_bytes, 1, &alone[i], 1);
        }
        const auto check = [&](size_t first_row, size_t rows, size_t first_token, size_t tokens) {
            std::vector<float> y(rows * tokens);
            set->matmul(t.type, a, w.data() + first_row * w_bytes, rows, k, x.data() + first_token * x_bytes,
                        x_bytes, tokens, y.data(), rows);
            for (size_t i = 0; i < y.size(); ++i) {
                const float want = alone[(first_token + i / rows) * rows_there + first_row + i % rows];
                ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(want))
                    << "k=" << k << " rows=" << rows << " tokens=" << tokens << " row " << i % rows
                    << " token " << i / rows;
            }
        };
        // Each number of tokens with some number of rows, and each of rows with tokens row by row and side by side.
        for (size_t tokens = 1; tokens <= 17; ++tokens) check(tokens % 5, 1 + tokens % 9, tokens % 3, tokens);
        for (size_t rows = 1; rows <= 9; ++rows) {
            for (const size_t tokens : {1, 3, 8}) check(rows % 5, rows, rows % 7, tokens);
        }
        for (const size_t tokens : {size_t{21}, size_t{48}, size_t{49}, kMostTokens}) {
            if (tokens <= tokens_there) check(0, rows_there, 0, tokens);
        }
    }
};

TEST_P(Invariance, OutputsDoNotDependOnTheTile) {
    const size_t block = std::get<1>(GetParam()).block_elements;
    compare(block == 256 ? 512 : block == 32 ? 288 : 77, kMostRows, kMostTokens);
}

TEST_P(Invariance, NorWhereRowsAreLongerThanATile) {
    const size_t block = std::get<1>(GetParam()).block_elements;
    compare(block == 256 ? 1536 : block == 32 ? 1344 : 1101, 19, 21);
}

// Types whose blocks become bytes first share all that comes after: two stand for the eight, one by its scales for 32 and
// one for 16. The scalar table has one product for all types, by activation form.
bool stood_for(const KernelSet* set, Type type) {
    if (set == &scalar_set()) return type != Type::kQ8_0 && type != Type::kQ6_K && type != Type::kF16;
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
            if (stood_for(set, t.type)) continue;
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
