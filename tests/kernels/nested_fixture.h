// Random nested rows for tests: integers that are known, in planes that each end at a guard page.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "kernels/half.h"
#include "kernels/nested.h"
#include "tests/kernels/fixture.h"

namespace weir::test {

class NestedMatrix {
  public:
    // fill: what every code is; below 0: random. Halves are 1, and integer scales the greatest, where there is a fill.
    NestedMatrix(size_t rows, size_t k, uint8_t fine_steps, uint32_t seed, int fill = -1, size_t before_end = 0)
        : rows_(rows), k_(k) {
        std::mt19937 rng(seed);
        std::normal_distribution<float> normal;
        for (size_t p = 0; p < kPlanes; ++p) {
            planes_[p] = std::make_unique<GuardedBytes>(rows * plane_row_bytes(static_cast<Plane>(p), k), before_end);
            view_.plane[p] = planes_[p]->data();
        }
        view_.fine_steps = fine_steps;
        for (size_t r = 0; r < rows; ++r) {
            std::byte* row[kPlanes];
            for (size_t p = 0; p < kPlanes; ++p) row[p] = planes_[p]->data() + r * plane_row_bytes(static_cast<Plane>(p), k);
            for (size_t b = 0; b * kSuperElements < k; ++b) {
                NestedBlock block;
                for (uint8_t& code : block.code) code = static_cast<uint8_t>(fill < 0 ? rng() : static_cast<uint32_t>(fill));
                for (NestedBlock::Scales* s : {&block.s2, &block.s3, &block.s4}) {
                    s->d = float_to_half(fill < 0 ? normal(rng) * 0.01f : 1.0f);
                    s->dmin = float_to_half(fill < 0 ? normal(rng) * 0.01f : 0.0f);
                    for (size_t g = 0; g < 8; ++g) {
                        s->scale[g] = static_cast<uint8_t>(fill < 0 ? rng() % 64 : 63);
                        s->min[g] = static_cast<uint8_t>(rng() % 64);
                    }
                }
                pack_nested(block, b, k, row);
                blocks_.push_back(block);
            }
        }
    }

    // Only what the level reads: the other planes are nowhere.
    NestedRows view(Level level) const {
        NestedRows out = view_;
        for (size_t p = 0; p < kPlanes; ++p) {
            if (!reads_plane(level, static_cast<Plane>(p))) out.plane[p] = nullptr;
        }
        return out;
    }

    // By the definition in kernels/nested.h.
    double weight(Level level, size_t r, size_t i) const {
        const NestedBlock& b = blocks_[r * ((k_ + 255) / 256) + i / 256];
        const NestedBlock::Scales& s = level == Level::k2 ? b.s2 : level == Level::k3 ? b.s3 : b.s4;
        const size_t g = i % 256 / 32;
        const double scale = static_cast<double>(half_to_float(s.d)) * s.scale[g];
        const double min = -static_cast<double>(half_to_float(s.dmin)) * s.min[g];
        const int high = b.code[i % 256] >> 4, low = b.code[i % 256] & 15;
        const double steps = view_.fine_steps;
        switch (level) {
            case Level::k2: return scale * (high >> 2) + min;
            case Level::k3: return scale * (high >> 1) + min;
            case Level::k4: return scale * high + min;
            case Level::k6: return scale * (high + ((low >> 2) - 1.5) / steps) + min;
            case Level::k8: return scale * (high + (low - 7.5) / (4 * steps)) + min;
        }
        return NAN;
    }

    size_t rows() const { return rows_; }
    size_t k() const { return k_; }

  private:
    size_t rows_, k_;
    std::unique_ptr<GuardedBytes> planes_[kPlanes];
    NestedRows view_;
    std::vector<NestedBlock> blocks_;
};

}  // namespace weir::test
