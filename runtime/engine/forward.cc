#include "runtime/engine/forward.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/engine/attention.h"
#include "runtime/engine/units.h"
#include "runtime/error.h"

namespace weir {
namespace {

using kernels::Activation;

// Stages, to name the place where a value stopped being finite: 1 the embedding, then two per layer, then the head.
constexpr uint32_t kAllFinite = 0;
constexpr uint32_t kEmbeddingStage = 1;
uint32_t attention_stage(size_t layer) { return static_cast<uint32_t>(2 + 2 * layer); }
uint32_t feed_forward_stage(size_t layer) { return static_cast<uint32_t>(3 + 2 * layer); }

std::string stage_name(uint32_t stage, size_t n_layers) {
    if (stage == kEmbeddingStage) return "the embedding";
    const size_t layer = (stage - 2) / 2;
    if (layer >= n_layers) return "the head";
    return "layer " + std::to_string(layer) + (stage % 2 == 0 ? " (attention)" : " (feed-forward)");
}

bool all_finite(std::span<const float> values) {
    // By the exponent's bits: no branch, so that the compiler may vectorise it.
    uint32_t found = 0;
    for (const float value : values) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        found |= static_cast<uint32_t>((bits & 0x7f800000u) == 0x7f800000u);
    }
    return found == 0;
}

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

// SmolLM2 Q4_1, mean distance of the eight highest logits to the same weights with float arithmetic, 479 steps (golden_test;
// llama.cpp: 0.1595): all inputs in 8 bits 0.156, and one first choice of a margin above 0.5 lost; in 16 bits throughout
// 0.001. 16 bits for the cells that stand out of their rows (see kernels/activation.h), in all inputs: 0.0748.
ActivationForms ActivationForms::product() {
    return all(Activation::kFine);
}

Forward::Forward(const Model& model, WeightStore& store, KvCache& cache, Team& team,
                 const kernels::KernelSet& kernels, const ActivationForms& forms, size_t max_batch,
                 size_t max_logit_rows)
    : model_(model), store_(store), cache_(cache), team_(team), kernels_(kernels), forms_(forms),
      max_batch_(max_batch), max_logit_rows_(max_logit_rows),
      buffers_(model.config, {max_batch, max_logit_rows, cache.capacity(), team.capacity()}) {
    ids_.reserve(max_batch);
    places_.reserve(max_batch);
    neighbours_.reserve(max_batch);
    logit_tokens_.reserve(max_logit_rows);
    experts_.reserve(model.config.n_experts);
    expert_inputs_.reserve(2 * model.config.n_experts);
    expert_outputs_.reserve(model.config.n_experts);
}

// Checks the parts and lists their tokens.
void Forward::lay_out(std::span<const SequencePart> parts) {
    const size_t n_vocab = model_.config.n_vocab;
    size_t tokens = 0, rows = 0;
    for (const SequencePart& part : parts) {
        tokens += part.ids.size();
        rows += part.logit_rows;
        if (part.ids.empty() || part.logit_rows > part.ids.size()) rows = SIZE_MAX / 2;
    }
    if (tokens == 0 || tokens > max_batch_ || rows > max_logit_rows_) {
        throw Error("a pass of " + std::to_string(tokens) + " tokens and " + std::to_string(rows) +
                    " rows of logits was not planned for");
    }
    ids_.clear();
    places_.clear();
    neighbours_.clear();
    logit_tokens_.clear();
    for (const SequencePart& part : parts) {
        const size_t first = part.cache->length(), n = part.ids.size();
        for (const SequencePart* other = parts.data(); other != &part; ++other) {
            if (other->cache == part.cache) throw Error("a pass was given two parts of one sequence");
        }
        if (n > part.cache->capacity() - first) {
            throw Error("the context is full: it holds " + std::to_string(part.cache->capacity()) + " tokens, " +
                        std::to_string(first) + " are taken and " + std::to_string(n) +
                        " more were asked for; give a larger one (-c)");
        }
        for (size_t i = 0; i < n; i += kAttentionTokens) neighbours_.push_back({ids_.size() + i, std::min(n - i, kAttentionTokens)});
        for (size_t i = 0; i < n; ++i) {
            const int32_t id = part.ids[i];
            if (id < 0 || static_cast<size_t>(id) >= n_vocab) {
                throw Error("token id " + std::to_string(id) + " is not in the model's vocabulary of " +
                            std::to_string(n_vocab));
            }
            if (i >= n - part.logit_rows) logit_tokens_.push_back(ids_.size());
            ids_.push_back(id);
            places_.push_back({part.cache, first + i});
        }
    }
}

std::span<const float> Forward::pass(std::span<const SequencePart> parts, bool next_follows, const Matrix* head) {
    lay_out(parts);
    for (const SequencePart& part : parts) part.cache->begin_pass(part.ids.size());
    const Batch batch{parts, ids_, logit_tokens_.size(), next_follows, head != nullptr ? head : model_.head};
    ticket_.store(0, std::memory_order_relaxed);
    broken_stage_.store(kAllFinite, std::memory_order_relaxed);
    bool done = false;
    try {
        done = team_.run([&](size_t worker) { work(worker, batch); });
    } catch (...) {
        // What went wrong first is what is told; that the store, too, gives up the pass adds nothing.
        try {
            abandon();
        } catch (const std::exception&) {
        }
        throw;
    }
    if (!done) abandon();
    const std::span<const float> logits(buffers_.logits, batch.logit_rows * batch.head->rows);
    if (done && !all_finite(logits)) report_not_finite(attention_stage(model_.layers.size()));
    if (const uint32_t stage = broken_stage_.load(std::memory_order_relaxed); stage != kAllFinite) {
        throw Error("a value is not finite (NaN or infinity) after " + stage_name(stage, model_.layers.size()) +
                    ", tokens " + std::to_string(places_.front().position) + " to " + std::to_string(places_.back().position) +
                    (parts.size() > 1 ? " of several sequences" : "") +
                    ": the weights are damaged, or their numbers too large for this model's arithmetic");
    }
    if (!done) throw Error("the weights of this pass cannot be had any more");
    for (const SequencePart& part : parts) part.cache->set_length(part.cache->length() + part.ids.size());
    return logits;
}

std::span<const float> Forward::pass_from(size_t first_layer, const float* states, const SequencePart& part, bool next_follows) {
    first_layer_ = first_layer;
    states_ = states;
    struct Reset {
        Forward& forward;
        ~Reset() {
            forward.first_layer_ = 0;
            forward.states_ = nullptr;
        }
    } const reset{*this};
    return pass({&part, 1}, next_follows);
}

void Forward::work(size_t worker, const Batch& batch) {
    if (!begin(worker, batch)) return;
    for (size_t index = first_layer_; index < model_.layers.size(); ++index) {
        keep_state(worker, batch, index);
        if (worker == 0) layer_under_way_.store(index, std::memory_order_relaxed);
        if (!layer(worker, batch, index)) return;
        if (worker == 0) layers_walked_.fetch_add(1, std::memory_order_relaxed);
    }
    keep_state(worker, batch, model_.layers.size());
    if (worker == 0) layer_under_way_.store(model_.layers.size(), std::memory_order_relaxed);
    sum_hidden(worker, batch);
    if (batch.logit_rows > 0 && !head(worker, batch)) return;
    if (worker != 0) return;
    pass_open_ = false;
    store_.end_pass();
    if (trace_to_ != nullptr) trace_to_->end_pass(batch.ids.size());
}

// x[t] = embedding of ids[t], and the turns of the rotary embedding for the batch's positions.
bool Forward::begin(size_t worker, const Batch& batch) {
    if (worker == 0) {
        store_.begin_pass(batch.logit_rows > 0 && !batch.head->apart, batch.next_follows);
        pass_open_ = true;
        for (size_t w = team_.size(); w < team_.capacity(); ++w) store_.sit_out(w);
        const size_t n = batch.ids.size() * model_.config.dim;
        if (states_ != nullptr) {
            std::copy_n(states_ + first_layer_ * n, n, buffers_.x);
        } else {
            store_.embedding_rows(batch.ids, buffers_.x);
            const float scale = model_.config.embedding_scale;
            for (size_t i = 0; scale != 1.0f && i < n; ++i) buffers_.x[i] *= scale;
        }
    }
    const size_t pairs = model_.config.rope_dims / 2;
    for (size_t rope = 0; rope < model_.rope_frequencies.size(); ++rope) {
        const std::vector<double>& frequency = model_.rope_frequencies[rope];
        for (size_t t = worker; t < batch.ids.size(); t += team_.size()) {
            const size_t row = (rope * max_batch_ + t) * pairs;
            for (size_t i = 0; i < pairs; ++i) {
                const double angle = static_cast<double>(places_[t].position) * frequency[i];
                buffers_.rope_cos[row + i] = static_cast<float>(std::cos(angle));
                buffers_.rope_sin[row + i] = static_cast<float>(std::sin(angle));
            }
        }
    }
    return meet();
}

// Rows that no worker changes before all have met again.
void Forward::keep_state(size_t worker, const Batch& batch, size_t index) {
    if (keep_states_ == nullptr) return;
    const size_t dim = model_.config.dim, tokens = batch.ids.size();
    for (size_t t = worker; t < tokens; t += team_.size())
        std::copy_n(buffers_.x + t * dim, dim, keep_states_ + (index * tokens + t) * dim);
}

bool Forward::layer(size_t worker, const Batch& batch, size_t index) {
    const ModelConfig& config = model_.config;
    const Layer& layer = model_.layers[index];
    const size_t tokens = batch.ids.size();
    const size_t dim = config.dim, q_dim = config.q_dim(), kv_dim = config.kv_dim();
    ActivationBuffers& b = buffers_;
    const bool to_residual = !config.architecture.post_norms;
    const auto bias = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };

