#include "runtime/engine/tune_block.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr size_t kRowsPerUnit = 16;  // of element-wise work

// The gate's function at g, and its slope.
struct Bend {
    float value, slope;
};
Bend silu(float g) {
    const float s = 1.0f / (1.0f + std::exp(-g));
    return {g * s, s * (1.0f + g * (1.0f - s))};
}
// g / (1 + exp(-2 u)), u = sqrt(2 / pi) * (g + 0.044715 g^3), as kernels have it.
Bend gelu(float g) {
    const float s = 1.0f / (1.0f + std::exp(-1.59576912f * g * (1.0f + 0.044715f * g * g)));
    return {g * s, s + g * s * (1.0f - s) * 1.59576912f * (1.0f + 3 * 0.044715f * g * g)};
}

AttentionShape shape_of(const ModelConfig& config, const Layer& layer) {
    const AttentionRule& rule = layer.attention;
    return {config.head_dim, config.n_heads / config.n_kv_heads, rule.scale, rule.soft_cap, rule.window};
}

}  // namespace

const Matrix& block_matrix(const Layer& layer, size_t part) {
    const Matrix* const all[kBlockParts] = {layer.attn_q,   layer.attn_k, layer.attn_v,  layer.attn_output,
                                            layer.ffn_gate, layer.ffn_up, layer.ffn_down};
    return *all[part];
}

TuneBlock::TuneBlock(const Model& model, const TuneProducts& products, size_t windows, size_t tokens)
    : model_(model), products_(products), tokens_(tokens) {
    const ModelConfig& c = model.config;
    const size_t n = windows * tokens, pairs = c.rope_dims / 2;
    for (const std::vector<double>& frequency : model.rope_frequencies) {
        cos_.emplace_back(tokens * pairs);
        sin_.emplace_back(tokens * pairs);
        for (size_t i = 0; i < tokens * pairs; ++i) {
            const double angle = static_cast<double>(i / pairs) * frequency[i % pairs];
            cos_.back()[i] = static_cast<float>(std::cos(angle));
            sin_.back()[i] = static_cast<float>(std::sin(angle));
        }
    }
    for (size_t w = 0; w < products.team().size(); ++w) attention_.emplace_back(products.kernels(), c.head_dim, tokens);
    for (std::vector<float>* const of_dim : {&attn_in_, &added_, &middle_, &ffn_in_, &down_, &d_middle_, &d_dim_})
        of_dim->resize(n * c.dim);
    for (std::vector<float>* const of_q : {&q_, &q_turned_, &attended_, &d_q_, &d_wide_}) of_q->resize(n * c.q_dim());
    for (std::vector<float>* const of_kv : {&k_, &k_turned_, &v_, &d_k_, &d_v_}) of_kv->resize(n * c.kv_dim());
    for (std::vector<float>* const of_ffn : {&gate_, &up_, &gated_, &d_gate_, &d_up_}) of_ffn->resize(n * c.ffn_dim);
}

uint64_t TuneBlock::bytes(const ModelConfig& c, size_t windows, size_t tokens, size_t workers) {
    const uint64_t row = 7 * c.dim + 5 * c.q_dim() + 5 * c.kv_dim() + 5 * c.ffn_dim;
    return windows * tokens * row * sizeof(float) + workers * TuneAttention::bytes(c.head_dim, tokens);
}

void TuneBlock::norm(const float* x, size_t rows, const std::vector<float>& weight, float* y) const {
    const size_t width = weight.size();
    products_.share((rows + kRowsPerUnit - 1) / kRowsPerUnit, [&](size_t, size_t unit) {
        for (size_t r = unit * kRowsPerUnit; r < std::min(rows, (unit + 1) * kRowsPerUnit); ++r)
            products_.kernels().rms_norm(x + r * width, weight.data(), width, model_.config.rms_eps, y + r * width);
    });
}

// y_i = x_i f w_i with f = 1 / sqrt(mean x^2 + eps): dx_i = f w_i dy_i - x_i f^3 mean(dy w x).
void TuneBlock::norm_gradient(const float* x, size_t rows, const std::vector<float>& weight, const float* dy, bool add,
                              float* dx) const {
    const size_t width = weight.size();
    const double width_d = static_cast<double>(width), eps = static_cast<double>(model_.config.rms_eps);
    products_.share((rows + kRowsPerUnit - 1) / kRowsPerUnit, [&](size_t, size_t unit) {
        for (size_t r = unit * kRowsPerUnit; r < std::min(rows, (unit + 1) * kRowsPerUnit); ++r) {
            const float* const from = x + r * width;
            const float* const slope = dy + r * width;
            float* const to = dx + r * width;
            double squares = 0, along = 0;
            for (size_t i = 0; i < width; ++i) {
                squares += static_cast<double>(from[i]) * static_cast<double>(from[i]);
                along += static_cast<double>(slope[i]) * static_cast<double>(weight[i]) * static_cast<double>(from[i]);
            }
            const double f = 1.0 / std::sqrt(squares / width_d + eps);
            const auto factor = static_cast<float>(f), back = static_cast<float>(f * f * f * along / width_d);
            for (size_t i = 0; i < width; ++i) {
                const float value = factor * weight[i] * slope[i] - back * from[i];
                to[i] = add ? to[i] + value : value;
            }
        }
    });
}

