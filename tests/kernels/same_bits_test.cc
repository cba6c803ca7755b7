// The tables for AVX-VNNI and AVX-512 make AVX2's integer sums by other instructions, and all that follows is the same:
// so are the bits of every output. AVX-VNNI's one instruction is emulated where the CPU has not got it; AVX-512's tests
// run where it is to be had, which scripts/test_avx512.sh sees to.
#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <string>
#include <tuple>

#include "tests/kernels/fixture.h"

#if defined(__x86_64__)
#include "kernels/avx2.h"
#include "tests/kernels/emulated_dpbusd.h"

namespace weir::test {
namespace {

using Param = std::tuple<const KernelSet*, TypeTraits, Activation>;

class SameBits : public testing::TestWithParam<Param> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SameBits);  // where the CPU has no AVX2

TEST_P(SameBits, AsAvx2) {
    const KernelSet& set = *std::get<0>(GetParam());
    const Type type = std::get<1>(GetParam()).type;
    const Activation a = std::get<2>(GetParam());
    const KernelSet& avx2 = *select_kernels("avx2");
    std::optional<EmulatedDpbusd> emulated;
    if (select_kernels(set.name) == nullptr) emulated.emplace();
    constexpr size_t kRows = 19;
    std::mt19937 rng(31);
    const bool short_blocks = std::get<1>(GetParam()).block_elements == 32;
    std::vector<size_t> lengths = {256, 1280, short_blocks ? size_t{1376} : size_t{512}};
    std::vector<size_t> batches = {1, 2, 3, 4, 7, 8, 13, 21};
    if (emulated) {  // a trap each
        lengths = {short_blocks ? size_t{352} : size_t{512}};
        batches = {1, 2, 4, 9};
    }
    for (const size_t k : lengths) {
        const std::vector<std::byte> w = random_weights(type, kRows * k, rng);
        for (const size_t tokens : batches) {
            std::vector<float> inputs = random_floats(k * tokens, 1.0f, rng);
            for (size_t i = 0; i < inputs.size(); i += 197) inputs[i] *= 5;  // cells that get a second byte
            const std::vector<std::byte> x = pack(avx2, a, inputs, k, tokens);
            std::vector<float> y(kRows * tokens), same(kRows * tokens);
            set.matmul(type, a, w.data(), kRows, k, x.data(), activation_bytes(a, k), tokens, y.data(), kRows);
            avx2.matmul(type, a, w.data(), kRows, k, x.data(), activation_bytes(a, k), tokens, same.data(), kRows);
            for (size_t i = 0; i < y.size(); ++i) {
                ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(same[i]))
                    << "k=" << k << " row " << i % kRows << " token " << i / kRows << " of " << tokens;
            }
        }
    }
}

std::vector<Param> params() {
    std::vector<Param> all;
    if (select_kernels("avx2") == nullptr) return all;
    for (const KernelSet* const set : {&avx2::kAvxVnniKernels, select_kernels("avx512")}) {
        if (set == nullptr) continue;
        for (const TypeTraits& t : all_traits()) {
            for (const Activation a : {Activation::kInt8, Activation::kFine, Activation::kWhole}) {
                if (activation_for(t.type, 256, a) == a) all.emplace_back(set, t, a);
            }
        }
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, SameBits, testing::ValuesIn(params()), [](const auto& info) {
    return std::string(std::get<0>(info.param)->name) + '_' + std::get<1>(info.param).name + '_' +
           name_of(std::get<2>(info.param));
});

}  // namespace
}  // namespace weir::test
#endif
