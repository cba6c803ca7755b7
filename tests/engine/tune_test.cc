// Tuning: the layer that it computes is the engine's, its gradients are those of finite differences, and what it writes
// differs in the scales of levels 2 and 3 alone.
#include "runtime/engine/tune.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
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
    explicit Layers(const TinyShape& shape)
        : file(shape),
          engine(file.path(), {}),
          products(*engine.team, *kernels::select_kernels(nullptr)),
          block(engine.model, products, kWindows, kTokens) {}

    std::vector<float> rows_of(size_t layer, size_t part) const {
        const Matrix& m = block_matrix(engine.model.layers[layer], part);
        std::vector<float> rows(m.rows * m.cols);
        for (size_t r = 0; r < m.rows; ++r)
            products.kernels().dequantize(m.type, m.rows_at(r), rows.data() + r * m.cols, m.cols);
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
                x.insert(x.end(), &states[(w * (n_layers + 1) + layer) * n],
                         &states[(w * (n_layers + 1) + layer) * n] + n);
            layers.block.forward(layer, layers.weights(layer), x.data(), kWindows, y.data());
            for (size_t w = 0; w < kWindows; ++w)
                for (size_t i = 0; i < n; ++i)
                    ASSERT_NEAR(y[w * n + i], states[(w * (n_layers + 1) + layer + 1) * n + i], 1e-4)
                        << shape.architecture << " " << layer << " " << w << " " << i;
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
            layers.block.backward(
                layer, weights, c.data(), kWindows, [&](size_t part, size_t first, size_t rows, const float* values) {
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
                    layers.products.make_panels(moved.rows[p].data(), weights.panels[p].rows, weights.panels[p].cols,
                                                &moved.panels[p]);
                    layers.block.forward(layer, moved, x.data(), kWindows, y.data());
                    double sum = 0;
                    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(c[i]) * static_cast<double>(y[i]);
                    return sum;
                };
                constexpr float kStep = 5e-4f;
                const double difference = (loss(kStep) - loss(-kStep)) / (2 * static_cast<double>(kStep));
                EXPECT_GT(squares, 0) << shape.architecture << " " << p;
                EXPECT_NEAR(slope, difference, 0.01 * std::sqrt(squares))
                    << shape.architecture << " layer " << layer << " matrix " << p;
            }
        }
    }
}

// Of the mean divergence, along a random direction of the head's scales: gradients of weights through TuneScales' own.
TEST(TuneHead, GradientsAreThoseOfFiniteDifferences) {
    for (const TinyShape& shape : {shapes().front(), shapes()[3]}) {  // without a soft cap of the logits, and with one
        const TinyNativeFile file(shape);
        Engine source(file.source(), {}), native(file.path(), {});
        const TuneProducts products(*source.team, *kernels::select_kernels(nullptr));
        const size_t dim = source.config.dim, rows = source.config.n_vocab;
        const FileInput input(native.file);
        const NativeTable& table = *native.file.native();
        const NativePart& part = table.parts.back();  // in execution order the head is last
        const std::vector<float> x = randoms(kTokens * dim, 7), truth = randoms(kTokens * dim, 8);
        TuneHead head(source.model, products, kTokens);
        const auto load = [&](const NewScales& change) {
            TuneScales scales(kernels::Level::k3, rows, dim);
            LowBand band;
            for (uint64_t b = 0; b < part.bands(); ++b) {
                read_low_band(input, table, part, b, &band);
                if (change) change(0, b, 0, std::span(band.bytes).first(band_runs(part, b, table.page)[0].bytes));
                scales.load(products.kernels(), b * part.band_rows, part.rows_of(b), band.rows);
            }
            return scales;
        };
        const TuneScales scales = load(nullptr);
        std::vector<float> gradient(rows * dim), weights(rows * dim);
        scales.weights(0, rows, weights.data());
        const double loss =
            head.divergence(scales, x.data(), truth.data(), kTokens, [&](size_t first, size_t n, const float* values) {
                std::copy_n(values, n * dim, gradient.begin() + static_cast<ptrdiff_t>(first * dim));
            });
        EXPECT_GT(loss, 0);
        // All scales and minima a half's last bit larger or smaller: the first bytes of each super-block's scales.
        const size_t row_bytes = kernels::plane_row_bytes(kernels::Plane::kS3, dim);
        double difference = 0, slope = 0;
        for (const int sign : {1, -1}) {
            const TuneScales moved = load([&](size_t, uint64_t, size_t, std::span<std::byte> plane) {
                for (size_t at = 0; at < plane.size(); at += row_bytes) {
                    uint16_t d;
                    std::memcpy(&d, &plane[at], sizeof d);
                    d = static_cast<uint16_t>(d + sign * (at / row_bytes % 3 == 0 ? 2 : 1));
                    std::memcpy(&plane[at], &d, sizeof d);
                }
            });
            std::vector<float> there(rows * dim);
            moved.weights(0, rows, there.data());
            for (size_t i = 0; i < there.size(); ++i)
                slope += sign * static_cast<double>(gradient[i]) * static_cast<double>(there[i] - weights[i]);
            difference += sign * head.divergence(moved, x.data(), truth.data(), kTokens, nullptr);
        }
        EXPECT_GT(std::abs(difference), 1e-7);
        EXPECT_NEAR(slope, difference, 0.02 * std::abs(difference)) << shape.architecture;
    }
}

