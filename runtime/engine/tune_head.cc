#include "runtime/engine/tune_head.h"

#include <algorithm>
#include <cmath>

#include "runtime/engine/score.h"

namespace weir {
namespace {

constexpr size_t kRowsPerUnit = 64;  // a multiple of the eight of a panel

}  // namespace

TuneHead::TuneHead(const Model& model, const TuneProducts& products, size_t tokens)
    : model_(model), products_(products) {
    for (std::vector<float>* const v : {&normed_, &source_normed_}) v->resize(tokens * model.config.dim);
    for (std::vector<float>* const v : {&logits_, &truth_}) v->resize(tokens * model.config.n_vocab);
}

uint64_t TuneHead::bytes(const ModelConfig& config, size_t tokens) {
    return 2 * tokens * (config.dim + config.n_vocab) * sizeof(float);
}

// out[tokens, n_vocab]
void TuneHead::logits(const float* states, size_t tokens, const FillRows& fill, std::vector<float>* normed,
                      std::vector<float>* out) const {
    const size_t dim = model_.config.dim, n_vocab = model_.config.n_vocab;
    for (size_t t = 0; t < tokens; ++t)
        products_.kernels().rms_norm(states + t * dim, model_.output_norm.data(), dim, model_.config.rms_eps,
                                     normed->data() + t * dim);
    struct Scratch {
        std::vector<float> rows;    // [kRowsPerUnit, dim]
        std::vector<float> panels;  // [kRowsPerUnit / 8][dim][8]
    };
    std::vector<Scratch> scratch(products_.team().size());
    products_.share((n_vocab + kRowsPerUnit - 1) / kRowsPerUnit, [&](size_t worker, size_t unit) {
        const size_t first = unit * kRowsPerUnit, n = std::min(kRowsPerUnit, n_vocab - first);
        auto& [rows, panels] = scratch[worker];
        rows.resize(kRowsPerUnit * dim);
        panels.resize(kRowsPerUnit * dim);
        fill(first, n, rows.data());
        for (size_t r = 0; r < n; ++r)
            for (size_t c = 0; c < dim; ++c) panels[(r / 8 * dim + c) * 8 + r % 8] = rows[r * dim + c];
        for (size_t t = 0; t < tokens; ++t) std::fill_n(out->data() + t * n_vocab + first, n, 0.0f);
        products_.kernels().multiply_add(kernels::Type::kF32, normed->data(), dim, tokens, panels.data(), 8, 8 * dim,
                                         dim, n, out->data() + first, n_vocab);
    });
}

// Mean divergence; the gradient by the logits, before their soft cap, takes their place.
double TuneHead::token_gradient(float* logits, const float* truth, size_t tokens) const {
    const size_t n_vocab = model_.config.n_vocab;
    const float cap = model_.config.logit_soft_cap;
    std::vector<double> divergences(tokens);
    products_.share(tokens, [&](size_t, size_t t) {
        const std::span<float> row(logits + t * n_vocab, n_vocab);
        const std::span<const float> wanted(truth + t * n_vocab, n_vocab);
        const double sum = log_sum_exp(row), wanted_sum = log_sum_exp(wanted);
        divergences[t] = kl_divergence(wanted, wanted_sum, row, sum);
        for (size_t i = 0; i < n_vocab; ++i) {
            const float slope = cap == 0 ? 1 : 1 - row[i] / cap * (row[i] / cap);
            const float off =
                std::exp(row[i] - static_cast<float>(sum)) - std::exp(wanted[i] - static_cast<float>(wanted_sum));
            row[i] = slope * off / static_cast<float>(tokens);
        }
    });
    double mean = 0;
    for (const double d : divergences) mean += d / static_cast<double>(tokens);
    return mean;
}

double TuneHead::divergence(const TuneScales& scales, const float* states, const float* source_states, size_t tokens,
                            const See& see) {
    const Matrix& head = *model_.head;
    const size_t dim = model_.config.dim, n_vocab = model_.config.n_vocab;
    logits(
        states, tokens, [&](size_t first, size_t rows, float* out) { scales.weights(first, rows, out); }, &normed_,
        &logits_);
    logits(
        source_states, tokens,
        [&](size_t first, size_t rows, float* out) {
            for (size_t r = 0; r < rows; ++r)
                products_.kernels().dequantize(head.type, head.rows_at(first + r), out + r * dim, dim);
        },
        &source_normed_, &truth_);
    if (const float cap = model_.config.logit_soft_cap; cap != 0)
        for (std::vector<float>* const v : {&logits_, &truth_})
            products_.kernels().soft_cap(v->data(), tokens * n_vocab, cap);
    const double mean = token_gradient(logits_.data(), truth_.data(), tokens);
    if (see) products_.weight_gradient(logits_.data(), normed_.data(), tokens, n_vocab, dim, see);
    return mean;
}

}  // namespace weir