// q_turned_, k_turned_: normalised where the architecture does so.
void TuneBlock::normalise_heads(const Layer& layer, size_t n) {
    const ModelConfig& c = model_.config;
    if (layer.q_norm.empty()) {
        std::copy_n(q_.begin(), n * c.q_dim(), q_turned_.begin());
        std::copy_n(k_.begin(), n * c.kv_dim(), k_turned_.begin());
        return;
    }
    norm(q_.data(), n * c.q_dim() / layer.q_norm.size(), layer.q_norm, q_turned_.data());
    norm(k_.data(), n * c.kv_dim() / layer.k_norm.size(), layer.k_norm, k_turned_.data());
}

// By the angles of their positions, or back (direction -1).
void TuneBlock::turn_heads(const Layer& layer, size_t n, float direction, float* q, float* k) const {
    const ModelConfig& c = model_.config;
    const size_t pairs = c.rope_dims / 2;
    const bool halves = c.architecture.rope_pairs == RopePairs::kHalves;
    const size_t step = halves ? 1 : 2, apart = halves ? pairs : 1;
    products_.share((n + kRowsPerUnit - 1) / kRowsPerUnit, [&](size_t, size_t unit) {
        for (size_t t = unit * kRowsPerUnit; t < std::min(n, (unit + 1) * kRowsPerUnit); ++t) {
            const float* const cos = cos_[layer.attention.rope].data() + t % tokens_ * pairs;
            const float* const sin = sin_[layer.attention.rope].data() + t % tokens_ * pairs;
            for (size_t head = 0; head < c.n_heads + c.n_kv_heads; ++head) {
                float* const row = head < c.n_heads ? q + t * c.q_dim() + head * c.head_dim
                                                    : k + t * c.kv_dim() + (head - c.n_heads) * c.head_dim;
                for (size_t i = 0; i < pairs; ++i) {
                    const float a = row[step * i], b = row[step * i + apart], s = direction * sin[i];
                    row[step * i] = a * cos[i] - b * s;
                    row[step * i + apart] = a * s + b * cos[i];
                }
            }
        }
    });
}

void TuneBlock::attend(const Layer& layer, size_t windows) {
    const ModelConfig& c = model_.config;
    const size_t group = c.n_heads / c.n_kv_heads, q_dim = c.q_dim(), kv_dim = c.kv_dim();
    const AttentionShape shape = shape_of(c, layer);
    products_.share(windows * c.n_heads, [&](size_t worker, size_t unit) {
        const size_t first = unit / c.n_heads * tokens_, head = unit % c.n_heads, kv = head / group;
        const size_t at = first * q_dim + head * c.head_dim, kv_at = first * kv_dim + kv * c.head_dim;
        attention_[worker].forward(shape,
                                   {q_turned_.data() + at, k_turned_.data() + kv_at, v_.data() + kv_at, q_dim, kv_dim},
                                   attended_.data() + at);
    });
}

// d_wide_: gradient of attended_. Gradients of turned queries and keys, and of values, into d_q_, d_k_, d_v_.
void TuneBlock::attend_gradient(const Layer& layer, size_t windows) {
    const ModelConfig& c = model_.config;
    const AttentionShape shape = shape_of(c, layer);
    const size_t group = c.n_heads / c.n_kv_heads, q_dim = c.q_dim(), kv_dim = c.kv_dim();
    std::fill_n(d_k_.begin(), windows * tokens_ * kv_dim, 0.0f);
    std::fill_n(d_v_.begin(), windows * tokens_ * kv_dim, 0.0f);
    products_.share(windows * c.n_kv_heads, [&](size_t worker, size_t unit) {
        const size_t first = unit / c.n_kv_heads * tokens_, kv = unit % c.n_kv_heads,
                     kv_at = first * kv_dim + kv * c.head_dim;
        for (size_t head = kv * group; head < (kv + 1) * group; ++head) {
            const size_t at = first * q_dim + head * c.head_dim;
            attention_[worker].backward(
                shape, {q_turned_.data() + at, k_turned_.data() + kv_at, v_.data() + kv_at, q_dim, kv_dim},
                d_wide_.data() + at, d_q_.data() + at, d_k_.data() + kv_at, d_v_.data() + kv_at);
        }
    });
}