// Rows of a full super-block and a short one.
constexpr size_t kRows = 5, kCols = 288;

struct Planes {
    Planes() {
        const std::vector<float> weights = randoms(kRows * kCols, 4);
        for (size_t p = 0; p < kernels::kPlanes; ++p)
            bytes[p].resize(kRows * kernels::plane_row_bytes(static_cast<kernels::Plane>(p), kCols));
        for (size_t r = 0; r < kRows; ++r) {
            std::byte* row[kernels::kPlanes];
            for (size_t p = 0; p < kernels::kPlanes; ++p)
                row[p] = bytes[p].data() + r * kernels::plane_row_bytes(static_cast<kernels::Plane>(p), kCols);
            for (size_t s = 0; s * 256 < kCols; ++s) {
                kernels::NestedBlock block;
                EXPECT_TRUE(kernels::fit_nested(weights.data() + r * kCols + s * 256,
                                                std::min<size_t>(256, kCols - s * 256), &block));
                kernels::pack_nested(block, s, kCols, row);
            }
        }
        for (size_t p = 0; p < kernels::kPlanes; ++p) rows.plane[p] = bytes[p].data();
    }
    std::vector<float> dequantised(kernels::Level level) const {
        std::vector<float> out(kRows * kCols);
        for (size_t r = 0; r < kRows; ++r)
            kernels::select_kernels(nullptr)->dequantize_nested(level, rows.from(r, kCols), out.data() + r * kCols,
                                                                kCols);
        return out;
    }
    std::vector<std::byte> bytes[kernels::kPlanes];
    kernels::NestedRows rows;
};

TEST(TuneScales, AreThoseOfThePlanesAndGoBackIntoThem) {
    for (const kernels::Level level : {kernels::Level::k2, kernels::Level::k3}) {
        Planes planes;
        TuneScales scales(level, kRows, kCols);
        scales.load(*kernels::select_kernels(nullptr), 0, 2, planes.rows);
        scales.load(*kernels::select_kernels(nullptr), 2, kRows - 2, planes.rows.from(2, kCols));
        std::vector<float> weights(kRows * kCols);
        scales.weights(0, kRows, weights.data());
        EXPECT_EQ(weights, planes.dequantised(level));
        std::vector<std::byte>& plane =
            planes.bytes[static_cast<size_t>(level == kernels::Level::k2 ? kernels::Plane::kS2 : kernels::Plane::kS3)];
        std::vector<std::byte> packed(plane.size());
        scales.pack(0, kRows, packed.data());
        EXPECT_EQ(packed, plane);
        // Moved, and written: what is read then is what computed.
        scales.add_gradient(0, kRows, randoms(kRows * kCols, 5).data());
        scales.move(0, kRows, 1, 0.1f);
        scales.weights(0, kRows, weights.data());
        scales.pack(0, kRows, plane.data());
        EXPECT_NE(packed, plane);
        EXPECT_EQ(weights, planes.dequantised(level));
    }
}

// Towards weights whose scales are known: every group comes there.
TEST(TuneScales, Descend) {
    Planes planes;
    TuneScales scales(kernels::Level::k3, kRows, kCols);
    scales.load(*kernels::select_kernels(nullptr), 0, kRows, planes.rows);
    const std::vector<float> from = planes.dequantised(kernels::Level::k3);
    std::vector<float> goal(from), now(from), gradient(from.size());
    for (float& value : goal) value = 1.25f * value - 0.02f;
    double first = 0, last = 0;
    for (size_t step = 1; step <= 200; ++step) {
        last = 0;
        for (size_t i = 0; i < now.size(); ++i) {
            gradient[i] = now[i] - goal[i];
            last += static_cast<double>(gradient[i] * gradient[i]);
        }
        if (step == 1) first = last;
        scales.add_gradient(0, kRows, gradient.data());
        scales.move(0, kRows, step, 0.01f);
        scales.weights(0, kRows, now.data());
    }
    EXPECT_LT(last, 0.01 * first);
}

