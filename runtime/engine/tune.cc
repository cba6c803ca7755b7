#include "runtime/engine/tune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "runtime/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRowsPerUnit = 16;
// Of the steps, in which their length grows to the whole.
constexpr double kWarmUp = 0.05;

double rate_at(double whole, size_t step, size_t steps) {
    const double at = (static_cast<double>(step) - 0.5) / static_cast<double>(steps);
    return whole * std::min(1.0, at / kWarmUp) * 0.5 * (1 + std::cos(std::numbers::pi * at));
}

kernels::Plane scale_plane(kernels::Level level) {
    return level == kernels::Level::k2 ? kernels::Plane::kS2 : kernels::Plane::kS3;
}

size_t scale_run(kernels::Level level) {
    size_t run = 0;
    while (kRunPlanes[run].first != scale_plane(level)) ++run;
    return run;
}

uint64_t scale_row_bytes(kernels::Level level, uint64_t cols) {
    return kernels::plane_row_bytes(scale_plane(level), cols);
}

// Of a layer's output against the truth: the mean error, and its gradient in the place of y.
double error_gradient(std::span<float> y, std::span<const float> truth, size_t dim) {
    double sum = 0;
    const size_t tokens = y.size() / dim;
    for (size_t t = 0; t < tokens; ++t) {
        double size = 0, off = 0;
        for (size_t i = t * dim; i < (t + 1) * dim; ++i) {
            const double d = static_cast<double>(y[i]) - static_cast<double>(truth[i]);
            off += d * d;
            size += static_cast<double>(truth[i]) * static_cast<double>(truth[i]);
        }
        const double weight = 1 / std::max(size, 1e-30);
        sum += off * weight;
        const auto factor = static_cast<float>(2 * weight / static_cast<double>(tokens));
        for (size_t i = t * dim; i < (t + 1) * dim; ++i) y[i] = factor * (y[i] - truth[i]);
    }
    return sum / static_cast<double>(tokens);
}

}  // namespace

Tuner::Tuner(const Models& models, const TuneProducts& products, std::span<const TokenId> ids,
             const TuneOptions& options, TuneJournal& journal)
    : models_(models),
      products_(products),
      ids_(ids),
      options_(options),
      journal_(journal),
      input_(*models.native),
      block_(*models.source, products, options.batch, options.tokens) {
    if (models.source->config.n_experts != 0)
        throw Error("a mixture of experts cannot be tuned: its experts see too little of a calibration text");
    for (std::vector<float>* const v : {&x_, &y_, &truth_})
        v->resize(options.batch * options.tokens * models.source->config.dim);
    if (journal_.layers_done() != 0) return;
    embed();
    keep_scales();
}

uint64_t Tuner::stream_bytes(const ModelConfig& config, size_t samples, const TuneOptions& options) {
    return uint64_t{samples} * options.tokens * config.dim * sizeof(float);
}

uint64_t Tuner::scale_bytes(const GgufFile& native, const TuneOptions& options) {
    uint64_t bytes = 0;
    for (const kernels::Level level : options.levels)
        for (const NativePart& part : native.native()->parts) bytes += part.rows * scale_row_bytes(level, part.cols);
    return bytes;
}

uint64_t Tuner::bytes(const ModelConfig& c, const TuneOptions& options, size_t workers) {
    const uint64_t n = options.batch * options.tokens;
    const uint64_t weights = uint64_t{c.dim} * (2 * c.q_dim() + 2 * c.kv_dim() + 3 * c.ffn_dim);
    const uint64_t row = std::max({c.dim, c.q_dim(), c.ffn_dim});
    const uint64_t layer = weights * 4 * sizeof(float) + TuneScales::bytes(weights / 32, 32);
    const uint64_t head = TuneHead::bytes(c, options.batch * options.head_tokens) + TuneScales::bytes(c.n_vocab, c.dim);
    return TuneBlock::bytes(c, options.batch, options.tokens, workers) + 3 * n * c.dim * sizeof(float) +
           std::max(layer, head) + workers * 32 * (n + row) * sizeof(float);
}

