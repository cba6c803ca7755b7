// Blocks made by hand, byte by byte, against weights worked out on paper; for every table.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/fixture.h"

namespace weir::test {
namespace {

constexpr uint16_t kOne = 0x3c00, kTwo = 0x4000, kHalf = 0x3800, kMinusOne = 0xbc00;

class Block {
  public:
    explicit Block(Type type) : type_(type), bytes_(traits(type).block_bytes) {}

    Block& half(size_t at, uint16_t value) {
        std::memcpy(bytes_.data() + at, &value, sizeof value);
        return *this;
    }
    Block& byte(size_t at, int value) {
        bytes_.at(at) = static_cast<std::byte>(value);
        return *this;
    }
    Block& fill(size_t at, size_t n, int value) {
        for (size_t i = 0; i < n; ++i) byte(at + i, value);
        return *this;
    }

    // All tables must agree on `expected`; elements not named are `rest`.
    void expect(const std::vector<std::pair<size_t, float>>& expected, float rest) const {
        const size_t n = traits(type_).block_elements;
        std::vector<float> want(n, rest);
        for (const auto& [i, value] : expected) want.at(i) = value;
        for (const KernelSet* set : runnable_sets()) {
            std::vector<float> got(n);
            set->dequantize(type_, bytes_.data(), got.data(), n);
            for (size_t i = 0; i < n; ++i) EXPECT_EQ(got[i], want[i]) << set->name << " element " << i;
        }
    }

