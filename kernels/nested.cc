#include "kernels/nested.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/half.h"
#include "kernels/nested_fit.h"

namespace weir::kernels {
namespace {

constexpr size_t kOneBitPlane = 32, kTwoBitPlane = 64, kScaleBytes = 16;  // of a full super-block

bool is_scales(Plane p) { return p == Plane::kS2 || p == Plane::kS3 || p == Plane::kS4; }
bool is_one_bit(Plane p) { return p == Plane::kP2 || p == Plane::kP3; }

size_t full_bytes(Plane p) { return is_scales(p) ? kScaleBytes : is_one_bit(p) ? kOneBitPlane : kTwoBitPlane; }

size_t short_bytes(Plane p, size_t groups) {
    if (groups == 0) return 0;
    if (is_scales(p)) return 4 + (12 * groups + 7) / 8;
    return (is_one_bit(p) ? 4 : 8) * groups;
}

// What the plane holds of a code.
unsigned bits_in(Plane p, unsigned code) {
    switch (p) {
        case Plane::kP1: return code >> 6;
        case Plane::kP2: return code >> 5 & 1;
        case Plane::kP3: return code >> 4 & 1;
        case Plane::kP4a: return code >> 2 & 3;
        default: return code & 3;
    }
}

void put(std::byte* at, unsigned bits) { *at |= static_cast<std::byte>(bits); }

void pack_codes(const uint8_t* code, size_t groups, Plane p, std::byte* out) {
    const bool whole = groups == kCellsPerSuper, one = is_one_bit(p);
    std::memset(out, 0, whole ? full_bytes(p) : short_bytes(p, groups));
    for (size_t e = 0; e < 32 * groups; ++e) {
        const size_t c = e / 32, h = e / 16 % 2, i = e % 16, j = e % 32;
        const unsigned bits = bits_in(p, code[e]);
        if (whole && one) put(out + c / 4 * 16 + i, bits << (2 * (c % 4) + h));
        if (whole && !one) put(out + 32 * h + c / 4 * 16 + i, bits << (2 * (c % 4)));
        if (!whole && one) put(out + 4 * c + j % 4, bits << (j / 4));
        if (!whole && !one) put(out + 8 * c + j % 8, bits << (2 * (j / 8)));
    }
}

void put_scales(const NestedBlock::Scales& s, size_t groups, std::byte* out) {
    std::memcpy(out, &s.d, 2);
    std::memcpy(out + 2, &s.dmin, 2);
    out += 4;
    if (groups < kCellsPerSuper) {
        std::memset(out, 0, (12 * groups + 7) / 8);
        for (size_t g = 0; g < groups; ++g) {
            const unsigned both = (s.scale[g] | static_cast<unsigned>(s.min[g]) << 6) << (g % 2 * 4);
            put(out + g * 12 / 8, both & 255);
            put(out + g * 12 / 8 + 1, both >> 8);
        }
        return;
    }
    for (size_t g = 0; g < 4; ++g) {
        const auto top = [](unsigned value) { return value >> 4 << 6; };
        out[g] = static_cast<std::byte>(s.scale[g] | top(s.scale[g + 4]));
        out[g + 4] = static_cast<std::byte>(s.min[g] | top(s.min[g + 4]));
        out[g + 8] = static_cast<std::byte>((s.scale[g + 4] & 15u) | (s.min[g + 4] & 15u) << 4);
    }
}

constexpr int kTopScale = 63;  // of six bits

// Least squares: weights w that have codes q, whatever scale and min will be.
struct Sums {
    double n = 0, q = 0, qq = 0, w = 0, wq = 0, ww = 0;

