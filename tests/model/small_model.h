// A llama model of a few kilobytes, whole and valid, with any of its keys and tensors left out or changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/gguf_writer.h"

namespace weir::test {

struct SmallModel {
    uint32_t layers = 2, dim = 8, heads = 2, kv_heads = 1, ffn = 12, vocab = 6, context = 16;
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
        number("general.architecture", "llama");
        number("general.name", "small");
        number("llama.block_count", layers);
        number("llama.embedding_length", dim);
        number("llama.attention.head_count", heads);
        number("llama.attention.head_count_kv", kv_heads);
        number("llama.feed_forward_length", ffn);
        number("llama.context_length", context);
        number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
        const auto tensor = [&](const std::string& name, std::vector<uint64_t> dims) {
            if (has(name)) w.add_tensor(name, kernels::Type::kF32, dims);
        };
        const uint64_t kv = uint64_t{dim} / (heads == 0 ? 1 : heads) * kv_heads;
        tensor("token_embd.weight", {dim, vocab});
        for (uint32_t layer = 0; layer < layers; ++layer) {
            const std::string block = "blk." + std::to_string(layer) + ".";
            tensor(block + "attn_k.weight", {dim, kv});
            tensor(block + "attn_norm.weight", {dim});
            tensor(block + "attn_output.weight", {dim, dim});
            tensor(block + "attn_q.weight", {dim, dim});
            tensor(block + "attn_v.weight", {dim, kv});
            tensor(block + "ffn_down.weight", {ffn, dim});
            tensor(block + "ffn_gate.weight", {dim, ffn});
            tensor(block + "ffn_norm.weight", {dim});
            tensor(block + "ffn_up.weight", {dim, ffn});
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