  private:
    Type type_;
    std::vector<std::byte> bytes_;
};

TEST(Blocks, Q4_0) {
    // low nibbles are elements 0-15, high nibbles 16-31; weight d * (q - 8)
    Block(Type::kQ4_0)
        .half(0, kTwo)
        .fill(2, 16, 0x88)
        .byte(2, 0x80)
        .byte(17, 0xf9)
        .expect({{0, -16.0f}, {15, 2.0f}, {31, 14.0f}}, 0.0f);
}

TEST(Blocks, Q4_1) {
    Block(Type::kQ4_1)
        .half(0, kHalf)
        .half(2, kMinusOne)
        .byte(4, 0x5f)
        .byte(19, 0xa1)
        .expect({{0, 6.5f}, {16, 1.5f}, {15, -0.5f}, {31, 4.0f}}, -1.0f);
}

TEST(Blocks, Q5_0) {
    // qh 0x80010001: fifth bits of elements 0, 16, 31
    Block(Type::kQ5_0)
        .half(0, kOne)
        .byte(2, 1)
        .byte(4, 1)
        .byte(5, 0x80)
        .byte(6, 0x23)
        .byte(21, 0xf4)
        .expect({{0, 3.0f}, {16, 2.0f}, {15, -12.0f}, {31, 15.0f}}, -16.0f);
}

TEST(Blocks, Q5_1) {
    Block(Type::kQ5_1).half(0, kTwo).half(2, kOne).byte(5, 0x01).byte(16, 0x0f).expect({{8, 63.0f}}, 1.0f);
    Block(Type::kQ5_1)
        .half(0, kTwo)
        .half(2, kOne)
        .byte(5, 0x01)
        .byte(7, 0x40)
        .byte(22, 0xf0)
        .expect({{8, 33.0f}, {30, 63.0f}}, 1.0f);
}

TEST(Blocks, Q8_0) {
    Block(Type::kQ8_0)
        .half(0, kHalf)
        .byte(2, 0x80)
        .byte(3, 0x7f)
        .byte(33, 0xff)
        .expect({{0, -64.0f}, {1, 63.5f}, {31, -0.5f}}, 0.0f);
}

TEST(Blocks, Q2_K) {
    // scales[0] = 3 | 2 << 4: elements 0-15; scales[15] = 15 | 1 << 4: elements 240-255. d = 1, dmin = 0.5.
    // qs[0] = 0b11100100: elements 0, 32, 64, 96 have 0, 1, 2, 3; qs[63]: elements 159, 191, 223, 255
    Block(Type::kQ2_K)
        .half(80, kOne)
        .half(82, kHalf)
        .byte(0, 0x23)
        .byte(2, 0x01)
        .byte(15, 0x1f)
        .byte(16, 0xe4)
        .byte(16 + 5, 0x03)
        .byte(16 + 63, 0xc0)
        .expect({{0, -1.0f},  {1, -1.0f},  {2, -1.0f},  {3, -1.0f},  {4, -1.0f},  {5, 8.0f},   {6, -1.0f},
                 {7, -1.0f},  {8, -1.0f},  {9, -1.0f},  {10, -1.0f}, {11, -1.0f}, {12, -1.0f}, {13, -1.0f},
                 {14, -1.0f}, {15, -1.0f}, {32, 1.0f},  {240, -.5f}, {241, -.5f}, {242, -.5f}, {243, -.5f},
                 {244, -.5f}, {245, -.5f}, {246, -.5f}, {247, -.5f}, {248, -.5f}, {249, -.5f}, {250, -.5f},
                 {251, -.5f}, {252, -.5f}, {253, -.5f}, {254, -.5f}, {255, 44.5f}},
                0.0f);
}

TEST(Blocks, Q3_K) {
    // Six-bit scales: group 0 has low nibble 1 and high bits 2: 33 - 32 = 1; group 15 has 15 and 3: 63 - 32
    // = 31. All others 32 - 32 = 0: low nibbles 0, high bits 2. Without the third bit a code means q - 4.
    Block block(Type::kQ3_K);
    block.half(108, kTwo).fill(104, 4, 0xaa);
    block.byte(96, 0x01).byte(103, 0xf0).byte(107, 0xea);
    block.byte(0, 0x01);        // third bit of element 0
    block.byte(32, 0x03);       // element 0: 3 + 4 - 4
    block.byte(32 + 1, 0x02);   // element 1: 2 - 4
    block.byte(31, 0x80);       // third bit of element 255
    block.byte(32 + 63, 0x80);  // element 255: 2 + 4 - 4
    std::vector<std::pair<size_t, float>> want;
    for (size_t i = 0; i < 16; ++i) want.emplace_back(i, -8.0f);
    for (size_t i = 240; i < 256; ++i) want.emplace_back(i, -248.0f);
    want.insert(want.end(), {{0, 6.0f}, {1, -4.0f}, {255, 124.0f}});
    block.expect(want, 0.0f);
}

TEST(Blocks, Q4_K) {
    // Group 0: scale 5, min 3. Group 7: scale 0x31 (low nibble 1 in byte 11, top bits 3 in byte 3), min 0x22.
    Block block(Type::kQ4_K);
    block.half(0, kOne).half(2, kHalf);
    block.byte(4, 5).byte(4 + 4, 3);
    block.byte(4 + 3, 0xc0).byte(4 + 7, 0x80).byte(4 + 11, 0x21);
    block.byte(16, 0x0f);        // element 0
    block.byte(16 + 127, 0x20);  // element 255
    std::vector<std::pair<size_t, float>> want;
    for (size_t i = 0; i < 32; ++i) want.emplace_back(i, -1.5f);
    for (size_t i = 224; i < 256; ++i) want.emplace_back(i, -17.0f);
    want.insert(want.end(), {{0, 73.5f}, {255, 2.0f * 49.0f - 17.0f}});
    block.expect(want, 0.0f);
}

TEST(Blocks, Q5_K) {
    Block block(Type::kQ5_K);
    block.half(0, kOne).half(2, kHalf);
    block.byte(4, 5).byte(4 + 4, 3);
    block.byte(4 + 3, 0xc0).byte(4 + 7, 0x80).byte(4 + 11, 0x21);
    block.byte(16, 0x01).byte(16 + 31, 0x80);  // fifth bits of elements 0 and 255
    block.byte(48, 0x0f).byte(48 + 127, 0x20);
    std::vector<std::pair<size_t, float>> want;
    for (size_t i = 0; i < 32; ++i) want.emplace_back(i, -1.5f);
    for (size_t i = 224; i < 256; ++i) want.emplace_back(i, -17.0f);
    want.insert(want.end(), {{0, 31.0f * 5.0f - 1.5f}, {255, 18.0f * 49.0f - 17.0f}});
    block.expect(want, 0.0f);
}

TEST(Blocks, Q6_K) {
    // Element 0: ql[0] low nibble, qh[0] bits 0-1, scale 0. Element 97: ql[33] high, qh[1] bits 6-7, scale 6.
    // Element 255: ql[127] high, qh[63] bits 6-7, scale 15.
    Block block(Type::kQ6_K);
    block.half(208, kHalf).byte(192, 2).byte(192 + 6, -128).byte(192 + 15, 127);
    block.byte(0, 0x05).byte(128, 0x03);
    block.byte(33, 0x90).byte(129, 0x80);
    block.byte(127, 0xf0).byte(128 + 63, 0xc0);
    std::vector<std::pair<size_t, float>> want;
    for (size_t i = 0; i < 16; ++i) want.emplace_back(i, -32.0f);
    for (size_t i = 96; i < 112; ++i) want.emplace_back(i, 2048.0f);
    for (size_t i = 240; i < 256; ++i) want.emplace_back(i, -2032.0f);
    want.insert(want.end(), {{0, 21.0f}, {97, 9.0f * -64.0f}, {255, 31.0f * 63.5f}});
    block.expect(want, 0.0f);
}

TEST(Blocks, Floats) {
    Block(Type::kF16).half(0, 0x0001).expect({}, 0x1p-24f);
    Block(Type::kF16).half(0, 0xfbff).expect({}, -65504.0f);
    Block(Type::kBF16).half(0, 0xbf80).expect({}, -1.0f);
    Block(Type::kF32).half(0, 0).half(2, 0x4049).expect({}, 3.140625f);
}

TEST(Blocks, IQ4_NL) {
    Block(Type::kIQ4_NL).half(0, kTwo).fill(2, 16, 0x88).byte(2, 0x80).byte(17, 0xf9).expect(
        {{0, -254.0f}, {15, 26.0f}, {31, 226.0f}}, 2.0f);
}

TEST(Blocks, IQ4_XS) {
    // Group 0: scale 33 - 32; group 7: low nibble 2, high bits 3: 50 - 32 = 18. All others 0: high bits 2.
    Block block(Type::kIQ4_XS);
    block.half(0, kHalf).byte(2, 0xaa).byte(3, 0xea).byte(4, 0x01).byte(7, 0x20).fill(8, 128, 0x88);
    block.byte(8, 0xf8).byte(8 + 127, 0x08);  // element 16; element 255
    std::vector<std::pair<size_t, float>> want;
    for (size_t i = 0; i < 32; ++i) want.emplace_back(i, 0.5f);
    for (size_t i = 224; i < 256; ++i) want.emplace_back(i, 9.0f);
    want.insert(want.end(), {{16, 56.5f}, {255, -127.0f * 9.0f}});
    block.expect(want, 0.0f);
}

TEST(Blocks, MXFP4) {
    Block(Type::kMXFP4).byte(0, 129).byte(1, 0x71).byte(16, 0xf9).expect(
        {{0, 2.0f}, {16, 24.0f}, {15, -2.0f}, {31, -24.0f}}, 0.0f);
    Block(Type::kMXFP4).byte(0, 0).byte(1, 0x02).expect({{0, 0x1p-127f}}, 0.0f);
    Block(Type::kMXFP4).byte(0, 255).byte(1, 0x01).expect({{0, 0x1p127f}}, 0.0f);
}

TEST(Blocks, TQ1_0) {
    // 0: all digits 0. 255 and 128 hold 242 / 243 and 121 / 243 and more: digits 22222 and 11111.
    Block block(Type::kTQ1_0);
    block.half(52, kTwo).byte(1, 255).byte(47, 128).byte(51, 128);
    std::vector<std::pair<size_t, float>> want;
    for (size_t n = 0; n < 5; ++n) want.insert(want.end(), {{32 * n + 1, 2.0f}, {160 + 16 * n + 15, 0.0f}});
    for (size_t n = 0; n < 4; ++n) want.emplace_back(240 + 4 * n + 3, 0.0f);
    block.expect(want, -2.0f);
}

TEST(Blocks, TQ2_0) {
    Block(Type::kTQ2_0).half(64, kHalf).fill(0, 64, 0x55).byte(0, 0xd8).byte(63, 0x95).expect(
        {{0, -0.5f}, {32, 0.5f}, {64, 0.0f}, {96, 1.0f}, {255, 0.5f}}, 0.0f);
}

// 64 blocks of bytes from a generator, halves made finite by a bit, as floats: against hashes (FNV-1a over the floats'
// bytes, -0 as 0) of what the NumPy dequantisers of the Python package `gguf` 0.19 make of the same bytes.
TEST(Blocks, WeightsAreThoseOfTheFormatsOwnDescription) {
    const std::pair<Type, uint64_t> expected[] = {
        {Type::kQ4_0, 0x2b26c8d5d6c73513u}, {Type::kQ4_1, 0x3009fb56ed10a6c6u},
        {Type::kQ5_0, 0xfc39a19956507027u}, {Type::kQ5_1, 0x0fa1fdb76689e324u},
        {Type::kQ8_0, 0xcbd1e2cd885eb625u}, {Type::kQ2_K, 0xd7703f9dc3f1c5e7u},
        {Type::kQ3_K, 0x9556097a0966ca6bu}, {Type::kQ4_K, 0xd774267e163dd4efu},
        {Type::kQ5_K, 0x19ebe9dd09a4b135u}, {Type::kQ6_K, 0x46aba9f92e75d4cdu},
        {Type::kIQ2_XXS, 0xdd318dbf24d00ca8u}, {Type::kIQ2_XS, 0x7cd7de50b9157049u},
        {Type::kIQ3_XXS, 0x00f2e72ea5434ef4u}, {Type::kIQ1_S, 0x607af7bf469e43e2u},
        {Type::kIQ4_NL, 0xb6a79a0b51ccd1d5u}, {Type::kIQ3_S, 0x3a5297bb6d5997f6u},
        {Type::kIQ2_S, 0x4d4de6db0349cd00u}, {Type::kIQ4_XS, 0xb36923b80959ff67u},
        {Type::kIQ1_M, 0xb8fd2379b4ec988du}, {Type::kTQ1_0, 0x12ef91762e85c51cu},
        {Type::kTQ2_0, 0x800d55fd558b2213u}, {Type::kMXFP4, 0xfc9d80073b8be446u},
    };
    for (const auto& [type, hash] : expected) {
        const TypeTraits& t = traits(type);
        std::vector<std::byte> blocks(64 * t.block_bytes);
        auto state = static_cast<uint32_t>(type);
        for (std::byte& b : blocks) {
            state = state * 1664525u + 1013904223u;
            b = static_cast<std::byte>(state >> 24);
        }
        for (size_t at = 0; at < blocks.size() && type != Type::kMXFP4; at += t.block_bytes) {
            for (const size_t offset : half_offsets(type)) {
                // IQ1_M: the top of its fourth word
                blocks[at + offset + (type == Type::kIQ1_M ? 7 : 1)] &= std::byte{0xbf};
            }
        }
        for (const KernelSet* set : runnable_sets()) {
            std::vector<float> floats(64 * t.block_elements);
            set->dequantize(type, blocks.data(), floats.data(), floats.size());
            uint64_t found = 0xcbf29ce484222325u;
            for (const float value : floats) {
                const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
                for (int shift = 0; shift < 32; shift += 8) found = (found ^ (bits >> shift & 255)) * 0x100000001b3u;
            }
            EXPECT_EQ(found, hash) << set->name << ' ' << t.name;
        }
    }
}

// Every table gives the scalar table's bits, at every length and without touching what lies behind.
TEST(Blocks, TablesDequantizeToTheSameBits) {
    std::mt19937 rng(11);
    for (const TypeTraits& t : all_traits()) {
        for (const size_t n : row_lengths(t.type)) {
            const Guarded<std::byte> w(random_weights(t.type, n, rng));
            std::vector<float> want(n);
            scalar_set().dequantize(t.type, w.get(), want.data(), n);
            for (const KernelSet* set : runnable_sets()) {
                const GuardedBytes got(n * sizeof(float));
                set->dequantize(t.type, w.get(), got.as<float>(), n);
                EXPECT_TRUE(n == 0 || std::memcmp(got.data(), want.data(), n * sizeof(float)) == 0)
                    << set->name << ' ' << t.name << " n=" << n;
            }
        }
    }
}

// Quantising by plain rounding stays within half a step of the coarsest grid that the type can choose.
TEST(QuantizeWeights, ErrorIsThatOfTheType) {
    const std::pair<Type, double> limits[] = {
        {Type::kF32, 0.0},    {Type::kF16, 0.0005}, {Type::kBF16, 0.003}, {Type::kQ8_0, 0.007},
        {Type::kQ6_K, 0.025}, {Type::kQ5_0, 0.055}, {Type::kQ5_1, 0.05},  {Type::kQ5_K, 0.05},
        {Type::kQ4_0, 0.11},  {Type::kQ4_1, 0.1},   {Type::kQ4_K, 0.1},   {Type::kQ3_K, 0.2},
        {Type::kQ2_K, 0.42},      {Type::kIQ4_NL, 0.085},   {Type::kIQ4_XS, 0.085},  {Type::kMXFP4, 0.125},
        {Type::kIQ3_S, 0.145},    {Type::kIQ3_XXS, 0.21},   {Type::kIQ2_S, 0.27},    {Type::kIQ2_XS, 0.32},
        {Type::kIQ2_XXS, 0.37},   {Type::kIQ1_M, 0.51},     {Type::kIQ1_S, 0.6},     {Type::kTQ1_0, 0.81},
        {Type::kTQ2_0, 0.81},
    };
    EXPECT_EQ(std::size(limits), all_traits().size());
    std::mt19937 rng(5);
    const std::vector<float> x = random_floats(8192, 0.02f, rng);
    for (const auto& [type, limit] : limits) {
        std::vector<std::byte> w(row_bytes(type, x.size()));
        quantize_weights(type, x.data(), w.data(), x.size());
        std::vector<float> y(x.size());
        scalar_set().dequantize(type, w.data(), y.data(), y.size());
        double error = 0, power = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2.0);
            power += std::pow(static_cast<double>(x[i]), 2.0);
        }
        EXPECT_LE(std::sqrt(error / power), limit) << traits(type).name;
    }
}

// Eight equal weights are no point of some grids, and no power of two is 125.
float coarseness(Type type) {
    switch (type) {
        case Type::kIQ2_XXS:
            return 0.82f;
        case Type::kIQ3_XXS:
            return 0.55f;
        case Type::kIQ3_S:
            return 0.41f;
        case Type::kMXFP4:
            return 0.03f;
        default:
            return 0.01f;
    }
}

TEST(QuantizeWeights, EdgesOfTheRange) {
    for (const TypeTraits& t : all_traits()) {
        for (const float value : {0.0f, 1.0f, -1.0f, 1e-8f, 1000.0f}) {
            const std::vector<float> x(256, value);
            std::vector<std::byte> w(row_bytes(t.type, x.size()));
            quantize_weights(t.type, x.data(), w.data(), x.size());
            std::vector<float> y(x.size());
            scalar_set().dequantize(t.type, w.data(), y.data(), y.size());
            for (const float v : y) EXPECT_NEAR(v, value, std::fabs(value) * coarseness(t.type) + 1e-7f) << t.name;
        }
    }
}

}  // namespace
}  // namespace weir::test
