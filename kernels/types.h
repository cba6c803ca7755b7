// The tensor types that weights come in: sizes of their quantised blocks. Plain facts, no code that depends
// on the CPU. Numbers are those of the GGUF format (ggml_type), so that a file's number casts to Type once
// find_traits() has accepted it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir::kernels {

enum class Type : uint32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ2_K = 10,
    kQ3_K = 11,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kIQ2_XXS = 16,
    kIQ2_XS = 17,
    kIQ3_XXS = 18,
    kIQ1_S = 19,
    kIQ4_NL = 20,
    kIQ3_S = 21,
    kIQ2_S = 22,
    kIQ4_XS = 23,
    kIQ1_M = 29,
    kBF16 = 30,
    kTQ1_0 = 34,
    kTQ2_0 = 35,
    kMXFP4 = 39,
};

struct TypeTraits {
    Type type;
    const char* name;         // as GGUF tools print it: "Q4_0"
    uint32_t block_elements;  // a row's length must be a multiple of this
    uint32_t block_bytes;
};

// Traits of a type number from a file; nullptr where it is not one of ours.
const TypeTraits* find_traits(uint32_t type_number) noexcept;

// Traits of a known type.
const TypeTraits& traits(Type type) noexcept;

// All types, in the order of the enum.
std::span<const TypeTraits> all_traits() noexcept;

// Bytes of a row of n elements; n must be a multiple of block_elements.
size_t row_bytes(Type type, size_t n) noexcept;

}  // namespace weir::kernels