    const std::array qkv{Product{.w = layer.attn_q, .y = b.q, .y_stride = q_dim, .bias = bias(layer.q_bias)},
                         Product{.w = layer.attn_k, .y = b.k, .y_stride = kv_dim, .bias = bias(layer.k_bias)},
                         Product{.w = layer.attn_v, .y = b.v, .y_stride = kv_dim, .bias = bias(layer.v_bias)}};
    const std::array output{Product{.w = layer.attn_output, .y = b.y, .y_stride = dim, .to_residual = to_residual}};
    const auto attn_input = [&](size_t t) {
        return normed(worker, b.x + t * dim, layer.attn_norm,
                      index == 0 ? kEmbeddingStage : feed_forward_stage(index - 1));
    };
    const auto attn_result = [&](size_t t) -> const float* { return b.q + t * q_dim; };
    return pack(worker, tokens, qkv, forms_.attn_in, b.packed, attn_input) &&
           walk(worker, tokens, qkv, forms_.attn_in, b.packed) &&
           normalise_qk(worker, batch, index) &&
           append(worker, batch, index) &&
           attend(worker, batch, index) &&
           pack(worker, tokens, output, forms_.attn_out, b.packed, attn_result) &&
           walk(worker, tokens, output, forms_.attn_out, b.packed) &&
           add_normed(worker, batch, layer.post_attention_norm) &&
           (layer.router == nullptr ? feed_forward(worker, batch, index) : mixture(worker, batch, index)) &&
           add_normed(worker, batch, layer.post_ffw_norm);
}