// What enters the first layer.
void Tuner::embed() {
    const ModelConfig& config = models_.source->config;
    const size_t n = options_.tokens;
    for (size_t s = 0; s < samples(); ++s) {
        for (size_t stream = 0; stream < streams(options_); ++stream) {
            const std::span<float> rows = std::span(x_).first(n * config.dim);
            if (stream < 2) {
                // At any level the embedding is read at the highest.
                (stream == 0 ? models_.source_store : models_.native_store)
                    ->embedding_rows(ids_.subspan(s * n, n), rows.data());
                for (float& value : rows) value *= config.embedding_scale;
            }
            journal_.write_entering(stream, s * n * config.dim, rows);
        }
    }
}

// Into the journal, as they are: what nobody tunes stays so.
void Tuner::keep_scales() {
    const NativeTable& table = *models_.native->native();
    std::vector<std::byte> bytes;
    for (size_t level = 0; level < options_.levels.size(); ++level) {
        for (size_t p = 0; p < table.parts.size(); ++p) {
            const NativePart& part = table.parts[p];
            const uint64_t row = scale_row_bytes(options_.levels[level], part.cols);
            for (uint64_t band = 0; band < part.bands(); ++band) {
                const NativeRun run = band_runs(part, band, table.page)[scale_run(options_.levels[level])];
                bytes.resize(run.bytes);
                input_.read(run.offset, bytes);
                journal_.write_scales(scales_at(level, p) + band * part.band_rows * row, bytes);
            }
        }
    }
}

const NativePart* Tuner::native_part(const Matrix& matrix) const {
    const GgufTensor& tensor = models_.native->tensor(matrix.name);
    const NativeTable& table = *models_.native->native();
    const auto parts = table.parts_of(static_cast<size_t>(&tensor - models_.native->tensors().data()));
    return parts.empty() ? nullptr : &table.parts[parts.front()];
}

uint64_t Tuner::scales_at(size_t level, size_t part) const {
    const std::vector<NativePart>& parts = models_.native->native()->parts;
    uint64_t at = 0;
    for (size_t l = 0; l <= level; ++l)
        for (size_t p = 0; p < (l < level ? parts.size() : part); ++p)
            at += parts[p].rows * scale_row_bytes(options_.levels[l], parts[p].cols);
    return at;
}

void Tuner::load_truth(size_t layer, BlockWeights* out) const {
    for (size_t p = 0; p < kBlockParts; ++p) {
        const Matrix& matrix = block_matrix(models_.source->layers[layer], p);
        std::vector<float> rows(matrix.rows * matrix.cols);
        products_.share((matrix.rows + kRowsPerUnit - 1) / kRowsPerUnit, [&](size_t, size_t unit) {
            for (size_t r = unit * kRowsPerUnit; r < std::min(matrix.rows, (unit + 1) * kRowsPerUnit); ++r)
                products_.kernels().dequantize(matrix.type, matrix.rows_at(r), rows.data() + r * matrix.cols,
                                               matrix.cols);
        });
        products_.make_panels(rows.data(), matrix.rows, matrix.cols, &out->panels[p]);
        // Rows that 32 does not divide are kept whole: the student's are the source's.
        if (needs_input_gradient(p) && native_part(matrix) == nullptr) out->rows[p] = std::move(rows);
    }
}

TuneScales Tuner::load_scales(const NativePart& part, size_t level) const {
    TuneScales scales(options_.levels[level], part.rows, part.cols);
    LowBand band;
    for (uint64_t b = 0; b < part.bands(); ++b) {
        read_low_band(input_, *models_.native->native(), part, b, &band);
        scales.load(products_.kernels(), b * part.band_rows, part.rows_of(b), band.rows);
    }
    return scales;
}

void Tuner::keep_tuned(const NativePart& part, size_t level, const TuneScales& scales) {
    std::vector<std::byte> packed(part.rows * scale_row_bytes(options_.levels[level], part.cols));
    scales.pack(0, part.rows, packed.data());
    journal_.write_scales(scales_at(level, static_cast<size_t>(&part - models_.native->native()->parts.data())),
                          packed);
}

Tuner::Student Tuner::load_student(size_t layer, size_t level) const {
    Student student;
    for (size_t p = 0; p < kBlockParts; ++p) {
        const NativePart* const part = native_part(block_matrix(models_.source->layers[layer], p));
        if (part == nullptr) continue;
        student.parts.push_back(p);
        student.scales.push_back(load_scales(*part, level));
    }
    return student;
}