    void add(double weight, double code) {
        n += 1, q += code, qq += code * code, w += weight, wq += weight * code, ww += weight * weight;
    }
    double error(double s, double m) const {
        return ww + s * s * qq + m * m * n + 2 * s * m * q - 2 * s * wq - 2 * m * w;
    }
    // The best scale, and the best min for it, neither of a sign that cannot be stored.
    void solve(double* s, double* m) const {
        const double variance = n * qq - q * q;
        *s = variance > 0 ? std::max(0.0, (n * wq - q * w) / variance) : 0;
        *m = (w - *s * q) / n;
        if (*m <= 0) return;
        *m = 0;
        *s = qq > 0 ? std::max(0.0, wq / qq) : 0;
    }
};

// d and dmin so that the largest scale and min of the groups are the largest integers. False where a half cannot hold them.
bool set_units(const double* scale, const double* min, size_t groups, NestedBlock::Scales* out) {
    double most_scale = 0, most_min = 0;
    for (size_t g = 0; g < groups; ++g) {
        most_scale = std::max(most_scale, scale[g]);
        most_min = std::max(most_min, -min[g]);
    }
    // Away from zero: a grid that is to reach over all weights may not shrink by rounding.
    const auto upward = [](double value) {
        uint16_t half = float_to_half(static_cast<float>(value));
        if (static_cast<double>(half_to_float(half)) < value) ++half;
        return half;
    };
    out->d = upward(most_scale / kTopScale);
    out->dmin = upward(most_min / kTopScale);
    return std::isfinite(half_to_float(out->d)) && std::isfinite(half_to_float(out->dmin));
}

int nearest(double value, double unit) {
    if (unit == 0) return 0;
    return static_cast<int>(std::clamp(std::nearbyint(value / unit), 0.0, double{kTopScale}));
}

// Scale and min of each group for codes that are settled: the integers of the least error next to the best real ones.
bool fit_scales(const Sums* sums, size_t groups, NestedBlock::Scales* out) {
    double s[kCellsPerSuper] = {}, m[kCellsPerSuper] = {};
    for (size_t g = 0; g < groups; ++g) sums[g].solve(&s[g], &m[g]);
    if (!set_units(s, m, groups, out)) return false;
    const double d = static_cast<double>(half_to_float(out->d)), dmin = static_cast<double>(half_to_float(out->dmin));
    for (size_t g = 0; g < groups; ++g) {
        double least = INFINITY;
        for (int mn = std::max(0, nearest(-m[g], dmin) - 1); mn <= std::min(kTopScale, nearest(-m[g], dmin) + 1); ++mn) {
            // the best scale for this min
            const double best = sums[g].qq > 0 ? (sums[g].wq + dmin * mn * sums[g].q) / sums[g].qq : 0;
            const int sc = nearest(std::max(0.0, best), d);
            const double error = sums[g].error(d * sc, -dmin * mn);
            if (!(error < least)) continue;
            least = error;
            out->scale[g] = static_cast<uint8_t>(sc);
            out->min[g] = static_cast<uint8_t>(mn);
        }
    }
    return true;
}

int high_of(double weight, double s, double m) {
    return s == 0 ? 0 : static_cast<int>(std::clamp(std::nearbyint((weight - m) / s), 0.0, 15.0));
}

// Scale and min of a group at level 4, whose sixteen steps, and half a step beyond on both sides, hold all its weights: what
// is cut off at level 4 no bits bring back at level 8, however good it is for level 4. (Where no integers do, the nearest.)
void fit_group(const float* w, double low, double high, double d, double dmin, uint8_t* scale, uint8_t* min) {
    double least = INFINITY;
    bool covered = false;
    const int middle = nearest(-(low + (high - low) / 32), dmin);
    for (int mn = std::max(0, middle - 2); mn <= std::min(kTopScale, middle + 2); ++mn) {
        const double m = -dmin * mn;
        // m - s / 2 <= low and m + 15.5 s >= high
        const double needed = std::max({(m - low) * 2, (high - m) / 15.5, 0.0});
        const double wanted = d == 0 ? 0 : std::ceil(needed / d);
        if (wanted > kTopScale && covered) continue;
        if (wanted <= kTopScale && !covered) {
            covered = true;
            least = INFINITY;
        }
        const int covers = static_cast<int>(std::min(wanted, double{kTopScale}));
        for (int sc = covers; sc <= std::min(kTopScale, covers + 1); ++sc) {
            const double s = d * sc;
            double error = 0;
            for (size_t i = 0; i < kCellElements; ++i) {
                const double off = static_cast<double>(w[i]) - (s * high_of(static_cast<double>(w[i]), s, m) + m);
                error += off * off;
            }
            if (!(error < least)) continue;
            least = error;
            *scale = static_cast<uint8_t>(sc);
            *min = static_cast<uint8_t>(mn);
        }
    }
}

size_t groups_of(size_t block, size_t k) { return std::min(kCellsPerSuper, k / kCellElements - block * kCellsPerSuper); }

}  // namespace

const char* plane_name(Plane plane) noexcept {
    constexpr const char* kNames[kPlanes] = {"S3", "P2", "P1", "S2", "S4", "P3", "P4a", "P4b"};
    return kNames[static_cast<size_t>(plane)];
}

bool reads_plane(Level level, Plane plane) noexcept {
    switch (plane) {
        case Plane::kS2: return level == Level::k2;
        case Plane::kS3: return level == Level::k3;
        case Plane::kS4: return level >= Level::k4;
        case Plane::kP1: return true;
        case Plane::kP2: return level >= Level::k3;
        case Plane::kP3: return level >= Level::k4;
        case Plane::kP4a: return level >= Level::k6;
        case Plane::kP4b: return level >= Level::k8;
    }
    return false;
}

size_t plane_row_bytes(Plane plane, size_t k) noexcept {
    return k / kSuperElements * full_bytes(plane) + short_bytes(plane, k % kSuperElements / kCellElements);
}

size_t level_row_bytes(Level level, size_t k) noexcept {
    size_t bytes = 0;
    for (size_t p = 0; p < kPlanes; ++p) {
        if (reads_plane(level, static_cast<Plane>(p))) bytes += plane_row_bytes(static_cast<Plane>(p), k);
    }
    return bytes;
}

NestedRows NestedRows::from(size_t n, size_t k) const noexcept {
    NestedRows out = *this;
    for (size_t p = 0; p < kPlanes; ++p) {
        if (out.plane[p] != nullptr) out.plane[p] += n * plane_row_bytes(static_cast<Plane>(p), k);
    }
    return out;
}

void pack_nested(const NestedBlock& in, size_t block, size_t k, std::byte* const (&row)[kPlanes]) noexcept {
    const size_t groups = groups_of(block, k);
    for (size_t p = 0; p < kPlanes; ++p) {
        const auto plane = static_cast<Plane>(p);
        std::byte* const out = row[p] + block * full_bytes(plane);
        switch (plane) {
            case Plane::kS2: put_scales(in.s2, groups, out); break;
            case Plane::kS3: put_scales(in.s3, groups, out); break;
            case Plane::kS4: put_scales(in.s4, groups, out); break;
            default: pack_codes(in.code, groups, plane, out); break;
        }
    }
}

void unpack_scales(const std::byte* row, size_t block, size_t k, NestedBlock::Scales* out) noexcept {
    const std::byte* const at = row + block * kScaleBytes;
    const size_t groups = groups_of(block, k);
    out->d = load_u16(at);
    out->dmin = load_u16(at + 2);
    uint8_t packed[12];
    if (groups == kCellsPerSuper) std::memcpy(packed, at + 4, sizeof packed);
    for (size_t g = 0; g < groups; ++g) {
        const unsigned both = groups == kCellsPerSuper ? q4_k_scale(packed, g) | q4_k_min(packed, g) << 6
                                                       : static_cast<unsigned>(load_u16(at + 4 + g * 12 / 8)) >> (g % 2 * 4);
        out->scale[g] = both & 63;
        out->min[g] = both >> 6 & 63;
    }
}

void pack_scales(const NestedBlock::Scales& in, size_t block, size_t k, std::byte* row) noexcept {
    put_scales(in, groups_of(block, k), row + block * kScaleBytes);
}

GroupScale group_scale(const NestedBlock::Scales& s, size_t group) noexcept {
    return {half_to_float(s.d) * static_cast<float>(s.scale[group]), -(half_to_float(s.dmin) * static_cast<float>(s.min[group]))};
}

bool nearest_scales(const float* scale, const float* middle, float centre, size_t groups, NestedBlock::Scales* out) noexcept {
    double s[kCellsPerSuper] = {}, m[kCellsPerSuper] = {};
    for (size_t g = 0; g < groups; ++g) {
        s[g] = static_cast<double>(scale[g]);
        m[g] = static_cast<double>(middle[g]) - s[g] * static_cast<double>(centre);
    }
    if (!set_units(s, m, groups, out)) return false;
    const double d = static_cast<double>(half_to_float(out->d)), dmin = static_cast<double>(half_to_float(out->dmin));
    for (size_t g = 0; g < groups; ++g) {
        const int sc = nearest(s[g], d);
        out->scale[g] = static_cast<uint8_t>(sc);
        out->min[g] = static_cast<uint8_t>(nearest(d * sc * static_cast<double>(centre) - static_cast<double>(middle[g]), dmin));
    }
    return true;
}

bool fit_level(Level level, const float* weights, size_t n, NestedBlock* block) noexcept {
    const int shift = level == Level::k2 ? 6 : 5;
    Sums sums[kCellsPerSuper];
    for (size_t e = 0; e < n; ++e) sums[e / kCellElements].add(static_cast<double>(weights[e]), block->code[e] >> shift);
    return fit_scales(sums, n / kCellElements, level == Level::k2 ? &block->s2 : &block->s3);
}

bool fit_nested(const float* weights, size_t n, NestedBlock* out) noexcept {
    const size_t groups = n / kCellElements;
    double low[kCellsPerSuper], high[kCellsPerSuper], s[kCellsPerSuper], m[kCellsPerSuper];
    for (size_t g = 0; g < groups; ++g) {
        const float* const w = weights + g * kCellElements;
        low[g] = static_cast<double>(*std::min_element(w, w + kCellElements));
        high[g] = static_cast<double>(*std::max_element(w, w + kCellElements));
        m[g] = std::min(low[g], 0.0);  // minima are subtracted: weights above zero get a grid from zero
        s[g] = (high[g] - m[g]) / 15;
    }
    if (!set_units(s, m, groups, &out->s4)) return false;
    const double d = static_cast<double>(half_to_float(out->s4.d)), dmin = static_cast<double>(half_to_float(out->s4.dmin));
    Sums two[kCellsPerSuper], three[kCellsPerSuper];
    for (size_t g = 0; g < groups; ++g) {
        const float* const w = weights + g * kCellElements;
        fit_group(w, low[g], high[g], d, dmin, &out->s4.scale[g], &out->s4.min[g]);
        const double scale = d * out->s4.scale[g], min = -dmin * out->s4.min[g];
        for (size_t i = 0; i < kCellElements; ++i) {
            const double weight = static_cast<double>(w[i]);
            const int top = high_of(weight, scale, min);
            const double left = scale == 0 ? 0 : (weight - min) / scale - top;
            const int rest = static_cast<int>(std::clamp(std::nearbyint(left * 16 + 7.5), 0.0, 15.0));
            out->code[g * kCellElements + i] = static_cast<uint8_t>(top << 4 | rest);
            two[g].add(weight, top >> 2);
            three[g].add(weight, top >> 1);
        }
    }
    return fit_scales(two, groups, &out->s2) && fit_scales(three, groups, &out->s3);
}

}  // namespace weir::kernels
