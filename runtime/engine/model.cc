#include "runtime/engine/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "runtime/error.h"

namespace weir {
namespace {

const Matrix* bind_matrix(const WeightStore& store, const std::string& name, size_t rows, size_t cols) {
    const Matrix& matrix = store.matrix(name);
    if (matrix.rows != rows || matrix.cols != cols) {
        throw Error("tensor " + name + " is " + std::to_string(matrix.rows) + " rows of " +
                    std::to_string(matrix.cols) + ", the metadata asks for " + std::to_string(rows) + " of " +
                    std::to_string(cols));
    }
    return &matrix;
}

std::vector<float> bind_vector(const WeightStore& store, const std::string& name, size_t n) {
    std::vector<float> values = store.vector(name);
    if (values.size() != n) {
        throw Error("tensor " + name + " has " + std::to_string(values.size()) +
                    " elements, the metadata asks for " + std::to_string(n));
    }
    return values;
}

// Frequency of pair i: scale * base^(-2i / rope_dims) (Su et al. 2021), divided by the file's factors where it carries some
// (Llama 3's long contexts).
std::vector<double> rope_frequency(const GgufFile& file, const ModelConfig& config, const WeightStore& store, float base,
                                   float scale) {
    const size_t pairs = config.rope_dims / 2;
    std::vector<double> frequency(pairs);
    for (size_t i = 0; i < pairs; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rope_dims);
        frequency[i] = double{scale} * std::pow(double{base}, exponent);
    }
    const char* const name = "rope_freqs.weight";
    if (file.find_tensor(name) == nullptr) return frequency;
    const std::vector<float> factors = bind_vector(store, name, pairs);
    for (size_t i = 0; i < pairs; ++i) {
        if (!(std::isfinite(factors[i]) && factors[i] > 0)) {
            throw Error(std::string("tensor ") + name + ": element " + std::to_string(i) + " is not above zero");
        }
        frequency[i] /= double{factors[i]};
    }
    return frequency;
}

struct VectorPart {
    const char* name;
    std::vector<float> Layer::*member;
};
constexpr VectorPart kVectorParts[] = {
    {"attn_norm.weight", &Layer::attn_norm},
    {"attn_q.bias", &Layer::q_bias},
    {"attn_k.bias", &Layer::k_bias},
    {"attn_v.bias", &Layer::v_bias},
    {"attn_q_norm.weight", &Layer::q_norm},
    {"attn_k_norm.weight", &Layer::k_norm},
    {"post_attention_norm.weight", &Layer::post_attention_norm},
    {"ffn_norm.weight", &Layer::ffn_norm},
    {"ffn_gate_inp_shexp.weight", &Layer::shared_weight},
    {"post_ffw_norm.weight", &Layer::post_ffw_norm},
};

struct MatrixPart {
    const char* name;
    const Matrix* Layer::*member;
};
constexpr MatrixPart kMatrixParts[] = {
    {"attn_q.weight", &Layer::attn_q},           {"attn_k.weight", &Layer::attn_k},
    {"attn_v.weight", &Layer::attn_v},           {"attn_output.weight", &Layer::attn_output},
    {"ffn_gate.weight", &Layer::ffn_gate},       {"ffn_up.weight", &Layer::ffn_up},
    {"ffn_down.weight", &Layer::ffn_down},       {"ffn_gate_inp.weight", &Layer::router},
    {"ffn_gate_shexp.weight", &Layer::shared_gate}, {"ffn_up_shexp.weight", &Layer::shared_up},
    {"ffn_down_shexp.weight", &Layer::shared_down}, {"ffn_gate_exps.weight", &Layer::expert_gate},
    {"ffn_up_exps.weight", &Layer::expert_up},   {"ffn_down_exps.weight", &Layer::expert_down},
};

// Puts the tensor where the forward pass looks for it.
void bind_part(const WeightStore& store, const std::string& name, const LayerTensor& part, Layer* layer) {
    for (const VectorPart& known : kVectorParts) {
        if (std::strcmp(known.name, part.name) == 0) layer->*known.member = bind_vector(store, name, part.cols);
    }
    const size_t rows = part.rows * std::max<size_t>(1, part.experts);
    for (const MatrixPart& known : kMatrixParts) {
        if (std::strcmp(known.name, part.name) == 0) layer->*known.member = bind_matrix(store, name, rows, part.cols);
    }
}

}  // namespace

Model bind_model(const GgufFile& file, const ModelConfig& config, const WeightStore& store) {
    Model model;
    model.config = config;
    const std::vector<LayerTensor> parts = layer_tensors(config);
    for (size_t i = 0; i < config.n_layers; ++i) {
        Layer layer;
        layer.attention.scale = config.attention_scale;
        layer.attention.soft_cap = config.attention_soft_cap;
        if (config.has_window(i)) {
            layer.attention.window = config.window;
            layer.attention.rope = config.n_ropes() - 1;
        }
        for (const LayerTensor& part : parts) bind_part(store, layer_tensor_name(i, part.name), part, &layer);
        model.layers.push_back(std::move(layer));
    }
    model.output_norm = bind_vector(store, "output_norm.weight", config.dim);
    model.head = bind_matrix(store, config.tied_head ? "token_embd.weight" : "output.weight", config.n_vocab,
                             config.dim);
    model.rope_frequencies.push_back(rope_frequency(file, config, store, config.rope_base, config.rope_scale));
    if (config.n_ropes() > 1) {
        model.rope_frequencies.push_back(rope_frequency(file, config, store, config.window_rope_base, 1.0f));
    }
    return model;
}

}  // namespace weir
