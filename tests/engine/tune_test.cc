// Tuning: the layer that it computes is the engine's, its gradients are those of finite differences, and what it writes differs
// in the scales of levels 2 and 3 alone.
#include "runtime/engine/tune.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/error.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/native_model.h"

namespace weir::test {
namespace {

constexpr size_t kTokens = 12, kWindows = 2;

std::vector<float> randoms(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& value : out) value = normal(random);
    return out;
}

// What differs between families: biases, norms of heads and of what is added, windows, soft caps, both gates and turns.
std::vector<TinyShape> shapes() {
    TinyShape llama, qwen2, qwen3, gemma2, gemma3;
    qwen2.architecture = "qwen2";
    qwen3.architecture = "qwen3";
    gemma2.architecture = "gemma2";
    gemma2.window = 5;
    gemma2.attention_soft_cap = 4;
    gemma2.logit_soft_cap = 30;
    gemma3.architecture = "gemma3";
    gemma3.window = 5;
    gemma3.n_kv_heads = 1;
    llama.rope_factors = true;
    return {llama, qwen2, qwen3, gemma2, gemma3};
}

struct Layers {
    explicit Layers(const TinyShape& shape) : file(shape), engine(file.path(), {}), products(*engine.team, *kernels::select_kernels(nullptr)),
                                              block(engine.model, products, kWindows, kTokens) {}

    std::vector<float> rows_of(size_t layer, size_t part) const {
        const Matrix& m = block_matrix(engine.model.layers[layer], part);
        std::vector<float> rows(m.rows * m.cols);
        for (size_t r = 0; r < m.rows; ++r) products.kernels().dequantize(m.type, m.rows_at(r), rows.data() + r * m.cols, m.cols);
        return rows;
    }
    BlockWeights weights(size_t layer) const {
        BlockWeights out;
        for (size_t p = 0; p < kBlockParts; ++p) {
            const Matrix& m = block_matrix(engine.model.layers[layer], p);
            out.rows[p] = rows_of(layer, p);
            products.make_panels(out.rows[p].data(), m.rows, m.cols, &out.panels[p]);
        }
        return out;
    }

    TinyModelFile file;
    Engine engine;
    TuneProducts products;
    TuneBlock block;
};

TEST(TuneBlock, IsTheEnginesLayer) {
    for (const TinyShape& shape : shapes()) {
        Layers layers(shape);
        const size_t n_layers = layers.engine.config.n_layers, n = kTokens * layers.engine.config.dim;
        std::vector<float> states(2 * (n_layers + 1) * n);
        for (size_t w = 0; w < kWindows; ++w) {
            std::vector<int32_t> ids(kTokens);
            for (size_t t = 0; t < kTokens; ++t) ids[t] = static_cast<int32_t>(20 + 17 * w + 7 * t);
            layers.engine.cache->set_length(0);
            layers.engine.forward->keep_states(states.data() + w * (n_layers + 1) * n);
            (void)layers.engine.forward->pass(ids, 1, false);
        }
        for (size_t layer = 0; layer < n_layers; ++layer) {
            std::vector<float> x, y(kWindows * n);
            for (size_t w = 0; w < kWindows; ++w)
                x.insert(x.end(), &states[(w * (n_layers + 1) + layer) * n], &states[(w * (n_layers + 1) + layer) * n] + n);
            layers.block.forward(layer, layers.weights(layer), x.data(), kWindows, y.data());
            for (size_t w = 0; w < kWindows; ++w)
                for (size_t i = 0; i < n; ++i)
                    ASSERT_NEAR(y[w * n + i], states[(w * (n_layers + 1) + layer + 1) * n + i], 1e-4) << shape.architecture << " " << layer << " " << w << " " << i;
        }
    }
}

// Of sum(c * y), along a random direction of each matrix.
TEST(TuneBlock, GradientsAreThoseOfFiniteDifferences) {
    for (const TinyShape& shape : shapes()) {
        Layers layers(shape);
        const size_t n = kWindows * kTokens * layers.engine.config.dim;
        const std::vector<float> x = randoms(n, 1), c = randoms(n, 2);
        for (size_t layer = 0; layer < layers.engine.config.n_layers; ++layer) {
            const BlockWeights weights = layers.weights(layer);
            std::vector<float> y(n);
            layers.block.forward(layer, weights, x.data(), kWindows, y.data());
            std::array<std::vector<float>, kBlockParts> gradient;
            for (size_t p = 0; p < kBlockParts; ++p) gradient[p].resize(weights.rows[p].size());
            layers.block.backward(layer, weights, c.data(), kWindows, [&](size_t part, size_t first, size_t rows, const float* values) {
                const size_t cols = weights.panels[part].cols;
                std::copy_n(values, rows * cols, gradient[part].begin() + static_cast<ptrdiff_t>(first * cols));
            });
            for (size_t p = 0; p < kBlockParts; ++p) {
                const std::vector<float> direction = randoms(weights.rows[p].size(), static_cast<uint32_t>(3 + p));
                double slope = 0, squares = 0;
                for (size_t i = 0; i < direction.size(); ++i) {
                    slope += static_cast<double>(gradient[p][i]) * static_cast<double>(direction[i]);
                    squares += static_cast<double>(gradient[p][i]) * static_cast<double>(gradient[p][i]);
                }
                const auto loss = [&](float step) {
                    BlockWeights moved = weights;
                    for (size_t i = 0; i < direction.size(); ++i) moved.rows[p][i] += step * direction[i];
                    layers.products.make_panels(moved.rows[p].data(), weights.panels[p].rows, weights.panels[p].cols, &moved.panels[p]);
                    layers.block.forward(layer, moved, x.data(), kWindows, y.data());
                    double sum = 0;
                    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(c[i]) * static_cast<double>(y[i]);
                    return sum;
                };
                constexpr float kStep = 5e-4f;
                const double difference = (loss(kStep) - loss(-kStep)) / (2 * static_cast<double>(kStep));
                EXPECT_GT(squares, 0) << shape.architecture << " " << p;
                EXPECT_NEAR(slope, difference, 0.01 * std::sqrt(squares)) << shape.architecture << " layer " << layer << " matrix " << p;
            }
        }
    }
}

}  // namespace
}  // namespace weir::test
