// The part of the forward pass that belongs to experts: who computes for whom, and their matrices. A slot is what one token
// has one of its experts compute; slots are sorted by expert, so that an expert's matrices meet all its tokens at once.
//
// A token's experts add their results in ascending order, whatever else is in the batch, so that its logits stay the same to
// the bit.
#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/engine/forward.h"

namespace weir {

using kernels::Activation;

// Every token's experts, and the slots of the pass.
bool Forward::route(size_t worker, const Batch& batch, size_t index) {
    const size_t tokens = batch.ids.size();
    for (size_t t = worker; t < tokens; t += team_.size()) choose(index, t);
    if (tokens > 1 && !meet()) return false;
    if (worker == 0) {
        sort_slots(tokens);
        if (trace_to_ != nullptr) trace_to_->add(index, {buffers_.chosen, tokens * model_.config.n_experts_used});
        take_step(tokens, index, 0);
        foresees_ = index + 1 < model_.layers.size() && store_.wants_predictions();
    }
    return meet();
}

// The n_experts_used experts of the greatest worth, the greatest first; of equals those that come first.
size_t Forward::rank_experts(const float* worth, uint32_t* best) const {
    const size_t n = model_.config.n_experts, used = model_.config.n_experts_used;
    size_t held = 0;
    for (size_t e = 0; e < n; ++e) {
        if (held == used && !(worth[e] > worth[best[held - 1]])) continue;
        if (held < used) ++held;
        size_t i = held - 1;
        for (; i > 0 && worth[e] > worth[best[i - 1]]; --i) best[i] = best[i - 1];
        best[i] = static_cast<uint32_t>(e);
    }
    return used;
}

// A token's experts, ascending, and their weights.
void Forward::choose(size_t index, size_t token) {
    const ModelConfig& config = model_.config;
    const size_t n = config.n_experts, used = config.n_experts_used;
    float* const worth = buffers_.router + token * n;
    uint32_t* const chosen = buffers_.chosen + token * used;
    float* const weight = buffers_.chosen_weight + token * used;
    if (!config.softmax_of_chosen) kernels_.softmax(worth, n);
    if (trace_from_ != nullptr) {
        std::ranges::copy(trace_from_->chosen(index, places_[token].position), chosen);
    } else {
        rank_experts(worth, chosen);
        std::sort(chosen, chosen + used);
    }
    for (size_t i = 0; i < used; ++i) weight[i] = worth[chosen[i]];
    if (config.softmax_of_chosen) kernels_.softmax(weight, used);
    float sum = 0;
    for (size_t i = 0; i < used; ++i) sum += weight[i];
    const float factor = config.normalise_experts ? config.expert_scale / sum : config.expert_scale;
    for (size_t i = 0; i < used; ++i) weight[i] *= factor;
}

// What the next layer's router says of the hidden state as it is now: of a token, by the last worker, as the first is busy with
// the choice itself; of a batch, of some of its tokens.
void Forward::foresee(size_t worker, const Batch& batch, size_t index) {
    const ModelConfig& config = model_.config;
    const size_t tokens = batch.ids.size(), dim = config.dim;
    const Layer& next = model_.layers[index + 1];
    const Matrix& router = *next.router;
    const Activation form = kernels::activation_for(router.type, dim, forms_.ffn_in);
    WorkerBuffers& own = buffers_.workers[worker];
    const size_t samples = std::min(tokens, kForeseenTokens);
    for (size_t i = tokens == 1 ? team_.size() - 1 - worker : worker; i < samples; i += team_.size()) {
        const size_t t = i * tokens / samples;
        kernels_.rms_norm(buffers_.x + t * dim, next.ffn_norm.data(), dim, config.rms_eps, own.row);
        std::byte* const input = form == Activation::kF32 ? own.ahead.f32 : own.ahead.quantized;
        kernels_.quantize(form, own.row, dim, input);
        if (!store_.acquire(worker, router.place, router.rows * router.row_bytes)) return;  // the walk meets it, and says so
        kernels_.matmul(router.type, form, router.data, router.rows, dim, input, 0, 1, own.ahead_router, config.n_experts);
        rank_experts(own.ahead_router, buffers_.foreseen + i * config.n_experts_used);
    }
}

// By one thread, while the others wait. Of a batch: what its tokens foresee together, the most often foreseen first.
void Forward::tell_foreseen(size_t tokens, size_t index) {
    ActivationBuffers& b = buffers_;
    const size_t used = model_.config.n_experts_used, n = model_.config.n_experts;
    if (tokens == 1) {
        store_.predict_experts(index + 1, {b.foreseen, used});
        return;
    }
    std::fill_n(b.foreseen_count, n, 0u);
    size_t found = 0;
    for (size_t i = 0; i < std::min(tokens, kForeseenTokens) * used; ++i) {
        if (b.foreseen_count[b.foreseen[i]]++ == 0) b.foreseen_of_layer[found++] = b.foreseen[i];
    }
    std::sort(b.foreseen_of_layer, b.foreseen_of_layer + found, [&b](uint32_t x, uint32_t y) {
        return b.foreseen_count[x] != b.foreseen_count[y] ? b.foreseen_count[x] > b.foreseen_count[y] : x < y;
    });
    store_.predict_experts(index + 1, {b.foreseen_of_layer, found});
}

// Gives each token's use of an expert its slot, and lists the experts that are used.
void Forward::sort_slots(size_t tokens) {
    ActivationBuffers& b = buffers_;
    const size_t n = model_.config.n_experts, slots = tokens * model_.config.n_experts_used;
    std::fill_n(b.first_slot, n + 1, 0u);
    for (size_t i = 0; i < slots; ++i) ++b.first_slot[b.chosen[i] + 1];
    for (size_t e = 0; e < n; ++e) b.first_slot[e + 1] += b.first_slot[e];
    for (size_t i = 0; i < slots; ++i) b.slot[i] = b.first_slot[b.chosen[i]]++;
    for (size_t e = n; e > 0; --e) b.first_slot[e] = b.first_slot[e - 1];  // each has moved on to the next one's
    b.first_slot[0] = 0;
    experts_.clear();
    for (size_t e = 0; e < n; ++e) {
        if (b.first_slot[e + 1] != b.first_slot[e]) experts_.push_back(static_cast<uint32_t>(e));
    }
}

// Experts are computed in steps, as they come: all at once where nothing has to be waited for. Lists the products of the
// step that follows when `done` experts are done with; an empty step ends the layer.
void Forward::take_step(size_t tokens, size_t index, size_t done) {
    const ActivationBuffers& b = buffers_;
    const ModelConfig& config = model_.config;
    const Layer& layer = model_.layers[index];
    const size_t dim = config.dim, ffn_dim = config.expert_ffn_dim, up_stride = b.up_stride(ffn_dim);
    first_of_step_ = done;
    end_of_step_ = done + (done == 0 ? store_.use_experts(index, experts_) : store_.next_experts(experts_, done));

    expert_inputs_.clear();
    expert_outputs_.clear();
    const auto list = [&](std::vector<Product>& to, const Matrix* w, float* y, size_t stride, size_t rows, bool one_input) {
        for (size_t i = first_of_step_; i < end_of_step_; ++i) {
            const size_t e = experts_[i], first = b.first_slot[e];
            to.push_back({.w = w, .y = y + first * stride, .y_stride = stride, .first_row = e * rows, .rows = rows,
                          .first_input = one_input ? 0 : first, .inputs = b.first_slot[e + 1] - first});
        }
    };
    list(expert_inputs_, layer.expert_gate, b.gate, ffn_dim, ffn_dim, tokens == 1);
    list(expert_inputs_, layer.expert_up, b.up, up_stride, ffn_dim, tokens == 1);
    list(expert_outputs_, layer.expert_down, b.slot_out, dim, dim, false);
    for (const std::vector<Product>* products : {&expert_inputs_, &expert_outputs_}) {
        for (const Product& p : *products) {
            const Matrix::Stretch needed = p.w->stretch(p.first_row, p.rows);
            store_.announce(needed.place, needed.bytes);
        }
    }
}

namespace {

// One form for gate and up, which share their input.
Activation form_of(const Matrix& gate, const Matrix& up, Activation wanted) {
    const bool floats = gate.form(wanted) == Activation::kF32 || up.form(wanted) == Activation::kF32;
    return floats ? Activation::kF32 : wanted;
}

PackedRows rows_at(std::byte* base, size_t stride) { return {base, base, stride, stride}; }

}  // namespace

// The input of every slot, its token's; of a single token one row for all. And the weight of the shared expert.
bool Forward::pack_slots(size_t worker, const Batch& batch, size_t index, uint32_t stage) {
    ActivationBuffers& b = buffers_;
    const Layer& layer = model_.layers[index];
    const size_t tokens = batch.ids.size(), dim = model_.config.dim, used = model_.config.n_experts_used;
    const Activation form = form_of(*layer.expert_gate, *layer.expert_up, forms_.ffn_in);
    const size_t stride = kernels::activation_bytes(form, dim);
    for (size_t t = worker; t < tokens; t += team_.size()) {
        const float* const row = normed(worker, b.x + t * dim, layer.ffn_norm, stage);
        if (!layer.shared_weight.empty()) {
            b.shared_weight[t] = 1.0f / (1.0f + std::exp(-kernels_.dot_f32(row, layer.shared_weight.data(), dim)));
        }
        for (size_t i = 0; i < (tokens == 1 ? 1 : used); ++i) {
            const size_t slot = tokens == 1 ? 0 : b.slot[t * used + i];
            kernels_.quantize(form, row, dim, b.packed_slots + slot * stride);
        }
    }
    if (!foresees_) return meet();
    foresee(worker, batch, index);
    return team_.barrier([&] {
        ticket_.store(0, std::memory_order_relaxed);
        tell_foreseen(tokens, index);
    });
}

bool Forward::experts(size_t worker, const Batch& batch, size_t index) {
    ActivationBuffers& b = buffers_;
    const ModelConfig& config = model_.config;
    const Layer& layer = model_.layers[index];
    const size_t tokens = batch.ids.size(), used = config.n_experts_used;
    const size_t dim = config.dim, ffn_dim = config.expert_ffn_dim, up_stride = b.up_stride(ffn_dim);
    const auto gate = config.architecture.gate == Gate::kGelu ? kernels_.geglu : kernels_.swiglu;

    const Activation form_in = form_of(*layer.expert_gate, *layer.expert_up, forms_.ffn_in);
    const PackedRows inputs = rows_at(b.packed_slots, kernels::activation_bytes(form_in, dim));
    const Activation form_down = layer.expert_down->form(forms_.ffn_down);
    const PackedRows gated_rows = b.packed_ffn(ffn_dim);
    while (first_of_step_ < end_of_step_) {
        if (!walk_rows(worker, tokens, expert_inputs_, form_in, inputs) || !meet()) return false;
        size_t turn = 0;
        for (size_t i = first_of_step_; i < end_of_step_; ++i) {
            for (size_t s = b.first_slot[experts_[i]]; s < b.first_slot[experts_[i] + 1]; ++s) {
                if (turn++ % team_.size() != worker) continue;
                float* const row = b.workers[worker].row;
                gate(b.gate + s * ffn_dim, b.up + s * up_stride, ffn_dim, row);
                kernels_.quantize(form_down, row, ffn_dim, gated_rows.quantized + s * gated_rows.quantized_stride);
            }
        }
        if (!meet() || !walk_rows(worker, tokens, expert_outputs_, form_down, gated_rows)) return false;
        const auto next = [&] {
            ticket_.store(0, std::memory_order_relaxed);
            take_step(tokens, index, end_of_step_);
        };
        if (!team_.barrier(next)) return false;
    }

    for (size_t t = worker; t < tokens; t += team_.size()) {
        for (size_t i = t * used; i < (t + 1) * used; ++i) {
            kernels_.axpy_f32(b.chosen_weight[i], b.slot_out + b.slot[i] * dim, dim, b.x + t * dim);
        }
    }
    return meet();
}

}  // namespace weir
