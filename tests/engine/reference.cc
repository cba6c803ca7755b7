#include "tests/engine/reference.h"

#include <cmath>
#include <fstream>

#include "kernels/kernels.h"

namespace weir::test {

ReferenceDecoder::ReferenceDecoder(const std::string& path) {
    const GgufFile file = GgufFile::open(path);
    config_ = read_config(file);
    std::ifstream in(path, std::ios::binary);
    for (const GgufTensor& tensor : file.tensors()) {
        std::vector<char> raw(tensor.bytes);
        in.seekg(static_cast<std::streamoff>(tensor.offset));
        in.read(raw.data(), static_cast<std::streamsize>(raw.size()));
        std::vector<float>& values = weights_[tensor.name];
        values.resize(tensor.dims[0] * tensor.rows());
        kernels::select_kernels("scalar")->dequantize(tensor.type, raw.data(), values.data(), values.size());
    }
    keys_.resize(config_.n_layers);
    values_.resize(config_.n_layers);
}

ReferenceDecoder::Vector ReferenceDecoder::product(const std::string& name, const Vector& x) const {
    const std::vector<float>& w = weights_.at(name);
    Vector y(w.size() / x.size());
    for (size_t r = 0; r < y.size(); ++r) {
        for (size_t i = 0; i < x.size(); ++i) y[r] += static_cast<double>(w[r * x.size() + i]) * x[i];
    }
    return y;
}

ReferenceDecoder::Vector ReferenceDecoder::normed(const Vector& x, const std::string& weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(config_.rms_eps));
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * static_cast<double>(weights_.at(weight)[i]);
    return y;
}

void ReferenceDecoder::rotate(Vector& heads, size_t position) const {
    const auto factors = weights_.find("rope_freqs.weight");
    for (size_t head = 0; head < heads.size() / config_.head_dim; ++head) {
        for (size_t i = 0; i < config_.rope_dims / 2; ++i) {
            double angle = static_cast<double>(position) * static_cast<double>(config_.rope_scale) /
                           std::pow(static_cast<double>(config_.rope_base),
                                    2.0 * static_cast<double>(i) / static_cast<double>(config_.rope_dims));
            if (factors != weights_.end()) angle /= static_cast<double>(factors->second[i]);
            double& a = heads[head * config_.head_dim + 2 * i];
            double& b = heads[head * config_.head_dim + 2 * i + 1];
            const double turned = a * std::cos(angle) - b * std::sin(angle);
            b = a * std::sin(angle) + b * std::cos(angle);
            a = turned;
        }
    }
}

std::vector<double> ReferenceDecoder::step(int32_t id) {
    const size_t hd = config_.head_dim;
    const std::vector<float>& embedding = weights_.at("token_embd.weight");
    const auto row = embedding.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(id) * config_.dim);
    Vector x(row, row + static_cast<std::ptrdiff_t>(config_.dim));
    for (size_t layer = 0; layer < config_.n_layers; ++layer) {
        const std::string blk = "blk." + std::to_string(layer) + ".";
        const size_t position = keys_[layer].size();
        const Vector h = normed(x, blk + "attn_norm.weight");
        Vector q = product(blk + "attn_q.weight", h);
        Vector k = product(blk + "attn_k.weight", h);
        rotate(q, position);
        rotate(k, position);
        keys_[layer].push_back(k);
        values_[layer].push_back(product(blk + "attn_v.weight", h));
        Vector attended(q.size());
        for (size_t head = 0; head < config_.n_heads; ++head) {
            const size_t kv = head / (config_.n_heads / config_.n_kv_heads);
            Vector weight(position + 1);
            double sum = 0;
            for (size_t p = 0; p <= position; ++p) {
                double dot = 0;
                for (size_t i = 0; i < hd; ++i) dot += q[head * hd + i] * keys_[layer][p][kv * hd + i];
                sum += weight[p] = std::exp(dot / std::sqrt(static_cast<double>(hd)));
            }
            for (size_t p = 0; p <= position; ++p) {
                for (size_t i = 0; i < hd; ++i) {
                    attended[head * hd + i] += weight[p] / sum * values_[layer][p][kv * hd + i];
                }
            }
        }
        const Vector output = product(blk + "attn_output.weight", attended);
        for (size_t i = 0; i < x.size(); ++i) x[i] += output[i];
        const Vector f = normed(x, blk + "ffn_norm.weight");
        Vector gate = product(blk + "ffn_gate.weight", f);
        const Vector up = product(blk + "ffn_up.weight", f);
        for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        const Vector down = product(blk + "ffn_down.weight", gate);
        for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
    }
    return product(config_.tied_head ? "token_embd.weight" : "output.weight", normed(x, "output_norm.weight"));
}

}  // namespace weir::test
