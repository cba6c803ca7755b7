// A model of a few kilobytes, whole and valid, with any of its keys and tensors left out or changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/gguf_writer.h"

namespace weir::test {

struct SmallModel {
    std::string architecture = "llama";
    uint32_t head_dim = 0;  // 0: dim / heads
    uint32_t layers = 2, dim = 8, heads = 2, kv_heads = 1, ffn = 12, vocab = 6, context = 16;
    uint32_t experts = 0;
    bool tied = false;
    std::vector<std::string> without;  // keys and tensors to leave out
    std::function<void(GgufWriter&)> also;

    bool has(const std::string& name) const {
        for (const std::string& left_out : without) {
            if (left_out == name) return false;
        }
        return true;
    }

    GgufWriter writer() const {
        GgufWriter w;
        const auto number = [&](const char* key, auto value) {
            if (has(key)) w.add(key, value);
        };
        number("general.architecture", architecture);
        number("general.name", "small");
        const auto own = [&](const char* name, auto value) { number((architecture + "." + name).c_str(), value); };
        own("block_count", layers);
        own("embedding_length", dim);
        own("attention.head_count", heads);
        own("attention.head_count_kv", kv_heads);
        own("feed_forward_length", ffn);
        own("context_length", context);
        own("attention.layer_norm_rms_epsilon", 1e-5f);
        if (head_dim != 0) {
            own("attention.key_length", head_dim);
            own("attention.value_length", head_dim);
        }
        if (experts != 0) {
            own("expert_count", experts);
            own("expert_used_count", uint32_t{2});
        }
        ModelConfig config;
        config.n_experts = experts;
        config.expert_ffn_dim = ffn;
        config.architecture = *find_architecture(architecture);
        config.dim = dim;
        config.n_heads = heads;
        config.n_kv_heads = kv_heads;
        config.head_dim = head_dim != 0 ? head_dim : dim / (heads == 0 ? 1 : heads);
        config.ffn_dim = ffn;
        if (config.architecture.shared_expert) config.shared_ffn_dim = ffn;
        std::vector<LayerTensor> parts = layer_tensors(config);
        std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return std::string(a.name) < b.name; });
        const auto tensor = [&](const std::string& name, std::vector<uint64_t> dims) {
            if (has(name)) w.add_tensor(name, kernels::Type::kF32, dims);
        };
        tensor("token_embd.weight", {dim, vocab});
        for (uint32_t layer = 0; layer < layers; ++layer) {
            for (const LayerTensor& part : parts) {
                const std::string name = layer_tensor_name(layer, part.name);
                tensor(name, part.dims());
            }
        }
        if (!tied) tensor("output.weight", {dim, vocab});
        tensor("output_norm.weight", {dim});
        if (also) also(w);
        return w;
    }

    // The file; its weights are zeros.
    std::vector<std::byte> bytes() const {
        const GgufWriter w = writer();
        std::vector<std::byte> out = w.header();
        out.resize(static_cast<size_t>(w.file_size()));
        return out;
    }
};

}  // namespace weir::test
