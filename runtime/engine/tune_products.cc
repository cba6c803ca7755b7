#include "runtime/engine/tune_products.h"

#include <algorithm>

namespace weir {
namespace {

// A tile of the right-hand matrix that stays in the second-level cache while many rows meet it: 64 KiB.
constexpr size_t kTileColumns = 64, kTileDepth = 256;
constexpr size_t kTileRows = 256;     // of the left-hand one
constexpr size_t kGradientRows = 32;  // of a gradient, per unit

}  // namespace

void TuneProducts::share(size_t units, const std::function<void(size_t, size_t)>& work) const {
    std::atomic<size_t> next{0};
    team_.run([&](size_t worker) {
        for (size_t unit = next.fetch_add(1, std::memory_order_relaxed); unit < units;
             unit = next.fetch_add(1, std::memory_order_relaxed))
            work(worker, unit);
    });
}

void TuneProducts::make_panels(const float* w, size_t rows, size_t cols, RowPanels* out) const {
    out->rows = rows;
    out->cols = cols;
    out->values.assign((rows + 7) / 8 * 8 * cols, 0.0f);
    share((rows + 7) / 8, [&](size_t, size_t panel) {
        float* const to = out->values.data() + panel * 8 * cols;
        for (size_t r = 8 * panel; r < std::min(rows, 8 * panel + 8); ++r)
            for (size_t c = 0; c < cols; ++c) to[c * 8 + r % 8] = w[r * cols + c];
    });
}

void TuneProducts::forward(const float* x, size_t n, const RowPanels& w, float* y) const {
    const size_t tiles = (w.rows + kTileColumns - 1) / kTileColumns, groups = (n + kTileRows - 1) / kTileRows;
    share(tiles * groups, [&](size_t, size_t unit) {
        const size_t first = unit / groups * kTileColumns, columns = std::min(kTileColumns, w.rows - first);
        const size_t t = unit % groups * kTileRows, count = std::min(kTileRows, n - t);
        float* const out = y + t * w.rows + first;
        for (size_t i = 0; i < count; ++i) std::fill_n(out + i * w.rows, columns, 0.0f);
        for (size_t k = 0; k < w.cols; k += kTileDepth)
            kernels_.multiply_add(kernels::Type::kF32, x + t * w.cols + k, w.cols, count,
                                  w.values.data() + first * w.cols + k * 8, 8, 8 * w.cols,
                                  std::min(kTileDepth, w.cols - k), columns, out, w.rows);
    });
}

void TuneProducts::backward(const float* dy, size_t n, const float* w, size_t rows, size_t cols, bool add,
                            float* dx) const {
    const size_t tiles = (cols + kTileColumns - 1) / kTileColumns, groups = (n + kTileRows - 1) / kTileRows;
    share(tiles * groups, [&](size_t, size_t unit) {
        const size_t first = unit / groups * kTileColumns, columns = std::min(kTileColumns, cols - first);
        const size_t t = unit % groups * kTileRows, count = std::min(kTileRows, n - t);
        float* const out = dx + t * cols + first;
        for (size_t i = 0; i < count && !add; ++i) std::fill_n(out + i * cols, columns, 0.0f);
        for (size_t k = 0; k < rows; k += kTileDepth)
            kernels_.multiply_add(kernels::Type::kF32, dy + t * rows + k, rows, count, w + k * cols + first, cols, 8,
                                  std::min(kTileDepth, rows - k), columns, out, cols);
    });
}

void TuneProducts::weight_gradient(const float* dy, const float* x, size_t n, size_t rows, size_t cols,
                                   const std::function<void(size_t, size_t, const float*)>& see) const {
    struct Scratch {
        std::vector<float> across;    // [kGradientRows, n] of dy, turned
        std::vector<float> gradient;  // [kGradientRows, cols]
    };
    std::vector<Scratch> scratch(team_.size());
    share((rows + kGradientRows - 1) / kGradientRows, [&](size_t worker, size_t unit) {
        const size_t first = unit * kGradientRows, count = std::min(kGradientRows, rows - first);
        auto& [across, gradient] = scratch[worker];
        across.resize(kGradientRows * n);
        gradient.assign(kGradientRows * cols, 0.0f);
        for (size_t t = 0; t < n; ++t)
            for (size_t r = 0; r < count; ++r) across[r * n + t] = dy[t * rows + first + r];
        for (size_t t = 0; t < n; t += kTileDepth)
            for (size_t c = 0; c < cols; c += kTileColumns)
                kernels_.multiply_add(kernels::Type::kF32, across.data() + t, n, count, x + t * cols + c, cols, 8,
                                      std::min(kTileDepth, n - t), std::min(kTileColumns, cols - c),
                                      gradient.data() + c, cols);
        see(first, count, gradient.data());
    });
}

}  // namespace weir