bool Forward::feed_forward(size_t worker, const Batch& batch, size_t index) {
    const Layer& layer = model_.layers[index];
    const size_t tokens = batch.ids.size();
    const GatedBlock block{layer.ffn_gate, layer.ffn_up, layer.ffn_down, !model_.config.architecture.post_norms};
    const std::array gate_up{Product{.w = block.gate, .y = nullptr, .y_stride = 0},
                             Product{.w = block.up, .y = nullptr, .y_stride = 0}};
    const auto input = [&](size_t t) {
        return normed(worker, buffers_.x + t * model_.config.dim, layer.ffn_norm, attention_stage(index));
    };
    return pack(worker, tokens, gate_up, forms_.ffn_in, buffers_.packed, input) && gated(worker, tokens, block);
}

// A mixture of experts (Shazeer et al. 2017; Fedus et al. 2021): a router weighs the experts for each token, and the best
// ones compute. The shared expert, where there is one, computes for all.
bool Forward::mixture(size_t worker, const Batch& batch, size_t index) {
    const Layer& layer = model_.layers[index];
    const size_t tokens = batch.ids.size();
    const std::array router{Product{.w = layer.router, .y = buffers_.router, .y_stride = model_.config.n_experts}};
    const GatedBlock shared{layer.shared_gate, layer.shared_up, layer.shared_down, true, buffers_.shared_weight};
    const std::array readers{router[0], Product{.w = shared.gate, .y = nullptr, .y_stride = 0},
                             Product{.w = shared.up, .y = nullptr, .y_stride = 0}};
    const bool has_shared = shared.gate != nullptr;
    const auto input = [&](size_t t) {
        return normed(worker, buffers_.x + t * model_.config.dim, layer.ffn_norm, attention_stage(index));
    };
    return pack(worker, tokens, std::span(readers).first(has_shared ? 3 : 1), forms_.ffn_in, buffers_.packed, input) &&
           walk(worker, tokens, router, forms_.ffn_in, buffers_.packed) &&
           route(worker, batch, index) &&
           pack_slots(worker, batch, index, attention_stage(index)) &&
           (!has_shared || gated(worker, tokens, shared)) &&
           experts(worker, batch, index);
}

