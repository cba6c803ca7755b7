#include "runtime/model/synth_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/error.h"

namespace weir {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): one addition and two multiplications for 64 good bits.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

  private:
    uint64_t state_;
};

uint16_t half(double value) {
    const auto narrow = static_cast<float>(value);
    uint16_t out = 0;
    kernels::select_kernels("scalar")->f32_to_f16(&narrow, 1, &out);
    return out;
}

// Scales differ from block to block by up to a quarter. Their root mean square is 1.
constexpr size_t kScales = 64;
double scale_factor(size_t i) {
    const double spread = 0.75 + 0.5 * (static_cast<double>(i) + 0.5) / kScales;
    return spread / std::sqrt(1.0 + 0.25 / 12);
}

// Standard deviation of a code that is uniform over n whole numbers.
double uniform_deviation(double n) {
    return std::sqrt((n * n - 1) / 12);
}

template <typename T>
std::byte* put(std::byte* out, T value) {
    std::memcpy(out, &value, sizeof(T));
    return out + sizeof(T);
}

// Evenly distributed floats. For the few tensors that are never quantised.
class F32Source final : public WeightSource {
  public:
    F32Source(double deviation, Random random) : random_(random), range_(deviation * std::sqrt(12.0)) {}

    void fill(std::span<std::byte> out) override {
        std::byte* to = out.data();
        std::byte* const end = to + out.size();
        constexpr double kSteps = 1 << 24;
        while (to != end) {
            const double place = (static_cast<double>(random_.next() >> 40) + 0.5) / kSteps;
            to = put(to, static_cast<float>(range_ * (place - 0.5)));
        }
    }

  private:
    Random random_;
    const double range_;
};

// Halves from a table of evenly spaced values.
class F16Source final : public WeightSource {
  public:
    F16Source(double deviation, Random random) : random_(random) {
        constexpr auto kSize = static_cast<double>(kValues);
        for (size_t i = 0; i < kValues; ++i) {
            const double centred = (static_cast<double>(i) - (kSize - 1) / 2);
            values_[i] = half(deviation * centred / uniform_deviation(kSize));
        }
    }

    void fill(std::span<std::byte> out) override {
        std::byte* to = out.data();
        std::byte* const end = to + out.size();
        while (end - to >= 8) {
            const uint64_t bits = random_.next();
            for (int i = 0; i < 4; ++i) to = put(to, values_[bits >> (16 * i) & (kValues - 1)]);
        }
        while (to != end) to = put(to, values_[random_.next() & (kValues - 1)]);
    }

  private:
    static constexpr size_t kValues = 4 << 10;
    Random random_;
    std::array<uint16_t, kValues> values_;
};

// weight = scale * (code - 8): the codes' mean is half a step below zero, so the scales' signs alternate at
// random.
class Q4_0Source final : public WeightSource {
  public:
    Q4_0Source(double deviation, Random random) : random_(random) {
        const double code = std::sqrt(uniform_deviation(16) * uniform_deviation(16) + 0.25);
        for (size_t i = 0; i < kScales; ++i) {
            scales_[i] = half(deviation * scale_factor(i) / code);
            scales_[i + kScales] = static_cast<uint16_t>(scales_[i] | 0x8000u);
        }
    }

    void fill(std::span<std::byte> out) override {
        std::byte* to = out.data();
        std::byte* const end = to + out.size();
        while (to != end) {
            to = put(to, scales_[random_.next() % (2 * kScales)]);
            to = put(to, random_.next());
            to = put(to, random_.next());
        }
    }

  private:
    Random random_;
    std::array<uint16_t, 2 * kScales> scales_;
};

// weight = scale * code, codes -127 to 127.
class Q8_0Source final : public WeightSource {
  public:
    Q8_0Source(double deviation, Random random) : random_(random) {
        for (size_t i = 0; i < kScales; ++i) {
            scales_[i] = half(deviation * scale_factor(i) / uniform_deviation(255));
        }
    }

    void fill(std::span<std::byte> out) override {
        std::byte* to = out.data();
        std::byte* const end = to + out.size();
        while (to != end) {
            to = put(to, scales_[random_.next() % kScales]);
            for (int i = 0; i < 4; ++i) to = put(to, codes());
        }
    }

