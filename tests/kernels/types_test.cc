#include "kernels/types.h"

#include <gtest/gtest.h>

#include "kernels/kernels.h"

namespace weir::kernels {
namespace {

TEST(Types, TraitsOfEveryTypeNumber) {
    size_t known = 0;
    for (uint32_t n = 0; n < 300; ++n) {
        const TypeTraits* t = find_traits(n);
        if (t == nullptr) continue;
        ++known;
        EXPECT_EQ(static_cast<uint32_t>(t->type), n);
        EXPECT_EQ(&traits(t->type), t);
    }
    EXPECT_EQ(known, all_traits().size());
    EXPECT_EQ(known, 25u);
    EXPECT_EQ(find_traits(0xffffffffu), nullptr);
    EXPECT_EQ(find_traits(4), nullptr);  // retired from the format
}

TEST(Types, RowBytes) {
    EXPECT_EQ(row_bytes(Type::kF32, 253), 1012u);
    EXPECT_EQ(row_bytes(Type::kF16, 1), 2u);
    EXPECT_EQ(row_bytes(Type::kBF16, 3), 6u);
    EXPECT_EQ(row_bytes(Type::kQ8_0, 64), 68u);
    EXPECT_EQ(row_bytes(Type::kQ4_K, 4096), 2304u);
    EXPECT_EQ(row_bytes(Type::kQ6_K, 256), 210u);
    EXPECT_EQ(row_bytes(Type::kQ2_K, 0), 0u);
}

TEST(Types, BitsPerWeight) {
    const auto bits = [](Type type) { return 8.0 * traits(type).block_bytes / traits(type).block_elements; };
    EXPECT_EQ(bits(Type::kQ4_0), 4.5);
    EXPECT_EQ(bits(Type::kQ4_1), 5.0);
    EXPECT_EQ(bits(Type::kQ5_0), 5.5);
    EXPECT_EQ(bits(Type::kQ5_1), 6.0);
    EXPECT_EQ(bits(Type::kQ8_0), 8.5);
    EXPECT_EQ(bits(Type::kQ2_K), 2.625);
    EXPECT_EQ(bits(Type::kQ3_K), 3.4375);
    EXPECT_EQ(bits(Type::kQ4_K), 4.5);
    EXPECT_EQ(bits(Type::kQ5_K), 5.5);
    EXPECT_EQ(bits(Type::kQ6_K), 6.5625);
    EXPECT_EQ(bits(Type::kIQ1_S), 1.5625);
    EXPECT_EQ(bits(Type::kTQ1_0), 1.6875);
    EXPECT_EQ(bits(Type::kIQ1_M), 1.75);
    EXPECT_EQ(bits(Type::kIQ2_XXS), 2.0625);
    EXPECT_EQ(bits(Type::kTQ2_0), 2.0625);
    EXPECT_EQ(bits(Type::kIQ2_XS), 2.3125);
    EXPECT_EQ(bits(Type::kIQ2_S), 2.5625);
    EXPECT_EQ(bits(Type::kIQ3_XXS), 3.0625);
    EXPECT_EQ(bits(Type::kIQ3_S), 3.4375);
    EXPECT_EQ(bits(Type::kIQ4_XS), 4.25);
    EXPECT_EQ(bits(Type::kMXFP4), 4.25);
    EXPECT_EQ(bits(Type::kIQ4_NL), 4.5);
}

TEST(Activations, FormForWeights) {
    for (const TypeTraits& t : all_traits()) {
        const bool floats = t.block_elements == 1;
        for (const Activation a : {Activation::kF32, Activation::kInt8, Activation::kFine, Activation::kWhole}) {
            EXPECT_EQ(activation_for(t.type, 512, a), floats ? Activation::kF32 : a) << t.name;
        }
    }
    EXPECT_EQ(activation_for(Type::kQ4_0, 33, Activation::kInt8), Activation::kF32);
}

TEST(Activations, BytesAreMultiplesOf64AndHoldTheRow) {
    for (size_t k = 0; k < 2000; k += 13) {
        for (const Activation a : {Activation::kF32, Activation::kInt8, Activation::kFine, Activation::kWhole}) {
            EXPECT_EQ(activation_bytes(a, k) % 64, 0u);
        }
        EXPECT_GE(activation_bytes(Activation::kF32, k), 4 * k);
        EXPECT_GE(activation_bytes(Activation::kInt8, k), k);
        EXPECT_GE(activation_bytes(Activation::kFine, k), 2 * k);
        EXPECT_EQ(activation_bytes(Activation::kWhole, k), activation_bytes(Activation::kFine, k));
    }
}

}  // namespace
}  // namespace weir::kernels