// A feed-forward block whose input is packed.
bool Forward::gated(size_t worker, size_t tokens, const GatedBlock& block) {
    ActivationBuffers& b = buffers_;
    const size_t dim = model_.config.dim, ffn_dim = block.down->cols, up_stride = b.up_stride(ffn_dim);
    const auto gate = model_.config.architecture.gate == Gate::kGelu ? kernels_.geglu : kernels_.swiglu;
    const std::array gate_up{Product{.w = block.gate, .y = b.gate, .y_stride = ffn_dim},
                             Product{.w = block.up, .y = b.up, .y_stride = up_stride}};
    const std::array down{Product{.w = block.down, .y = b.y, .y_stride = dim,
                                  .to_residual = block.to_residual, .scale = block.scale}};
    const PackedRows packed_ffn = b.packed_ffn(ffn_dim);
    const auto gated_row = [&](size_t t) -> const float* {
        float* const row = b.workers[worker].row;
        gate(b.gate + t * ffn_dim, b.up + t * up_stride, ffn_dim, row);
        return row;
    };
    return walk(worker, tokens, gate_up, forms_.ffn_in, b.packed) &&
           pack(worker, tokens, down, forms_.ffn_down, packed_ffn, gated_row) &&
           walk(worker, tokens, down, forms_.ffn_down, packed_ffn);
}

// A part's sum is one worker's, token after token: it does not depend on how the part's text is cut.
void Forward::sum_hidden(size_t worker, const Batch& batch) {
    const size_t dim = model_.config.dim;
    size_t token = 0, sums = 0;
    for (const SequencePart& part : batch.parts) {
        const bool mine = part.hidden_sum != nullptr && sums++ % team_.size() == worker;
        for (size_t t = token; mine && t < token + part.ids.size(); ++t) {
            const float* const row = normed(worker, buffers_.x + t * dim, model_.output_norm, feed_forward_stage(model_.layers.size() - 1));
            for (size_t i = 0; i < dim; ++i) part.hidden_sum[i] += static_cast<double>(row[i]);
        }
        token += part.ids.size();
    }
}

bool Forward::head(size_t worker, const Batch& batch) {
    const size_t rows = batch.logit_rows;
    const std::array head{Product{.w = batch.head, .y = buffers_.logits, .y_stride = batch.head->rows,
                                  .soft_cap = model_.config.logit_soft_cap}};
    const auto input = [&](size_t t) {
        return normed(worker, buffers_.x + logit_tokens_[t] * model_.config.dim, model_.output_norm,
                      feed_forward_stage(model_.layers.size() - 1));
    };
    return pack(worker, rows, head, forms_.head, buffers_.packed, input) &&
           walk(worker, rows, head, forms_.head, buffers_.packed);
}