  private:
    // Eight codes. -128 is none that a quantiser writes: such bytes get their lowest bit set.
    uint64_t codes() {
        constexpr uint64_t kLow = 0x0101010101010101u;
        constexpr uint64_t kAllButHigh = 0x7f7f7f7f7f7f7f7fu;
        const uint64_t bits = random_.next();
        const uint64_t flipped = bits ^ ~kAllButHigh;  // 0 in bytes that are -128
        const uint64_t not_zero = ((flipped & kAllButHigh) + kAllButHigh) | flipped;
        return bits | (~(not_zero >> 7) & kLow);
    }

    Random random_;
    std::array<uint16_t, kScales> scales_;
};

// weight = d * scale * code - dmin * min. Each group's scale is its min too, 32 to 63 of 6 bits, and dmin
// is 7.5 d: the middle of the codes is zero.
class Q4_KSource final : public WeightSource {
  public:
    Q4_KSource(double deviation, Random random) : random_(random) {
        double squares = 0;
        for (int scale = 32; scale < 64; ++scale) squares += scale * scale;
        const double unit = std::sqrt(squares / 32) * uniform_deviation(16);
        for (size_t i = 0; i < kScales; ++i) {
            const double d = deviation * scale_factor(i) / unit;
            scales_[i] = static_cast<uint32_t>(half(d)) | static_cast<uint32_t>(half(7.5 * d)) << 16;
        }
    }

    void fill(std::span<std::byte> out) override {
        std::byte* to = out.data();
        std::byte* const end = to + out.size();
        while (to != end) {
            to = put(to, scales_[random_.next() % kScales]);
            // Groups 0-3 keep scale and min in the low six bits of bytes 0-3 and 4-7; groups 4-7 in a nibble
            // each of bytes 8-11 and the two bits left over in bytes 0-3 and 4-7.
            const uint64_t bits = random_.next();
            const auto low = static_cast<uint32_t>(bits) | 0xa0a0a0a0u;
            const auto nibbles = static_cast<uint32_t>(bits >> 32) & 0x0f0f0f0fu;
            to = put(to, low);
            to = put(to, low);
            to = put(to, nibbles | nibbles << 4);
            for (int i = 0; i < 16; ++i) to = put(to, random_.next());
        }
    }

  private:
    Random random_;
    std::array<uint32_t, kScales> scales_;
};

// weight = d * scale * (code - 32), codes of 6 bits: as for Q4_0 their mean is half a step below zero, and the scales' signs
// alternate at random. Scales -64 to -33 and 32 to 63 of 8 bits, one for 16 weights.
class Q6_KSource final : public WeightSource {
  public:
    Q6_KSource(double deviation, Random random) : random_(random) {
        double squares = 0;
        for (int scale = 32; scale < 64; ++scale) squares += scale * scale + (scale + 1) * (scale + 1);
        const double unit = std::sqrt(squares / 64 * (uniform_deviation(64) * uniform_deviation(64) + 0.25));
        for (size_t i = 0; i < kScales; ++i) scales_[i] = half(deviation * scale_factor(i) / unit);
    }

    void fill(std::span<std::byte> out) override {
        std::byte* to = out.data();
        std::byte* const end = to + out.size();
        while (to != end) {
            for (int i = 0; i < 24; ++i) to = put(to, random_.next());  // 256 codes: low nibbles, then high bits
            for (int i = 0; i < 2; ++i) to = put(to, group_scales());
            to = put(to, scales_[random_.next() % kScales]);
        }
    }

  private:
    // Eight bytes: 32 to 63, or all bits the other way round, which is -33 to -64.
    uint64_t group_scales() {
        constexpr uint64_t kOnes = 0x0101010101010101u;
        const uint64_t bits = random_.next();
        const uint64_t magnitudes = (bits & 0x1f * kOnes) | 0x20 * kOnes;
        return magnitudes ^ (bits >> 7 & kOnes) * 0xff;
    }

    Random random_;
    std::array<uint16_t, kScales> scales_;
};

// The types whose blocks are random bits around one scale, and where in the block that lies.
struct ScalePlace {
    kernels::Type type;
    size_t at;
};
constexpr ScalePlace kScalePlaces[] = {
    {kernels::Type::kIQ2_XXS, 0}, {kernels::Type::kIQ2_XS, 0}, {kernels::Type::kIQ2_S, 0},
    {kernels::Type::kIQ3_XXS, 0}, {kernels::Type::kIQ3_S, 0}, {kernels::Type::kIQ1_S, 0},
    {kernels::Type::kIQ1_M, 48}, {kernels::Type::kIQ4_NL, 0}, {kernels::Type::kIQ4_XS, 0},
    {kernels::Type::kTQ1_0, 52}, {kernels::Type::kTQ2_0, 64}, {kernels::Type::kMXFP4, 0},
};

