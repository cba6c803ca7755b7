#include "runtime/engine/tune_scales.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr size_t kGroup = 32, kGroupsPerSuper = 8;
constexpr uint16_t kHalfOne = 0x3c00;

// Of Adam. The second moment remembers some hundred steps, a tenth of what is usual: one pass over the samples has
// hardly more.
constexpr float kMeanDecay = 0.9f, kSquareDecay = 0.99f;

}  // namespace

TuneScales::TuneScales(kernels::Level level, size_t rows, size_t cols)
    : level_(level),
      plane_(level == kernels::Level::k2 ? kernels::Plane::kS2 : kernels::Plane::kS3),
      centre_(level == kernels::Level::k2 ? 1.5f : 3.5f),
      rows_(rows),
      cols_(cols),
      groups_(cols / kGroup),
      supers_((groups_ + kGroupsPerSuper - 1) / kGroupsPerSuper),
      codes_(rows * cols),
      stored_(rows * supers_) {
    for (std::vector<float>* const v : {&scale_, &min_, &unit_}) v->resize(rows_ * groups_);
    scales_.resize(rows_ * groups_);
    middles_.resize(rows_ * groups_);
}

void TuneScales::load(const kernels::KernelSet& kernels, size_t first, size_t n, const kernels::NestedRows& rows) {
    // With scales of one and no minima, what dequantises gives the codes.
    std::vector<std::byte> ones(kernels::plane_row_bytes(plane_, cols_));
    kernels::NestedBlock::Scales one;
    one.d = kHalfOne;
    std::ranges::fill(one.scale, uint8_t{1});
    for (size_t s = 0; s < supers_; ++s) kernels::pack_scales(one, s, cols_, ones.data());
    std::vector<float> row(cols_);
    for (size_t r = first; r < first + n; ++r) {
        kernels::NestedRows from = rows.from(r - first, cols_);
        for (size_t s = 0; s < supers_; ++s)
            kernels::unpack_scales(from.at(plane_), s, cols_, &stored_[r * supers_ + s]);
        from.plane[static_cast<size_t>(plane_)] = ones.data();
        kernels.dequantize_nested(level_, from, row.data(), cols_);
        for (size_t c = 0; c < cols_; ++c) codes_[r * cols_ + c] = static_cast<uint8_t>(row[c]);
        read_stored(r);
        for (size_t g = r * groups_; g < (r + 1) * groups_; ++g) {
            unit_[g] = scales_.value[g] = scale_[g];
            middles_.value[g] = min_[g] + centre_ * scale_[g];
        }
    }
}

uint64_t TuneScales::bytes(size_t rows, size_t cols) {
    const uint64_t groups = cols / kGroup;
    return rows * (cols + groups * 11 * sizeof(float) + (groups + 7) / 8 * sizeof(kernels::NestedBlock::Scales));
}

void TuneScales::read_stored(size_t row) {
    for (size_t g = 0; g < groups_; ++g) {
        const auto [scale, min] =
            kernels::group_scale(stored_[row * supers_ + g / kGroupsPerSuper], g % kGroupsPerSuper);
        scale_[row * groups_ + g] = scale;
        min_[row * groups_ + g] = min;
    }
}

void TuneScales::weights(size_t first, size_t n, float* out) const {
    for (size_t group = first * groups_; group < (first + n) * groups_; ++group) {
        const uint8_t* const code = codes_.data() + group * kGroup;
        const float s = scale_[group], m = min_[group];
        for (size_t i = 0; i < kGroup; ++i) out[i] = s * static_cast<float>(code[i]) + m;
        out += kGroup;
    }
}

void TuneScales::add_gradient(size_t first, size_t n, const float* gradient) {
    for (size_t group = first * groups_; group < (first + n) * groups_; ++group, gradient += kGroup) {
        const uint8_t* const code = codes_.data() + group * kGroup;
        float along = 0, all = 0;
        for (size_t i = 0; i < kGroup; ++i) {
            along += gradient[i] * (static_cast<float>(code[i]) - centre_);
            all += gradient[i];
        }
        scales_.gradient[group] += along;
        middles_.gradient[group] += all;
    }
}

// One number's step, and a new gradient begins.
float TuneScales::Descent::moved(size_t at, float unit, size_t step, float rate) {
    const float g = gradient[at] * unit;
    gradient[at] = 0;
    mean[at] = kMeanDecay * mean[at] + (1 - kMeanDecay) * g;
    square[at] = kSquareDecay * square[at] + (1 - kSquareDecay) * g * g;
    const auto n = static_cast<float>(step);
    const float m = mean[at] / (1 - std::pow(kMeanDecay, n)), v = square[at] / (1 - std::pow(kSquareDecay, n));
    return v > 0 ? value[at] - rate * unit * m / std::sqrt(v) : value[at];
}

void TuneScales::move(size_t first, size_t n, size_t step, float rate) {
    for (size_t r = first; r < first + n; ++r) {
        for (size_t at = r * groups_; at < (r + 1) * groups_; ++at) {
            scales_.value[at] = std::max(0.0f, scales_.moved(at, unit_[at], step, rate));
            middles_.value[at] = middles_.moved(at, unit_[at], step, rate);
        }
        for (size_t s = 0; s < supers_; ++s) {
            const size_t at = r * groups_ + s * kGroupsPerSuper;
            kernels::NestedBlock::Scales next;
            if (kernels::nearest_scales(&scales_.value[at], &middles_.value[at], centre_,
                                        std::min(kGroupsPerSuper, groups_ - s * kGroupsPerSuper), &next))
                stored_[r * supers_ + s] = next;
        }
        read_stored(r);
    }
}

void TuneScales::pack(size_t first, size_t n, std::byte* out) const {
    for (size_t r = first; r < first + n; ++r, out += kernels::plane_row_bytes(plane_, cols_))
        for (size_t s = 0; s < supers_; ++s) kernels::pack_scales(stored_[r * supers_ + s], s, cols_, out);
}

}  // namespace weir
