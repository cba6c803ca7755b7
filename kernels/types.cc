#include "kernels/types.h"

#include <cstdlib>

namespace weir::kernels {
namespace {

constexpr TypeTraits kTraits[] = {
    {Type::kF32, "F32", 1, 4},       {Type::kF16, "F16", 1, 2},       {Type::kQ4_0, "Q4_0", 32, 18},
    {Type::kQ4_1, "Q4_1", 32, 20},   {Type::kQ5_0, "Q5_0", 32, 22},   {Type::kQ5_1, "Q5_1", 32, 24},
    {Type::kQ8_0, "Q8_0", 32, 34},   {Type::kQ2_K, "Q2_K", 256, 84},  {Type::kQ3_K, "Q3_K", 256, 110},
    {Type::kQ4_K, "Q4_K", 256, 144}, {Type::kQ5_K, "Q5_K", 256, 176}, {Type::kQ6_K, "Q6_K", 256, 210},
    {Type::kIQ2_XXS, "IQ2_XXS", 256, 66}, {Type::kIQ2_XS, "IQ2_XS", 256, 74}, {Type::kIQ3_XXS, "IQ3_XXS", 256, 98},
    {Type::kIQ1_S, "IQ1_S", 256, 50},     {Type::kIQ4_NL, "IQ4_NL", 32, 18},  {Type::kIQ3_S, "IQ3_S", 256, 110},
    {Type::kIQ2_S, "IQ2_S", 256, 82},     {Type::kIQ4_XS, "IQ4_XS", 256, 136}, {Type::kIQ1_M, "IQ1_M", 256, 56},
    {Type::kBF16, "BF16", 1, 2},          {Type::kTQ1_0, "TQ1_0", 256, 54},   {Type::kTQ2_0, "TQ2_0", 256, 66},
    {Type::kMXFP4, "MXFP4", 32, 17},
};

}  // namespace

const TypeTraits* find_traits(uint32_t type_number) noexcept {
    for (const TypeTraits& t : kTraits) {
        if (static_cast<uint32_t>(t.type) == type_number) return &t;
    }
    return nullptr;
}

const TypeTraits& traits(Type type) noexcept {
    const TypeTraits* found = find_traits(static_cast<uint32_t>(type));
    if (found == nullptr) std::abort();  // a Type is only ever made from an accepted number
    return *found;
}

std::span<const TypeTraits> all_traits() noexcept {
    return kTraits;
}

size_t row_bytes(Type type, size_t n) noexcept {
    const TypeTraits& t = traits(type);
    return n / t.block_elements * t.block_bytes;
}

}  // namespace weir::kernels