// What a scale of 1 comes to is measured on the first blocks. Scales' signs alternate at random, since values need not
// lie evenly around zero.
class BlockSource final : public WeightSource {
  public:
    BlockSource(ScalePlace place, double deviation, Random random)
        : type_(place.type), at_(place.at), block_bytes_(kernels::traits(place.type).block_bytes), random_(random) {
        scales_.fill(half(1));
        if (type_ == kernels::Type::kMXFP4) scales_.fill(kE8m0One);
        const double unit = deviation_of_sample();
        if (type_ == kernels::Type::kMXFP4) {
            set_powers(deviation / unit);
        } else {
            set_halves(deviation / unit);
        }
    }

    void fill(std::span<std::byte> out) override {
        for (size_t block = 0; block < out.size(); block += block_bytes_) {
            std::byte* const to = out.data() + block;
            for (size_t i = 0; i < block_bytes_; i += 8) {
                uint64_t bits = random_.next();
                if (type_ == kernels::Type::kTQ2_0) bits &= ~(bits >> 1 & bits & 0x5555555555555555u);  // no code 3
                std::memcpy(to + i, &bits, std::min<size_t>(8, block_bytes_ - i));
            }
            put_scale(to + at_, scales_[random_.next() % (2 * kScales)]);
        }
    }

  private:
    static constexpr uint16_t kE8m0One = 128;  // MXFP4's powers of two
    static constexpr size_t kSample = size_t{1} << 20;

    void put_scale(std::byte* to, uint16_t scale) const {
        if (type_ == kernels::Type::kMXFP4) {
            *to = static_cast<std::byte>(scale);
        } else if (type_ == kernels::Type::kIQ1_M) {  // in four parts, on top of four words
            for (size_t i = 0; i < 4; ++i) {
                std::byte& top = to[2 * i + 1];
                top = (top & std::byte{0x0f}) | static_cast<std::byte>((scale >> (4 * i) & 15) << 4);
            }
        } else {
            put(to, scale);
        }
    }

    double deviation_of_sample() {
        std::vector<std::byte> blocks(kernels::row_bytes(type_, kSample));
        fill(blocks);
        std::vector<float> values(kSample);
        kernels::select_kernels("scalar")->dequantize(type_, blocks.data(), values.data(), kSample);
        double squares = 0;
        for (const float v : values) squares += double{v} * v;
        return std::sqrt(squares / kSample);
    }

    void set_halves(double scale) {
        for (size_t i = 0; i < kScales; ++i) {
            scales_[i] = half(scale * scale_factor(i));
            scales_[i + kScales] = static_cast<uint16_t>(scales_[i] | 0x8000u);
        }
    }

    // The two powers of two around a scale, mixed so that their squares' mean is the scale's.
    void set_powers(double scale) {
        const int low = std::ilogb(scale);
        const double ratio = std::ldexp(scale, -low);
        const double share = (ratio * ratio - 1) / 3;
        for (size_t i = 0; i < scales_.size(); ++i) {
            const bool upper = static_cast<double>(i) + 0.5 < share * static_cast<double>(scales_.size());
            scales_[i] = static_cast<uint16_t>(kE8m0One + low + (upper ? 1 : 0));
        }
    }

    const kernels::Type type_;
    const size_t at_;
    const size_t block_bytes_;
    Random random_;
    std::array<uint16_t, 2 * kScales> scales_;
};

}  // namespace

std::unique_ptr<WeightSource> WeightSource::make(kernels::Type type, double deviation, uint64_t seed,
                                                 uint64_t stream) {
    const Random random(Random(Random(seed).next() + stream).next());
    switch (type) {
        case kernels::Type::kF32:
            return std::make_unique<F32Source>(deviation, random);
        case kernels::Type::kF16:
            return std::make_unique<F16Source>(deviation, random);
        case kernels::Type::kQ4_0:
            return std::make_unique<Q4_0Source>(deviation, random);
        case kernels::Type::kQ8_0:
            return std::make_unique<Q8_0Source>(deviation, random);
        case kernels::Type::kQ4_K:
            return std::make_unique<Q4_KSource>(deviation, random);
        case kernels::Type::kQ6_K:
            return std::make_unique<Q6_KSource>(deviation, random);
        default:
            break;
    }
    for (const ScalePlace& place : kScalePlaces) {
        if (place.type == type) return std::make_unique<BlockSource>(place, deviation, random);
    }
    throw Error(std::string("no random weights of type ") + kernels::traits(type).name);
}

}  // namespace weir