// The weights that the scales stand for now.
void Tuner::refresh(Student* student) const {
    for (size_t i = 0; i < student->parts.size(); ++i) {
        const TuneScales& scales = student->scales[i];
        const size_t p = student->parts[i];
        std::vector<float>& rows = student->weights.rows[p];
        rows.resize(scales.rows() * scales.cols());
        products_.share((scales.rows() + kRowsPerUnit - 1) / kRowsPerUnit, [&](size_t, size_t unit) {
            const size_t first = unit * kRowsPerUnit, n = std::min(kRowsPerUnit, scales.rows() - first);
            scales.weights(first, n, rows.data() + first * scales.cols());
        });
        products_.make_panels(rows.data(), scales.rows(), scales.cols(), &student->weights.panels[p]);
    }
}

double Tuner::step(size_t layer, Student* student, size_t number, size_t steps, size_t windows) {
    const size_t n = windows * options_.tokens * models_.source->config.dim;
    refresh(student);
    block_.forward(layer, student->weights, x_.data(), windows, y_.data());
    const double error = error_gradient(std::span(y_).first(n), std::span(truth_).first(n), models_.source->config.dim);
    std::array<TuneScales*, kBlockParts> by_part = {};
    for (size_t i = 0; i < student->parts.size(); ++i) by_part[student->parts[i]] = &student->scales[i];
    const auto rate = static_cast<float>(rate_at(static_cast<double>(options_.rate), number, steps));
    block_.backward(layer, student->weights, y_.data(), windows,
                    [&](size_t part, size_t first, size_t rows, const float* gradient) {
                        if (by_part[part] == nullptr) return;
                        by_part[part]->add_gradient(first, rows, gradient);
                        by_part[part]->move(first, rows, number, rate);
                    });
    return error;
}

void Tuner::tune_block(size_t layer, const GoOn& go_on) {
    const size_t dim = models_.source->config.dim, row = options_.tokens * dim;
    const size_t batches = (samples() + options_.batch - 1) / options_.batch;
    BlockWeights truth;
    const auto each_batch =
        [&](size_t level, bool moves,
            const std::function<double(size_t windows, uint64_t at, size_t n, size_t number)>& work) {
            for (size_t b = 0; b < batches; ++b) {
                const size_t first = b * options_.batch, windows = std::min(options_.batch, samples() - first);
                const double error = work(windows, uint64_t{first} * row, windows * row, b + 1);
                go_on({layer, level, moves, first + windows, error});
            }
        };
    load_truth(layer, &truth);
    each_batch(options_.levels.size(), false, [&](size_t windows, uint64_t at, size_t n, size_t) {
        journal_.read_entering(0, at, std::span(x_).first(n));
        block_.forward(layer, truth, x_.data(), windows, y_.data());
        journal_.write_leaving(0, at, std::span(y_).first(n));
        return 0.0;
    });
    for (size_t level = 0; level < options_.levels.size(); ++level) {
        Student student = load_student(layer, level);
        for (size_t p = 0; p < kBlockParts; ++p) {
            if (std::ranges::find(student.parts, p) != student.parts.end()) continue;
            student.weights.panels[p] = truth.panels[p];
            student.weights.rows[p] = truth.rows[p];
        }
        each_batch(level, true, [&](size_t windows, uint64_t at, size_t n, size_t number) {
            journal_.read_entering(1 + level, at, std::span(x_).first(n));
            journal_.read_leaving(0, at, std::span(truth_).first(n));
            return step(layer, &student, number, batches, windows);
        });
        refresh(&student);
        each_batch(level, false, [&](size_t windows, uint64_t at, size_t n, size_t) {
            journal_.read_entering(1 + level, at, std::span(x_).first(n));
            journal_.read_leaving(0, at, std::span(truth_).first(n));
            block_.forward(layer, student.weights, x_.data(), windows, y_.data());
            journal_.write_leaving(1 + level, at, std::span(y_).first(n));
            return error_gradient(std::span(y_).first(n), std::span(truth_).first(n), dim);
        });
        for (size_t i = 0; i < student.parts.size(); ++i)
            keep_tuned(*native_part(block_matrix(models_.source->layers[layer], student.parts[i])), level,
                       student.scales[i]);
    }
}