TinyShape three_layers() {
    TinyShape shape;
    shape.n_layers = 3;
    return shape;
}

// Of a tiny model whose matrices have several bands.
class Tuning : public ::testing::Test {
  protected:
    static constexpr size_t kSamples = 20;
    struct Run {
        std::string output;
        double first_error = 0, last_error = 0;  // of the last layer at level 3: of the first batch, and after
    };
    Tuning() {
        std::mt19937 random(6);
        for (size_t i = 0; i < kSamples * kTokens; ++i) ids_.push_back(static_cast<int32_t>(random() % 300));
    }
    ~Tuning() override {
        for (const std::string& path : written_) std::filesystem::remove(path);
    }
    // break_off: in the second layer.
    Run tune(const std::string& name, size_t threads, bool break_off = false) {
        Run run{native_.path() + name};
        written_.push_back(run.output);
        written_.push_back(run.output + ".tuning");
        Engine source(native_.source(), {.threads = threads}), native(native_.path(), {});
        const TuneProducts products(*source.team, *kernels::select_kernels(nullptr));
        TuneOptions options;
        options.tokens = kTokens;
        options.batch = 3;
        options.rate = 0.01f;
        const uint64_t stream = Tuner::stream_bytes(source.config, kSamples, options),
                       scales = Tuner::scale_bytes(native.file, options);
        TuneJournal journal(run.output + ".tuning", 1, stream, Tuner::streams(options), scales, false);
        Tuner tuner({&source.model, source.store.get(), &native.file, native.store.get()}, products, ids_, options,
                    journal);
        while (journal.layers_done() < tuner.layers()) {
            tuner.tune_layer([&](const TuneProgress& at) {
                if (break_off && at.layer == 1 && at.level == 1) throw Error("broken off");
                if (at.layer == source.config.n_layers) return;
                if (at.level == 0 && at.moves && at.samples == options.batch) run.first_error = at.error;
                if (at.level == 0 && !at.moves && at.samples == options.batch) run.last_error = at.error;
            });
        }
        write_rescaled(
            native.file, run.output,
            [&](size_t part, uint64_t band, size_t r, std::span<std::byte> bytes) {
                tuner.new_scales(part, band, r, bytes);
            },
            [](uint64_t, uint64_t) { return true; });
        journal.discard();
        return run;
    }
    static std::string content(const std::string& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }

    TinyNativeFile native_{three_layers(), 4 << 10};
    std::vector<int32_t> ids_;
    std::vector<std::string> written_;
};

TEST_F(Tuning, LowersTheErrorAndLeavesHigherLevelsAlone) {
    const Run run = tune(".a", 2);
    EXPECT_LT(run.last_error, 0.9 * run.first_error);
    EXPECT_FALSE(std::filesystem::exists(run.output + ".tuning"));
    const std::vector<int32_t> window(ids_.begin(), ids_.begin() + kTokens);
    for (const kernels::Level level : kernels::kLevels) {
        const EngineOptions at{.level = level};
        const bool same =
            Engine(native_.path(), at).logits(window, kTokens) == Engine(run.output, at).logits(window, kTokens);
        EXPECT_EQ(same, level >= kernels::Level::k4) << static_cast<int>(level);
    }
}

TEST_F(Tuning, GivesTheSameBytesByAnyThreadsAndWhereItWasBrokenOff) {
    const std::string whole = content(tune(".a", 1).output);
    EXPECT_EQ(content(tune(".b", 3).output), whole);
    EXPECT_THROW(tune(".c", 2, true), Error);
    EXPECT_FALSE(std::filesystem::exists(native_.path() + ".c"));
    EXPECT_EQ(content(tune(".c", 2).output), whole);
}

TEST_F(Tuning, AJournalOfAnotherTuningIsRefused) {
    const std::string path = native_.path() + ".journal";
    written_.push_back(path);
    { TuneJournal journal(path, 1, 64, 2, 8, false); }
    EXPECT_THROW(TuneJournal(path, 2, 64, 2, 8, false), UsageError);
    TuneJournal journal(path, 2, 64, 2, 8, true);
    EXPECT_THROW(TuneJournal(path, 2, 64, 2, 8, false), Error);  // in use
    const std::vector<float> rows = {1, 2, 3};
    journal.write_leaving(1, 4, rows);
    journal.finish_layer();
    std::vector<float> read(3);
    journal.read_entering(1, 4, read);
    EXPECT_EQ(read, rows);
}

}  // namespace
}  // namespace weir::test