void TuneBlock::forward(size_t index, const BlockWeights& weights, const float* x, size_t windows, float* y) {
    const ModelConfig& c = model_.config;
    const Layer& layer = model_.layers[index];
    const size_t n = windows * tokens_;
    const auto product = [&](BlockPart part, const std::vector<float>& from, std::vector<float>* to) {
        products_.forward(from.data(), n, weights.panels[static_cast<size_t>(part)], to->data());
    };
    const auto add_bias = [&](std::vector<float>& rows, const std::vector<float>& bias) {
        for (size_t t = 0; t < n && !bias.empty(); ++t)
            products_.kernels().add(rows.data() + t * bias.size(), bias.data(), bias.size());
    };
    norm(x, n, layer.attn_norm, attn_in_.data());
    product(BlockPart::kQ, attn_in_, &q_);
    product(BlockPart::kK, attn_in_, &k_);
    product(BlockPart::kV, attn_in_, &v_);
    add_bias(q_, layer.q_bias);
    add_bias(k_, layer.k_bias);
    add_bias(v_, layer.v_bias);
    normalise_heads(layer, n);
    turn_heads(layer, n, 1, q_turned_.data(), k_turned_.data());
    attend(layer, windows);
    product(BlockPart::kOutput, attended_, &added_);
    const std::vector<float>* addend = &added_;
    if (!layer.post_attention_norm.empty()) {
        norm(added_.data(), n, layer.post_attention_norm, middle_.data());
        addend = &middle_;
    }
    for (size_t i = 0; i < n * c.dim; ++i) middle_[i] = x[i] + (*addend)[i];

    norm(middle_.data(), n, layer.ffn_norm, ffn_in_.data());
    product(BlockPart::kGate, ffn_in_, &gate_);
    product(BlockPart::kUp, ffn_in_, &up_);
    const auto gate = c.architecture.gate == Gate::kGelu ? products_.kernels().geglu : products_.kernels().swiglu;
    products_.share(n, [&](size_t, size_t t) {
        gate(&gate_[t * c.ffn_dim], &up_[t * c.ffn_dim], c.ffn_dim, &gated_[t * c.ffn_dim]);
    });
    product(BlockPart::kDown, gated_, &down_);
    const float* last = down_.data();
    if (!layer.post_ffw_norm.empty()) {
        norm(down_.data(), n, layer.post_ffw_norm, y);
        last = y;
    }
    for (size_t i = 0; i < n * c.dim; ++i) y[i] = middle_[i] + last[i];
}

void TuneBlock::backward(size_t index, const BlockWeights& weights, const float* dy, size_t windows, const See& see) {
    const ModelConfig& c = model_.config;
    const Layer& layer = model_.layers[index];
    const size_t n = windows * tokens_;
    const auto back = [&](BlockPart part, const float* d, bool add, std::vector<float>* to) {
        const auto p = static_cast<size_t>(part);
        products_.backward(d, n, weights.rows[p].data(), weights.panels[p].rows, weights.panels[p].cols, add,
                           to->data());
    };
    const auto show = [&](BlockPart part, const float* d, const std::vector<float>& x) {
        const auto p = static_cast<size_t>(part);
        products_.weight_gradient(
            d, x.data(), n, weights.panels[p].rows, weights.panels[p].cols,
            [&](size_t first, size_t rows, const float* gradient) { see(p, first, rows, gradient); });
    };
    const float* d_down = dy;
    if (!layer.post_ffw_norm.empty()) {
        norm_gradient(down_.data(), n, layer.post_ffw_norm, dy, false, d_dim_.data());
        d_down = d_dim_.data();
    }
    show(BlockPart::kDown, d_down, gated_);
    back(BlockPart::kDown, d_down, false, &d_gate_);
    const bool by_gelu = c.architecture.gate == Gate::kGelu;
    products_.share(n, [&](size_t, size_t t) {
        for (size_t i = t * c.ffn_dim; i < (t + 1) * c.ffn_dim; ++i) {
            const Bend bend = by_gelu ? gelu(gate_[i]) : silu(gate_[i]);
            d_up_[i] = d_gate_[i] * bend.value;
            d_gate_[i] *= up_[i] * bend.slope;
        }
    });
    show(BlockPart::kGate, d_gate_.data(), ffn_in_);
    show(BlockPart::kUp, d_up_.data(), ffn_in_);
    back(BlockPart::kGate, d_gate_.data(), false, &d_dim_);
    back(BlockPart::kUp, d_up_.data(), true, &d_dim_);
    std::copy_n(dy, n * c.dim, d_middle_.begin());
    norm_gradient(middle_.data(), n, layer.ffn_norm, d_dim_.data(), true, d_middle_.data());

    const float* d_added = d_middle_.data();
    if (!layer.post_attention_norm.empty()) {
        norm_gradient(added_.data(), n, layer.post_attention_norm, d_middle_.data(), false, d_dim_.data());
        d_added = d_dim_.data();
    }
    show(BlockPart::kOutput, d_added, attended_);
    back(BlockPart::kOutput, d_added, false, &d_wide_);
    attend_gradient(layer, windows);
    turn_heads(layer, n, -1, d_q_.data(), d_k_.data());
    if (!layer.q_norm.empty()) {
        norm_gradient(q_.data(), n * c.q_dim() / layer.q_norm.size(), layer.q_norm, d_q_.data(), false, d_q_.data());
        norm_gradient(k_.data(), n * c.kv_dim() / layer.k_norm.size(), layer.k_norm, d_k_.data(), false, d_k_.data());
    }
    show(BlockPart::kQ, d_q_.data(), attn_in_);
    show(BlockPart::kK, d_k_.data(), attn_in_);
    show(BlockPart::kV, d_v_.data(), attn_in_);
}

}  // namespace weir