// The last tokens of some samples.
double Tuner::head_batch(TuneHead& head, const TuneScales& scales, size_t level, size_t first, size_t count,
                         const TuneHead::See& see) {
    const size_t dim = models_.source->config.dim, tokens = std::min(options_.head_tokens, options_.tokens);
    for (size_t i = 0; i < count; ++i) {
        const uint64_t from = (uint64_t{first + i + 1} * options_.tokens - tokens) * dim;
        journal_.read_entering(1 + level, from, std::span(x_).subspan(i * tokens * dim, tokens * dim));
        journal_.read_entering(0, from, std::span(truth_).subspan(i * tokens * dim, tokens * dim));
    }
    return head.divergence(scales, x_.data(), truth_.data(), count * tokens, see);
}

void Tuner::tune_head(const GoOn& go_on) {
    const size_t steps = (samples() + options_.batch - 1) / options_.batch;
    const NativePart& part = *native_part(*models_.source->head);
    TuneHead head(*models_.source, products_, options_.batch * options_.head_tokens);
    for (size_t level = 0; level < options_.levels.size(); ++level) {
        TuneScales scales = load_scales(part, level);
        for (size_t number = 1; number <= steps; ++number) {
            const size_t first = (number - 1) * options_.batch, count = std::min(options_.batch, samples() - first);
            const auto rate = static_cast<float>(rate_at(static_cast<double>(options_.rate), number, steps));
            const double error =
                head_batch(head, scales, level, first, count, [&](size_t row, size_t rows, const float* gradient) {
                    scales.add_gradient(row, rows, gradient);
                    scales.move(row, rows, number, rate);
                });
            go_on({journal_.layers_done(), level, true, first + count, error});
        }
        const size_t last = (steps - 1) * options_.batch;
        go_on({journal_.layers_done(), level, false, samples(),
               head_batch(head, scales, level, last, samples() - last, nullptr)});
        keep_tuned(part, level, scales);
    }
}

size_t Tuner::layers() const {
    return models_.source->layers.size() + (native_part(*models_.source->head) != nullptr ? 1 : 0);
}

void Tuner::tune_layer(const GoOn& go_on) {
    if (const size_t layer = journal_.layers_done(); layer < models_.source->layers.size())
        tune_block(layer, go_on);
    else
        tune_head(go_on);
    journal_.finish_layer();
}

double Tuner::seconds_left() {
    const size_t windows = std::min(options_.batch, samples()),
                 n = windows * options_.tokens * models_.source->config.dim;
    const size_t n_layers = models_.source->layers.size(), done = journal_.layers_done();
    // The better of two: the first brings weights into memory.
    const auto seconds_of = [](const auto& work) {
        double best = INFINITY;
        for (int i = 0; i < 2; ++i) {
            const Clock::time_point begin = Clock::now();
            work();
            best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
        }
        return best;
    };
    const auto levels = static_cast<double>(options_.levels.size());
    double a_batch = 0;  // of all that is left to do
    if (done < n_layers) {
        journal_.read_entering(0, 0, std::span(x_).first(n));
        BlockWeights truth;
        load_truth(0, &truth);
        const double pass = seconds_of([&] { block_.forward(0, truth, x_.data(), windows, truth_.data()); });
        Student student = load_student(0, 0);
        student.weights = std::move(truth);
        const double step_s = seconds_of([&] { step(0, &student, 1, 1, windows); });
        a_batch += static_cast<double>(n_layers - done) * (pass + levels * (pass + step_s));
    }
    if (layers() > n_layers && done < layers()) {
        TuneHead head(*models_.source, products_, options_.batch * options_.head_tokens);
        TuneScales scales = load_scales(*native_part(*models_.source->head), 0);
        const auto see = [&](size_t row, size_t rows, const float* gradient) {
            scales.add_gradient(row, rows, gradient);
        };
        a_batch += levels * seconds_of([&] { head_batch(head, scales, 0, 0, windows, see); });
    }
    return a_batch * static_cast<double>((samples() + options_.batch - 1) / options_.batch);
}

void Tuner::new_scales(size_t part, uint64_t band, size_t run, std::span<std::byte> scales) const {
    for (size_t level = 0; level < options_.levels.size(); ++level) {
        if (run != scale_run(options_.levels[level])) continue;
        const NativePart& p = models_.native->native()->parts[part];
        journal_.read_scales(
            scales_at(level, part) + band * p.band_rows * scale_row_bytes(options_.levels[level], p.cols), scales);
    }
}

}  // namespace weir
