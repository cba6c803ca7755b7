#include "runtime/model/synth.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/error.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf_split.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/model/partial_file.h"
#include "runtime/model/printable.h"
#include "runtime/model/synth_vocab.h"
#include "runtime/model/synth_weights.h"

namespace weir {
namespace {

struct Shape {
    const char* name;
    const char* like;
    uint32_t dim, layers, heads, kv_heads, ffn, vocab, context;
    float rope_base;
    uint32_t experts = 0, experts_used = 0;  // ffn is one expert's then
};

constexpr Shape kShapes[] = {
    {"1.1b", "TinyLlama 1.1B", 2048, 22, 32, 4, 5632, 32000, 2048, 10000.0f},
    {"3b", "Llama 3.2 3B with a head of its own", 3072, 28, 24, 8, 8192, 128256, 8192, 500000.0f},
    {"7b-a1b", "OLMoE 7B, of which a token uses 1B", 2048, 16, 16, 16, 1024, 50304, 4 << 10, 10000.0f, 64, 8},
    {"7b", "Llama 2 7B", 4 * 1024, 32, 32, 32, 11008, 32000, 4 * 1024, 10000.0f},
    {"13b", "Llama 2 13B", 5120, 40, 40, 40, 13824, 32000, 4 * 1024, 10000.0f},
};

struct MatrixType {
    const char* name;
    kernels::Type type;
    kernels::Type finer;  // of the head, and of attn_v and ffn_down in every other layer
    uint32_t file_type;   // general.file_type
};

constexpr MatrixType kTypes[] = {
    {"q4_0", kernels::Type::kQ4_0, kernels::Type::kQ4_0, 2},
    {"q4_k", kernels::Type::kQ4_K, kernels::Type::kQ4_K, 14},
    {"q4_k_m", kernels::Type::kQ4_K, kernels::Type::kQ6_K, 15},
    {"q8_0", kernels::Type::kQ8_0, kernels::Type::kQ8_0, 7},
    {"f16", kernels::Type::kF16, kernels::Type::kF16, 1},
    {"iq4_nl", kernels::Type::kIQ4_NL, kernels::Type::kIQ4_NL, 25},
    {"iq4_xs", kernels::Type::kIQ4_XS, kernels::Type::kIQ4_XS, 30},
    {"iq3_s", kernels::Type::kIQ3_S, kernels::Type::kIQ3_S, 26},
    {"iq3_xxs", kernels::Type::kIQ3_XXS, kernels::Type::kIQ3_XXS, 23},
    {"iq2_s", kernels::Type::kIQ2_S, kernels::Type::kIQ2_S, 28},
    {"iq2_xs", kernels::Type::kIQ2_XS, kernels::Type::kIQ2_XS, 20},
    {"iq2_xxs", kernels::Type::kIQ2_XXS, kernels::Type::kIQ2_XXS, 19},
    {"iq1_m", kernels::Type::kIQ1_M, kernels::Type::kIQ1_M, 31},
    {"iq1_s", kernels::Type::kIQ1_S, kernels::Type::kIQ1_S, 24},
    {"tq1_0", kernels::Type::kTQ1_0, kernels::Type::kTQ1_0, 36},
    {"tq2_0", kernels::Type::kTQ2_0, kernels::Type::kTQ2_0, 37},
    {"mxfp4", kernels::Type::kMXFP4, kernels::Type::kMXFP4, 38},
};

constexpr size_t kMaxLayers = 1024;

template <typename Entry, size_t n>
std::string names(const Entry (&entries)[n]) {
    std::string out;
    for (const Entry& entry : entries) {
        if (!out.empty()) out += ' ';
        out += entry.name;
    }
    return out;
}

template <typename Entry, size_t n>
const Entry& pick(const Entry (&entries)[n], const std::string& name, const char* what) {
    for (const Entry& entry : entries) {
        if (name == entry.name) return entry;
    }
    throw UsageError(std::string("unknown ") + what + " " + quoted(name) + "; there are: " + names(entries));
}

// Standard deviation of biases, and of the weights of the shared expert's gate.
constexpr double kBias = 0.5;
constexpr double kSharedGate = 0.02;

// A shared expert's width in widths of the others, as in Qwen1.5-MoE.
constexpr uint32_t kSharedWidth = 4;

// What Gemma's models have: windows and caps that the files say in numbers.
constexpr uint32_t kGemma2Window = 4 << 10, kGemma3Window = 1 << 10;
constexpr float kAttentionSoftCap = 50, kLogitSoftCap = 30;

// A tensor and the standard deviation of its weights; 0 marks a norm, whose weights are 1.
struct Part {
    size_t index;
    kernels::Type type;
    double deviation;
};

// The file's header, and what is to be written behind it.
struct Plan {
    GgufWriter writer;
    std::vector<Part> parts;
};

// Weights of deviation 1 / sqrt(row length) keep activations at the size they came in. Three things differ,
// to keep the model from being degenerate: what is added to the residual stream is made smaller as in GPT-2's
// initialisation, so that the stream does not grow with the depth; an embedding of its own has deviation 1,
// so that the token is not drowned by the first layer; the head's logits spread by 3, about as a trained
// model's do.
Plan make_plan(const SynthOptions& options) {
    const Shape& shape = pick(kShapes, options.shape, "shape");
    const MatrixType& matrix = pick(kTypes, options.type, "type");
    const size_t n_layers = options.n_layers == 0 ? shape.layers : options.n_layers;
    const size_t n_vocab = options.n_vocab == 0 ? shape.vocab : options.n_vocab;
    if (n_layers > kMaxLayers) throw UsageError("more than " + std::to_string(kMaxLayers) + " layers");
    if (n_vocab < kMinSynthVocab || n_vocab > kMaxSynthVocab) {
        throw UsageError("a vocabulary of " + std::to_string(n_vocab) +
                         " tokens: " + std::to_string(kMinSynthVocab) + " to " +
                         std::to_string(kMaxSynthVocab) + " are possible");
    }

    const Architecture* const architecture = find_architecture(options.architecture);
    if (architecture == nullptr) {
        throw UsageError("unknown architecture " + quoted(options.architecture) + "; there are: " + architecture_names());
    }
    const bool experts = shape.experts != 0;
    if (experts && architecture->experts == Experts::kNever) {
        throw UsageError("architecture " + quoted(architecture->name) + " has no experts, shape " + quoted(shape.name) + " has");
    }
    if (!experts && architecture->experts == Experts::kAlways) {
        throw UsageError("architecture " + quoted(architecture->name) + " has experts, shape " + quoted(shape.name) + " has none");
    }
    ModelConfig config;
    config.architecture = *architecture;
    config.n_experts = shape.experts;
    config.expert_ffn_dim = shape.ffn;
    if (architecture->shared_expert) config.shared_ffn_dim = kSharedWidth * shape.ffn;
    config.dim = shape.dim;
    config.n_heads = shape.heads;
    config.n_kv_heads = shape.kv_heads;
    config.head_dim = shape.dim / shape.heads;
    config.ffn_dim = shape.ffn;

    const bool tied = options.tied || architecture->scaled_embedding;  // Gemma's heads always are
    Plan plan;
    GgufWriter& w = plan.writer;
    w.add("general.architecture", architecture->name);
    w.add("general.name", std::string("synthetic ") + shape.name + " " + matrix.name + ", random weights");
    w.add("general.description", std::string("Random weights in the dimensions of ") + shape.like +
                                     ", seed " + std::to_string(options.seed) +
                                     ". Made for measurements; its text is noise.");
    w.add("general.file_type", matrix.file_type);
    w.add("general.quantization_version", uint32_t{2});
    const auto key = [&](const char* name, auto value) { w.add(std::string(architecture->name) + "." + name, value); };
    const auto head_dim = static_cast<uint32_t>(config.head_dim);
    key("block_count", static_cast<uint32_t>(n_layers));
    key("context_length", shape.context);
    key("embedding_length", shape.dim);
    key("feed_forward_length", shape.ffn);
    key("attention.head_count", shape.heads);
    key("attention.head_count_kv", shape.kv_heads);
    key("attention.key_length", head_dim);
    key("attention.value_length", head_dim);
    key("attention.layer_norm_rms_epsilon", 1e-5f);
    key("rope.dimension_count", head_dim);
    key("rope.freq_base", shape.rope_base);
    key("vocab_size", static_cast<uint32_t>(n_vocab));
    if (experts) {
        key("expert_count", shape.experts);
        key("expert_used_count", shape.experts_used);
        key("expert_feed_forward_length", shape.ffn);
        if (architecture->shared_expert) key("expert_shared_feed_forward_length", kSharedWidth * shape.ffn);
    }
    if (architecture->window_period != 0) {
        key("attention.sliding_window", architecture->soft_caps ? kGemma2Window : kGemma3Window);
    }
    if (architecture->soft_caps) {
        key("attn_logit_softcapping", kAttentionSoftCap);
        key("final_logit_softcapping", kLogitSoftCap);
    }
    const SynthVocab vocab = make_synth_vocab(n_vocab);
    w.add("tokenizer.ggml.model", "llama");
    w.add("tokenizer.ggml.pre", "default");
    w.add("tokenizer.ggml.tokens", vocab.tokens);
    w.add("tokenizer.ggml.scores", vocab.scores);
    w.add("tokenizer.ggml.token_type", vocab.types);
    w.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
    w.add("tokenizer.ggml.bos_token_id", uint32_t{1});
    w.add("tokenizer.ggml.eos_token_id", uint32_t{2});
    w.add("tokenizer.ggml.add_bos_token", true);
    w.add("tokenizer.ggml.add_eos_token", false);

    const auto add = [&](kernels::Type type, const std::string& name, const std::vector<uint64_t>& dims, double deviation) {
        plan.parts.push_back({w.add_tensor(name, type, dims), type, deviation});
    };
    const auto from = [](uint64_t cols) { return 1 / std::sqrt(static_cast<double>(cols)); };
    const double residual = 1 / std::sqrt(2.0 * static_cast<double>(n_layers));
    constexpr double kLogits = 3;

    // The order in which converters write files, by name, which is not the order of execution.
    std::vector<LayerTensor> parts = layer_tensors(config);
    std::sort(parts.begin(), parts.end(),
              [](const LayerTensor& a, const LayerTensor& b) { return std::strcmp(a.name, b.name) < 0; });
    add(tied ? matrix.finer : matrix.type, "token_embd.weight", {shape.dim, n_vocab}, tied ? kLogits * from(shape.dim) : 1.0);
    for (size_t layer = 0; layer < n_layers; ++layer) {
        for (const LayerTensor& part : parts) {
            const std::string_view kind = part.name;
            const std::string name = layer_tensor_name(layer, part.name);
            if (part.is_matrix()) {
                const bool adds = kind == "attn_output.weight" || kind.starts_with("ffn_down");
                const bool router = kind == "ffn_gate_inp.weight";
                const bool finer = layer % 2 == 0 && (kind == "attn_v.weight" || kind.starts_with("ffn_down"));
                const kernels::Type type = router ? kernels::Type::kF32 : finer ? matrix.finer : matrix.type;
                add(type, name, part.dims(), from(part.cols) * (adds ? residual : 1));
            } else {
                const bool norm = kind.ends_with("_norm.weight");
                add(kernels::Type::kF32, name, part.dims(), norm ? 0 : kind.ends_with(".bias") ? kBias : kSharedGate);
            }
        }
    }
    if (!tied) add(matrix.finer, "output.weight", {shape.dim, n_vocab}, kLogits * from(shape.dim));
    add(kernels::Type::kF32, "output_norm.weight", {shape.dim}, 0);
    return plan;
}

// One of the files that a model is written to.
struct Volume {
    std::string path;
    GgufWriter writer;
    size_t first;  // of the plan's tensors
};

std::vector<Volume> volumes_of(const GgufWriter& whole, const SynthOptions& options, const std::string& path) {
    std::vector<Volume> volumes;
    if (options.split_bytes == 0) {
        volumes.push_back({path, whole, 0});
        return volumes;
    }
    std::vector<size_t> first;
    uint64_t bytes = 0;
    for (size_t i = 0; i < whole.tensor_count(); ++i) {
        if (i == 0 || bytes + whole.tensor_bytes(i) > options.split_bytes) {
            first.push_back(i);
            bytes = 0;
        }
        bytes += whole.tensor_bytes(i);
    }
    const size_t count = first.size();
    if (count > kMostParts) {
        throw UsageError("that makes " + std::to_string(count) + " parts; " + std::to_string(kMostParts) + " can be");
    }
    first.push_back(whole.tensor_count());
    const std::string stem = path.ends_with(".gguf") ? path.substr(0, path.size() - 5) : path;
    for (size_t i = 0; i < count; ++i) {
        volumes.push_back({PartName{stem, i + 1, count}.path(),
                           whole.part(static_cast<uint16_t>(i + 1), static_cast<uint16_t>(count), first[i], first[i + 1] - first[i]),
                           first[i]});
    }
    return volumes;
}

void fill_ones(std::span<std::byte> out) {
    const float one = 1.0f;
    for (size_t i = 0; i < out.size(); i += sizeof one) std::memcpy(out.data() + i, &one, sizeof one);
}

}  // namespace

std::string synth_shapes() {
    return names(kShapes);
}
std::string synth_types() {
    return names(kTypes);
}

uint64_t synth_file_bytes(const SynthOptions& options) {
    uint64_t bytes = 0;
    for (const Volume& volume : volumes_of(make_plan(options).writer, options, "")) bytes += volume.writer.file_size();
    return bytes;
}

std::string write_synth(const SynthOptions& options, const std::string& path,
                        const std::function<bool(uint64_t done, uint64_t total)>& go_on) {
    const Plan plan = make_plan(options);
    const std::vector<Volume> volumes = volumes_of(plan.writer, options, path);
    uint64_t total = 0;
    std::vector<std::unique_ptr<PartialFile>> files;
    for (const Volume& volume : volumes) {
        total += volume.writer.file_size();
        files.push_back(std::make_unique<PartialFile>(volume.path));
    }

    // Chunks that stay in the CPU's cache between being made and being copied by the kernel; larger ones were
    // slower.
    constexpr size_t kChunkBytes = size_t{1} << 20;
    std::vector<std::byte> chunk(kChunkBytes);
    uint64_t before = 0;  // bytes of the volumes before
    for (size_t v = 0; v < volumes.size(); ++v) {
        const GgufWriter& writer = volumes[v].writer;
        files[v]->reserve(writer.file_size());
        files[v]->write(0, writer.header());
        for (size_t i = 0; i < writer.tensor_count(); ++i) {
            const Part& part = plan.parts[volumes[v].first + i];
            const uint64_t begin = writer.tensor_offset(i);
            const uint64_t bytes = writer.tensor_bytes(i);
            const size_t step = kChunkBytes - kChunkBytes % kernels::traits(part.type).block_bytes;
            const auto source = part.deviation == 0
                                    ? nullptr
                                    : WeightSource::make(part.type, part.deviation, options.seed, part.index);
            for (uint64_t at = 0; at < bytes; at += step) {
                const auto out =
                    std::span(chunk).first(static_cast<size_t>(std::min<uint64_t>(step, bytes - at)));
                if (source) {
                    source->fill(out);
                } else {
                    fill_ones(out);
                }
                files[v]->write(begin + at, out);
                if (!go_on(before + begin + at + out.size(), total))
                    throw Error(path + ": stopped; nothing is left of it");
            }
        }
        before += writer.file_size();
    }
    for (size_t v = 0; v < volumes.size(); ++v) files[v]->finish(volumes[v].writer.file_size());
    return volumes.front().path;
}

}  // namespace weir