// A normalised row in the worker's own buffer; `stage` is what produced x.
const float* Forward::normed(size_t worker, const float* x, const std::vector<float>& weight, uint32_t stage) {
    const size_t dim = model_.config.dim;
    // One value that is not finite makes the sum of squares so.
    if (!std::isfinite(kernels_.dot_f32(x, x, dim))) report_not_finite(stage);
    float* const row = buffers_.workers[worker].row;
    kernels_.rms_norm(x, weight.data(), dim, model_.config.rms_eps, row);
    return row;
}

// Packs the input rows of a group, in the forms that its matrices want. The rows of a batch are shared out; the single
// row of a decode step is made by every worker for itself, which costs less than a barrier.
template <typename MakeRow>
bool Forward::pack(size_t worker, size_t tokens, std::span<const Product> group, Activation form,
                   const PackedRows& shared, MakeRow&& make_row) {
    const PackedRows& to = tokens == 1 ? buffers_.workers[worker].packed : shared;
    const size_t cols = group.front().w->cols;
    bool as_floats = false, as_blocks = false;
    for (const Product& product : group) {
        const bool floats = product.w->form(form) == Activation::kF32;
        (floats ? as_floats : as_blocks) = true;
    }
    const size_t step = tokens == 1 ? 1 : team_.size();
    for (size_t t = tokens == 1 ? 0 : worker; t < tokens; t += step) {
        const float* const row = make_row(t);
        if (watch_ != nullptr && (tokens > 1 || worker == 0)) watch_->see(*group.front().w, t, {row, cols});
        if (as_floats) kernels_.quantize(Activation::kF32, row, cols, to.f32 + t * to.f32_stride);
        if (as_blocks) kernels_.quantize(form, row, cols, to.quantized + t * to.quantized_stride);
    }
    return tokens == 1 ? !team_.failed() : meet();
}

// y = W x for a group of matrices that share their input, unit after unit in execution order, shared out by tickets.
// Workers publish the place of the unit they are about to read, which frees what lies before it.
bool Forward::walk(size_t worker, size_t tokens, std::span<const Product> group, Activation form,
                   const PackedRows& shared) {
    return walk_rows(worker, tokens, group, form, tokens == 1 ? buffers_.workers[worker].packed : shared) && meet();
}

// Where rows of a matrix are (of one in planes: its first byte), once they are here, and at which level they are.
Forward::Rows Forward::rows_of(size_t worker, const Matrix& w, size_t row, size_t rows) {
    if (w.expert_rows != 0) return {store_.expert_rows(worker, w, row), w.level};
    if (w.apart) return {w.rows_at(row), w.level};
    const Matrix::Stretch needed = w.stretch(row, rows);
    store_.release(worker, needed.place);
    if (!store_.acquire(worker, needed.place, needed.bytes)) return {nullptr, w.level};
    const bool refined = store_.refined(worker, needed.place, needed.bytes);
    return {w.rows_at(row), refined ? w.level : std::min(w.level, WeightStore::kBaseLevel)};
}

