#include "runtime/engine/model.h"

#include <cmath>
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

// Frequency of pair i: rope_scale * base^(-2i / rope_dims) (Su et al. 2021), divided by the file's factors where it
// carries some (Llama 3's long contexts).
std::vector<double> rope_frequencies(const GgufFile& file, const ModelConfig& config, const WeightStore& store) {
    const size_t pairs = config.rope_dims / 2;
    std::vector<double> frequency(pairs);
    for (size_t i = 0; i < pairs; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rope_dims);
        frequency[i] = double{config.rope_scale} * std::pow(double{config.rope_base}, exponent);
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

}  // namespace

Model bind_model(const GgufFile& file, const ModelConfig& config, const WeightStore& store) {
    const size_t q_dim = config.n_heads * config.head_dim;
    const size_t kv_dim = config.kv_dim();
    Model model;
    model.config = config;
    for (size_t i = 0; i < config.n_layers; ++i) {
        const std::string prefix = "blk." + std::to_string(i) + ".";
        Layer layer;
        layer.attn_norm = bind_vector(store, prefix + "attn_norm.weight", config.dim);
        layer.attn_q = bind_matrix(store, prefix + "attn_q.weight", q_dim, config.dim);
        layer.attn_k = bind_matrix(store, prefix + "attn_k.weight", kv_dim, config.dim);
        layer.attn_v = bind_matrix(store, prefix + "attn_v.weight", kv_dim, config.dim);
        layer.attn_output = bind_matrix(store, prefix + "attn_output.weight", config.dim, q_dim);
        layer.ffn_norm = bind_vector(store, prefix + "ffn_norm.weight", config.dim);
        layer.ffn_gate = bind_matrix(store, prefix + "ffn_gate.weight", config.ffn_dim, config.dim);
        layer.ffn_up = bind_matrix(store, prefix + "ffn_up.weight", config.ffn_dim, config.dim);
        layer.ffn_down = bind_matrix(store, prefix + "ffn_down.weight", config.dim, config.ffn_dim);
        model.layers.push_back(std::move(layer));
    }
    model.output_norm = bind_vector(store, "output_norm.weight", config.dim);
    model.head = bind_matrix(store, config.tied_head ? "token_embd.weight" : "output.weight", config.n_vocab,
                             config.dim);
    model.rope_frequency = rope_frequencies(file, config, store);
    return model;
}

}  // namespace weir
