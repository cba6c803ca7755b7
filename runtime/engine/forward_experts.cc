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
    for (size_t t = worker; t < tokens; t += team_.size()) choose(t);
    if (tokens > 1 && !meet()) return false;
    if (worker == 0) sort_slots(tokens, model_.layers[index]);
    return meet();
}

// The n_experts_used experts of the greatest weight, of equals those that come first, ascending; and their weights.
void Forward::choose(size_t token) {
    const ModelConfig& config = model_.config;
    const size_t n = config.n_experts, used = config.n_experts_used;
    float* const worth = buffers_.router + token * n;
    uint32_t* const chosen = buffers_.chosen + token * used;
    float* const weight = buffers_.chosen_weight + token * used;
    if (!config.softmax_of_chosen) kernels_.softmax(worth, n);
    size_t held = 0;
    for (size_t e = 0; e < n; ++e) {
        if (held == used && !(worth[e] > worth[chosen[held - 1]])) continue;
        if (held < used) ++held;
        size_t i = held - 1;
        for (; i > 0 && worth[e] > worth[chosen[i - 1]]; --i) chosen[i] = chosen[i - 1];
        chosen[i] = static_cast<uint32_t>(e);
    }
    std::sort(chosen, chosen + used);
    for (size_t i = 0; i < used; ++i) weight[i] = worth[chosen[i]];
    if (config.softmax_of_chosen) kernels_.softmax(weight, used);
    float sum = 0;
    for (size_t i = 0; i < used; ++i) sum += weight[i];
    const float factor = config.normalise_experts ? config.expert_scale / sum : config.expert_scale;
    for (size_t i = 0; i < used; ++i) weight[i] *= factor;
}

// Gives each token's use of an expert its slot, and lists the products of the experts that are used, in execution order.
void Forward::sort_slots(size_t tokens, const Layer& layer) {
    ActivationBuffers& b = buffers_;
    const ModelConfig& config = model_.config;
    const size_t n = config.n_experts, slots = tokens * config.n_experts_used;
    const size_t dim = config.dim, ffn_dim = config.expert_ffn_dim, up_stride = b.up_stride(ffn_dim);
    std::fill_n(b.first_slot, n + 1, 0u);
    for (size_t i = 0; i < slots; ++i) ++b.first_slot[b.chosen[i] + 1];
    for (size_t e = 0; e < n; ++e) b.first_slot[e + 1] += b.first_slot[e];
    for (size_t i = 0; i < slots; ++i) b.slot[i] = b.first_slot[b.chosen[i]]++;
    for (size_t e = n; e > 0; --e) b.first_slot[e] = b.first_slot[e - 1];  // each has moved on to the next one's
    b.first_slot[0] = 0;

    expert_inputs_.clear();
    expert_outputs_.clear();
    const auto list = [&](std::vector<Product>& to, const Matrix* w, float* y, size_t stride, size_t rows, bool one_input) {
        for (size_t e = 0; e < n; ++e) {
            const size_t first = b.first_slot[e], count = b.first_slot[e + 1] - first;
            if (count == 0) continue;
            to.push_back({.w = w, .y = y + first * stride, .y_stride = stride, .first_row = e * rows, .rows = rows,
                          .first_input = one_input ? 0 : first, .inputs = count});
        }
    };
    list(expert_inputs_, layer.expert_gate, b.gate, ffn_dim, ffn_dim, tokens == 1);
    list(expert_inputs_, layer.expert_up, b.up, up_stride, ffn_dim, tokens == 1);
    list(expert_outputs_, layer.expert_down, b.slot_out, dim, dim, false);
    for (const std::vector<Product>* products : {&expert_inputs_, &expert_outputs_}) {
        for (const Product& p : *products) {
            store_.announce(p.w->place + p.first_row * p.w->row_bytes, p.rows * p.w->row_bytes);
        }
    }
}

namespace {

// One form for gate and up, which share their input.
Activation form_of(const Matrix& gate, const Matrix& up, Activation wanted) {
    const bool floats = kernels::activation_for(gate.type, gate.cols, wanted) == Activation::kF32 ||
                        kernels::activation_for(up.type, up.cols, wanted) == Activation::kF32;
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
    return meet();
}

bool Forward::experts(size_t worker, const Batch& batch, size_t index) {
    ActivationBuffers& b = buffers_;
    const ModelConfig& config = model_.config;
    const Layer& layer = model_.layers[index];
    const size_t tokens = batch.ids.size(), used = config.n_experts_used, slots = tokens * used;
    const size_t dim = config.dim, ffn_dim = config.expert_ffn_dim, up_stride = b.up_stride(ffn_dim);
    const auto gate = config.architecture.gate == Gate::kGelu ? kernels_.geglu : kernels_.swiglu;

    const Activation form_in = form_of(*layer.expert_gate, *layer.expert_up, forms_.ffn_in);
    const PackedRows inputs = rows_at(b.packed_slots, kernels::activation_bytes(form_in, dim));
    if (!walk_rows(worker, tokens, expert_inputs_, form_in, inputs)) return false;

    const Activation form_down = kernels::activation_for(layer.expert_down->type, ffn_dim, forms_.ffn_down);
    const PackedRows gated_rows = b.packed_ffn(ffn_dim);
    for (size_t s = worker; s < slots; s += team_.size()) {
        float* const row = b.workers[worker].row;
        gate(b.gate + s * ffn_dim, b.up + s * up_stride, ffn_dim, row);
        kernels_.quantize(form_down, row, ffn_dim, gated_rows.quantized + s * gated_rows.quantized_stride);
    }
    if (!meet() || !walk_rows(worker, tokens, expert_outputs_, form_down, gated_rows)) return false;

    for (size_t t = worker; t < tokens; t += team_.size()) {
        for (size_t i = t * used; i < (t + 1) * used; ++i) {
            kernels_.axpy_f32(b.chosen_weight[i], b.slot_out + b.slot[i] * dim, dim, b.x + t * dim);
        }
    }
    return meet();
}

}  // namespace weir