bool Forward::walk_rows(size_t worker, size_t tokens, std::span<const Product> group, Activation form,
                        const PackedRows& x) {
    size_t first_unit = 0;  // of the current product
    size_t ticket = ticket_.fetch_add(1, std::memory_order_relaxed);
    for (const Product& product : group) {
        const Matrix& w = *product.w;
        const Activation packed = w.form(form);
        const bool floats = packed == Activation::kF32;
        const size_t stride = floats ? x.f32_stride : x.quantized_stride;
        const std::byte* const input = (floats ? x.f32 : x.quantized) + product.first_input * stride;
        const size_t inputs = product.inputs != 0 ? product.inputs : tokens;
        const size_t rows_in_all = product.rows != 0 ? product.rows : w.rows;
        const size_t band_rows = w.band_rows != 0 ? w.band_rows : rows_in_all;  // which no unit lies across
        const size_t rows_per_unit = std::min(unit_rows(w, group), band_rows);
        const size_t units_per_band = ceil_div(band_rows, rows_per_unit);
        const size_t units = rows_in_all / band_rows * units_per_band + ceil_div(rows_in_all % band_rows, rows_per_unit);
        for (; ticket < first_unit + units; ticket = ticket_.fetch_add(1, std::memory_order_relaxed)) {
            const size_t unit = ticket - first_unit, in_band = unit % units_per_band * rows_per_unit;
            const size_t row = unit / units_per_band * band_rows + in_band;
            const size_t rows = std::min({rows_per_unit, band_rows - in_band, rows_in_all - row});
            const Rows weights = rows_of(worker, w, product.first_row + row, rows);
            if (weights.at == nullptr) {
                team_.fail();
                return false;
            }
            w.multiply(kernels_, packed, weights.at, weights.level, product.first_row + row, rows, input, stride, inputs,
                       product.y + row, product.y_stride);
            finish(product, row, rows, inputs);
        }
        first_unit += units;
    }
    const Product& last = group.back();
    if (last.w->expert_rows == 0 && !last.w->apart) {
        const Matrix::Stretch done = last.w->stretch(last.first_row, last.rows != 0 ? last.rows : last.w->rows);
        store_.release(worker, done.place + done.bytes);
    }
    return true;
}

// What comes after the product, row by row, while the unit's results are in cache.
void Forward::finish(const Product& product, size_t row, size_t rows, size_t tokens) {
    for (size_t t = 0; t < tokens; ++t) {
        float* const y = product.y + t * product.y_stride + row;
        if (product.bias != nullptr) kernels_.add(y, product.bias + row, rows);
        if (product.soft_cap != 0) kernels_.soft_cap(y, rows, product.soft_cap);
        if (!product.to_residual) continue;
        float* const x = buffers_.x + t * model_.config.dim + row;
        if (product.scale == nullptr) {
            kernels_.add(x, y, rows);
        } else {
            kernels_.axpy_f32(product.scale[t], y, rows, x);
        }
    }
}

// x[t] += norm(y[t]), where the architecture normalises what a sub-layer adds.
bool Forward::add_normed(size_t worker, const Batch& batch, const std::vector<float>& weight) {
    if (weight.empty()) return true;
    const size_t dim = model_.config.dim;
    for (size_t t = worker; t < batch.ids.size(); t += team_.size()) {
        float* const y = buffers_.y + t * dim;
        kernels_.rms_norm(y, weight.data(), dim, model_.config.rms_eps, y);
        kernels_.add(buffers_.x + t * dim, y, dim);
    }
    return meet();
}

// Queries and keys, where the architecture normalises them: head by head, or all heads of a token as one row.
bool Forward::normalise_qk(size_t worker, const Batch& batch, size_t index) {
    const Layer& layer = model_.layers[index];
    if (layer.q_norm.empty()) return true;
    const ModelConfig& config = model_.config;
    const size_t q_width = layer.q_norm.size(), k_width = layer.k_norm.size();
    const size_t n_q = batch.ids.size() * config.q_dim() / q_width, n_k = batch.ids.size() * config.kv_dim() / k_width;
    for (size_t i = worker; i < n_q + n_k; i += team_.size()) {
        const bool query = i < n_q;
        float* const row = query ? buffers_.q + i * q_width : buffers_.k + (i - n_q) * k_width;
        kernels_.rms_norm(row, (query ? layer.q_norm : layer.k_norm).data(), query ? q_width : k_width, config.rms_eps, row);
    }
    return meet();
}

size_t Forward::unit_rows(const Matrix& matrix, std::span<const Product> group) const {
    size_t group_bytes = 0;
    for (const Product& product : group) {
        group_bytes += (product.rows != 0 ? product.rows : product.w->rows) * product.w->row_bytes;
    }
    return rows_of_unit(matrix.row_bytes, group_bytes, team_.size(), store_.extent_bytes());
}

