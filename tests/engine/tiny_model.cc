#include "tests/engine/tiny_model.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/quantize_weights.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf_split.h"
#include "runtime/model/gguf_writer.h"

namespace weir::test {
namespace {

using kernels::Type;

void add_vocabulary(GgufWriter& writer, size_t n_vocab) {
    constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;
    std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types{kUnknown, kControl, kControl};
    for (int byte = 0; byte < 256; ++byte) {
        char text[8];
        std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
        tokens.emplace_back(text);
        types.push_back(kByte);
    }
    // Then "▁", the letters, and pairs of letters.
    tokens.emplace_back("\xe2\x96\x81");
    types.push_back(kNormal);
    for (size_t i = 0; tokens.size() < n_vocab; ++i) {
        std::string word(1, static_cast<char>('a' + i % 26));
        if (i >= 26) word += static_cast<char>('a' + (i / 26 - 1) % 26);
        if (i >= 26 * 27) word += std::to_string(i);
        tokens.push_back(word);
        types.push_back(kNormal);
    }
    tokens.resize(n_vocab);
    types.resize(n_vocab);
    std::vector<float> scores;
    for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
    writer.add("tokenizer.ggml.model", "llama");
    writer.add("tokenizer.ggml.tokens", tokens);
    writer.add("tokenizer.ggml.scores", scores);
    writer.add("tokenizer.ggml.token_type", types);
    writer.add("tokenizer.ggml.bos_token_id", uint32_t{1});
    writer.add("tokenizer.ggml.eos_token_id", uint32_t{2});
    writer.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
}

std::string part_path(const std::filesystem::path& path, size_t part, size_t parts) {
    return PartName{std::filesystem::path(path).replace_extension().string(), part + 1, parts}.path();
}

void write_file(const std::filesystem::path& path, const GgufWriter& writer, std::span<const std::vector<std::byte>> tensors) {
    std::vector<std::byte> bytes(writer.file_size());
    const std::vector<std::byte> header = writer.header();
    std::copy(header.begin(), header.end(), bytes.begin());
    for (size_t i = 0; i < tensors.size(); ++i) {
        std::copy(tensors[i].begin(), tensors[i].end(), bytes.begin() + static_cast<std::ptrdiff_t>(writer.tensor_offset(i)));
    }
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

void write_tiny_model(const std::filesystem::path& path, const TinyShape& shape) {
    ModelConfig config;
    config.architecture = *find_architecture(shape.architecture);
    config.dim = shape.dim;
    config.n_heads = shape.n_heads;
    config.n_kv_heads = shape.n_kv_heads;
    config.head_dim = shape.head_dim != 0 ? shape.head_dim : shape.dim / shape.n_heads;
    config.ffn_dim = shape.ffn_dim;
    config.n_experts = shape.n_experts;
    config.expert_ffn_dim = shape.expert_ffn_dim != 0 ? shape.expert_ffn_dim : shape.ffn_dim;
    config.shared_ffn_dim = shape.shared_ffn_dim;
    const size_t rope_dims = shape.rope_dims != 0 ? shape.rope_dims : config.head_dim;
    GgufWriter writer;
    const auto key = [&](const char* name, auto value) { writer.add(shape.architecture + "." + name, value); };
    const auto number = [&](const char* name, size_t value) { key(name, static_cast<uint32_t>(value)); };
    writer.add("general.architecture", shape.architecture);
    writer.add("general.name", "tiny");
    number("block_count", shape.n_layers);
    number("embedding_length", shape.dim);
    number("attention.head_count", shape.n_heads);
    number("attention.head_count_kv", shape.n_kv_heads);
    number("feed_forward_length", shape.ffn_dim);
    number("context_length", shape.n_ctx);
    key("attention.layer_norm_rms_epsilon", 1e-5f);
    number("rope.dimension_count", rope_dims);
    if (shape.head_dim != 0) {
        number("attention.key_length", config.head_dim);
        number("attention.value_length", config.head_dim);
    }
    if (shape.rope_linear_factor != 1.0f) {
        key("rope.scaling.type", "linear");
        key("rope.scaling.factor", shape.rope_linear_factor);
    }
    if (shape.window != 0) number("attention.sliding_window", shape.window);
    if (shape.attention_soft_cap != 0) key("attn_logit_softcapping", shape.attention_soft_cap);
    if (shape.logit_soft_cap != 0) key("final_logit_softcapping", shape.logit_soft_cap);
    if (shape.n_experts != 0) {
        number("expert_count", shape.n_experts);
        number("expert_used_count", shape.n_experts_used);
    }
    if (shape.expert_ffn_dim != 0) number("expert_feed_forward_length", shape.expert_ffn_dim);
    if (shape.shared_ffn_dim != 0) number("expert_shared_feed_forward_length", shape.shared_ffn_dim);
    if (shape.expert_weights_norm) key("expert_weights_norm", *shape.expert_weights_norm);
    if (shape.expert_weights_scale != 0) key("expert_weights_scale", shape.expert_weights_scale);
    if (shape.expert_gating != 0) number("expert_gating_func", shape.expert_gating);
    add_vocabulary(writer, shape.n_vocab);
    if (!shape.chat_template.empty()) writer.add("tokenizer.chat_template", shape.chat_template);

    // File order is not execution order: embedding first, down before attention, as files in the wild have it.
    struct Plan {
        size_t index;
        Type type;
        uint64_t cols, rows;  // of all experts together, where there are some
        float mean, deviation;
        bool nan;
    };
    std::vector<Plan> plans;
    const auto plan = [&](const std::string& name, Type type, uint64_t cols, uint64_t rows, float mean, float deviation,
                          bool nan = false, uint64_t experts = 0) {
        const std::vector<uint64_t> dims = LayerTensor{name.c_str(), cols, rows, experts}.dims();
        const uint64_t all_rows = std::max<uint64_t>(1, rows) * std::max<uint64_t>(1, experts);
        plans.push_back({writer.add_tensor(name, type, dims), type, cols, all_rows, mean, deviation, nan});
    };
    const auto spread = [](size_t inputs) { return 1.0f / std::sqrt(static_cast<float>(inputs)); };
    // Queries, keys and routers twice as wide, so that there is something to choose.
    const auto plan_part = [&](size_t layer, const LayerTensor& part) {
        const std::string kind = part.name;
        const std::string name = layer_tensor_name(layer, part.name);
        if (!part.is_matrix()) {
            const bool norm = kind.ends_with("_norm.weight");
            plan(name, Type::kF32, part.cols, 0, norm ? 1 : 0, norm ? 0.1f : 0.5f);
            return;
        }
        const float wider = kind == "attn_q.weight" || kind == "attn_k.weight" || kind == "ffn_gate_inp.weight" ? 2 : 1;
        const bool nan = kind == shape.nan_part && static_cast<int>(layer) == shape.nan_layer;
        const Type type = kind.starts_with("ffn_down") ? shape.down : kind == "ffn_gate_inp.weight" ? Type::kF32 : shape.body;
        plan(name, type, part.cols, part.rows, 0, wider * spread(part.cols), nan, part.experts);
    };
    plan("token_embd.weight", shape.embedding, shape.dim, shape.n_vocab, 0, 1);
    if (shape.rope_factors) plan("rope_freqs.weight", Type::kF32, rope_dims / 2, 0, 2, 0.3f);
    const std::vector<LayerTensor> parts = layer_tensors(config);
    for (size_t layer = 0; layer < shape.n_layers; ++layer) {
        const auto down = [](const LayerTensor& part) { return std::string(part.name) == "ffn_down.weight"; };
        for (const bool first : {true, false}) {
            for (const LayerTensor& part : parts) {
                if (down(part) == first) plan_part(layer, part);
            }
        }
    }
    plan("output_norm.weight", Type::kF32, shape.dim, 0, 1, 0.1f);
    if (!shape.tied) plan("output.weight", shape.head, shape.dim, shape.n_vocab, 0, 2 * spread(shape.dim));

    std::vector<std::vector<std::byte>> data;  // of each tensor
    std::mt19937 random(shape.seed);
    std::normal_distribution<float> normal;
    std::vector<float> row;
    for (const Plan& p : plans) {
        std::vector<std::byte>& bytes = data.emplace_back(writer.tensor_bytes(p.index));
        for (uint64_t r = 0; r < p.rows; ++r) {
            row.resize(p.cols);
            for (float& value : row) value = p.mean + p.deviation * normal(random);
            if (p.nan && r + 1 == p.rows) row[0] = std::numeric_limits<float>::quiet_NaN();
            kernels::quantize_weights(p.type, row.data(), bytes.data() + r * kernels::row_bytes(p.type, p.cols), p.cols);
        }
    }
    if (shape.parts == 1) return write_file(path, writer, data);
    for (size_t part = 0; part < shape.parts; ++part) {
        const size_t first = part * data.size() / shape.parts, end = (part + 1) * data.size() / shape.parts;
        write_file(part_path(path, part, shape.parts),
                   writer.part(static_cast<uint16_t>(part + 1), static_cast<uint16_t>(shape.parts), first, end - first),
                   std::span(data).subspan(first, end - first));
    }
}

TinyModelFile::TinyModelFile(const TinyShape& shape) {
    static std::atomic<int> count{0};
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       ("weir-tiny-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".gguf");
    write_tiny_model(path, shape);
    for (size_t part = 0; part < shape.parts; ++part) {
        paths_.push_back(shape.parts == 1 ? path.string() : part_path(path, part, shape.parts));
    }
}

TinyModelFile::~TinyModelFile() {
    std::error_code ignored;
    for (const std::string& path : paths_) std::filesystem::remove(path, ignored);
}

}  // namespace weir::test