// Keys and values of a batch go into the cache before any of its tokens looks at them. For a single token this happens
// in attend(), where the worker that takes a head appends it first: one barrier less.
bool Forward::append(size_t worker, const Batch& batch, size_t index) {
    const size_t tokens = batch.ids.size();
    if (tokens == 1) return true;
    // A panel of keys to each in turn: two workers in one would take its cache lines from each other.
    for (size_t t = 0; t < tokens; ++t) {
        if (places_[t].position / KvCache::kPanel % team_.size() != worker) continue;
        for (size_t h = 0; h < model_.config.n_kv_heads; ++h) append_row(index, h, t);
    }
    return meet();
}

bool Forward::attend(size_t worker, const Batch& batch, size_t index) {
    const ModelConfig& config = model_.config;
    const size_t tokens = batch.ids.size();
    const size_t head_dim = config.head_dim, group = config.n_heads / config.n_kv_heads;
    const size_t q_dim = config.n_heads * head_dim;
    const AttentionRule& rule = model_.layers[index].attention;
    const AttentionShape shape{head_dim, group, rule.scale, rule.soft_cap, rule.window};
    const size_t units = config.n_kv_heads * neighbours_.size();
    for (size_t unit = ticket_.fetch_add(1, std::memory_order_relaxed); unit < units;
         unit = ticket_.fetch_add(1, std::memory_order_relaxed)) {
        const size_t kv_head = unit % config.n_kv_heads;
        const auto [first, count] = neighbours_[unit / config.n_kv_heads];
        if (tokens == 1) append_row(index, kv_head, 0);
        float* const q = buffers_.q + first * q_dim + kv_head * group * head_dim;
        for (size_t t = 0; t < count; ++t) {
            for (size_t g = 0; g < group; ++g) rotate(q + t * q_dim + g * head_dim, first + t, rule.rope);
        }
        weir::attend(kernels_, *places_[first].cache, index, kv_head, shape, places_[first].position, count, q, q_dim,
                     buffers_.workers[worker].attention);
    }
    return meet();
}

// Rotates the pairs of one head's row by the angles of the batch's token.
void Forward::rotate(float* head_row, size_t token, size_t rope) const {
    const size_t pairs = model_.config.rope_dims / 2;
    const float* const cos = buffers_.rope_cos + (rope * max_batch_ + token) * pairs;
    const float* const sin = buffers_.rope_sin + (rope * max_batch_ + token) * pairs;
    const bool halves = model_.config.architecture.rope_pairs == RopePairs::kHalves;
    const size_t step = halves ? 1 : 2, apart = halves ? pairs : 1;
    for (size_t i = 0; i < pairs; ++i) {
        const float a = head_row[step * i], b = head_row[step * i + apart];
        head_row[step * i] = a * cos[i] - b * sin[i];
        head_row[step * i + apart] = a * sin[i] + b * cos[i];
    }
}

void Forward::append_row(size_t index, size_t kv_head, size_t token) {
    const size_t head_dim = model_.config.head_dim;
    float* const k = buffers_.k + (token * model_.config.n_kv_heads + kv_head) * head_dim;
    const float* const v = buffers_.v + (token * model_.config.n_kv_heads + kv_head) * head_dim;
    // A quantised row does not say that an element was not finite.
    if (!std::isfinite(kernels_.dot_f32(k, k, head_dim) + kernels_.dot_f32(v, v, head_dim))) {
        report_not_finite(attention_stage(index));
    }
    rotate(k, token, model_.layers[index].attention.rope);
    append_to_cache(kernels_, *places_[token].cache, index, kv_head, places_[token].position, head_dim, k, v);
}

bool Forward::meet() {
    return team_.barrier([this] { ticket_.store(0, std::memory_order_relaxed); });
}

void Forward::report_not_finite(uint32_t stage) {
    uint32_t none = kAllFinite;
    broken_stage_.compare_exchange_strong(none, stage, std::memory_order_relaxed);
    team_.fail();
}

// The store's end of a pass that was not finished; throws what the store knows.
void Forward::abandon() {
    if (!pass_open_) return;
    pass_open_ = false;
    team_.run([this](size_t worker) {
        if (worker == 0) store_.end_pass();
    });
}

}  // namespace weir
