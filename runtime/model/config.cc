#include "runtime/model/config.h"

#include <cmath>
#include <span>
#include <utility>
#include <variant>

#include "runtime/error.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

// No model comes near these. They keep every product of two dimensions far inside 64 bits.
constexpr uint64_t kMaxDim = uint64_t{1} << 20;
constexpr uint64_t kMaxVocab = uint64_t{1} << 24;
constexpr uint64_t kMaxExperts = uint64_t{1} << 12;
constexpr uint64_t kMaxContext = uint64_t{1} << 30;

class ConfigReader {
  public:
    explicit ConfigReader(const GgufFile& file) : file_(file) {}

    ModelConfig read() {
        refuse_lone_part();
        const std::string& architecture = file_.require_string("general.architecture");
        if (const std::string* name = file_.get_string("general.name")) config_.name = *name;
        const Architecture* const known = find_architecture(architecture);
        if (known == nullptr) {
            fail("architecture " + quoted(architecture) + " is not supported; these are: " + architecture_names());
        }
        config_.architecture = *known;
        refuse_keys();
        read_dimensions();
        read_constants();
        read_rope();
        read_attention();
        read_experts();
        check_tensors();
        return config_;
    }

  private:
    [[noreturn]] void fail(const std::string& reason) const { throw Error(file_.path() + ": " + reason); }

    std::string key(const char* name) const { return std::string(config_.architecture.name) + "." + name; }

    void refuse_lone_part() const {
        const uint64_t parts = file_.get_uint("split.count").value_or(1);
        if (parts > 1 && file_.parts().size() == 1 && file_.native() == nullptr) {
            fail("this is one of " + std::to_string(parts) + " parts of a split model, without the others");
        }
    }

    // Keys that change the arithmetic in ways that we do not compute: present and not zero is refused.
    void refuse_keys() const {
        for (const char* name :
             {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.temperature_scale", "logit_scale",
              "embedding_scale", "residual_scale", "leading_dense_block_count", "expert_group_count",
              "expert_group_used_count"}) {
            refuse(name);
        }
        const Architecture& architecture = config_.architecture;
        if (architecture.experts == Experts::kNever) refuse("expert_count");
        if (architecture.experts == Experts::kNever) refuse("expert_used_count");
        if (!architecture.shared_expert) refuse("expert_shared_count");
        if (!file_.get_bool(key("attention.causal")).value_or(true)) {
            fail("key " + quoted(key("attention.causal")) + " is false: not a model that generates text");
        }
    }

    void refuse(const char* name) const {
        const GgufValue* value = file_.find(key(name));
        if (value != nullptr && !is_zero(*value)) fail("key " + quoted(key(name)) + " is set, which is not supported");
    }

    static bool is_zero(const GgufValue& value) {
        if (const auto* u = std::get_if<uint64_t>(&value)) return *u == 0;
        if (const auto* i = std::get_if<int64_t>(&value)) return *i == 0;
        if (const auto* d = std::get_if<double>(&value)) return *d == 0;
        return false;
    }

    size_t bounded(const std::string& what, uint64_t value, uint64_t max) const {
        if (value == 0 || value > max) {
            fail(what + " is " + std::to_string(value) + "; 1 to " + std::to_string(max) + " is possible");
        }
        return static_cast<size_t>(value);
    }

    size_t dimension(const char* name) const {
        return bounded(quoted(key(name)), file_.require_uint(key(name)), kMaxDim);
    }

    size_t dimension(const char* name, size_t fallback) const {
        return bounded(quoted(key(name)), file_.get_uint(key(name)).value_or(fallback), kMaxDim);
    }

    void read_dimensions() {
        config_.n_layers = dimension("block_count");
        config_.dim = dimension("embedding_length");
        config_.n_heads = dimension("attention.head_count");
        config_.n_kv_heads = dimension("attention.head_count_kv", config_.n_heads);
        config_.ffn_dim = dimension("feed_forward_length");
        config_.n_ctx_train =
            bounded(quoted(key("context_length")), file_.require_uint(key("context_length")), kMaxContext);

        if (config_.n_heads % config_.n_kv_heads != 0) {
            fail(std::to_string(config_.n_heads) + " heads cannot share " +
                 std::to_string(config_.n_kv_heads) + " key-value heads evenly");
        }
        const bool has_length = file_.find(key("attention.key_length")) != nullptr;
        if (!has_length && config_.dim % config_.n_heads != 0) {
            fail("an embedding of " + std::to_string(config_.dim) + " cannot be parted into " +
                 std::to_string(config_.n_heads) + " heads");
        }
        config_.head_dim = dimension("attention.key_length", has_length ? 0 : config_.dim / config_.n_heads);
        if (dimension("attention.value_length", config_.head_dim) != config_.head_dim) {
            fail("keys and values of different length (" + quoted(key("attention.key_length")) + ", " +
                 quoted(key("attention.value_length")) + ") are not supported");
        }
        if (config_.head_dim % 2 != 0) {
            fail("heads of " + std::to_string(config_.head_dim) + " dimensions: they must be even");
        }
        if (config_.n_heads * config_.head_dim > kMaxDim) {
            fail(std::to_string(config_.n_heads) + " heads of " + std::to_string(config_.head_dim) +
                 " dimensions are more than " + std::to_string(kMaxDim) + " in all");
        }
    }

    double positive(const std::string& name, double value) const {
        if (!std::isfinite(value) || value <= 0) {
            fail("key " + quoted(name) + " is " + std::to_string(value) + "; it must be above 0");
        }
        return value;
    }

    float positive_float(const char* name, double fallback) const {
        return static_cast<float>(positive(key(name), file_.get_float(key(name)).value_or(fallback)));
    }

    void read_constants() {
        const std::string eps = key("attention.layer_norm_rms_epsilon");
        const auto value = file_.get_float(eps);
        if (!value) fail("key " + quoted(eps) + " is missing");
        config_.rms_eps = static_cast<float>(positive(eps, *value));
    }

    void read_rope() {
        config_.rope_dims = dimension("rope.dimension_count", config_.head_dim);
        if (config_.rope_dims > config_.head_dim || config_.rope_dims % 2 != 0) {
            fail("key " + quoted(key("rope.dimension_count")) + " is " + std::to_string(config_.rope_dims) +
                 "; an even number up to the head's " + std::to_string(config_.head_dim) + " is possible");
        }
        config_.rope_base = positive_float("rope.freq_base", 10000.0);

        // Older files say only scale_linear.
        const std::string old_factor = key("rope.scale_linear");
        const std::string new_factor = key("rope.scaling.factor");
        const auto old_value = file_.get_float(old_factor);
        const std::string* type = file_.get_string(key("rope.scaling.type"));
        if (type != nullptr && *type != "none" && *type != "linear") {
            fail("rope scaling of type " + quoted(*type) + " is not supported; 'none' and 'linear' are");
        }
        double factor = 1.0;
        if (type != nullptr && *type == "linear") {
            const auto new_value = file_.get_float(new_factor);
            if (!new_value && !old_value) fail("key " + quoted(new_factor) + " is missing");
            factor = new_value ? positive(new_factor, *new_value) : positive(old_factor, *old_value);
        } else if (type == nullptr && old_value) {
            factor = positive(old_factor, *old_value);
        }
        config_.rope_scale = static_cast<float>(1.0 / factor);
    }

    // A cap that the file gives, 0 for none.
    float soft_cap(const char* name) const {
        const auto value = file_.get_float(key(name));
        if (!value && config_.architecture.soft_caps) fail("key " + quoted(key(name)) + " is missing");
        if (!value || *value == 0) return 0;
        return static_cast<float>(positive(key(name), *value));
    }

    void read_attention() {
        const Architecture& architecture = config_.architecture;
        const bool wide = architecture.wide_layers == config_.n_layers;
        const double width = wide ? static_cast<double>(config_.dim) / static_cast<double>(config_.n_heads)
                                  : static_cast<double>(config_.head_dim);
        const double given = file_.get_float(key("attention.scale")).value_or(0);
        config_.attention_scale =
            static_cast<float>(given == 0 ? 1 / std::sqrt(width) : positive(key("attention.scale"), given));
        config_.attention_soft_cap = soft_cap("attn_logit_softcapping");
        config_.logit_soft_cap = soft_cap("final_logit_softcapping");
        if (architecture.scaled_embedding) {
            config_.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config_.dim)));
        }

        const std::string window = key("attention.sliding_window");
        if (architecture.window_period == 0) {
            // Within the window a sliding attention is a full one; beyond it we do not go.
            const uint64_t bound = file_.get_uint(window).value_or(0);
            if (bound > 0 && bound < config_.n_ctx_train) config_.n_ctx_train = static_cast<size_t>(bound);
            return;
        }
        config_.window = bounded(quoted(window), file_.require_uint(window), kMaxContext);
        config_.window_period = dimension("attention.sliding_window_pattern", architecture.window_period);
        if (architecture.window_rope_base != 0) {
            config_.window_rope_base = positive_float("rope.freq_base_swa", double{architecture.window_rope_base});
        }
    }

    void read_experts() {
        const Architecture& architecture = config_.architecture;
        if (architecture.experts == Experts::kNever) return;
        const std::string count = key("expert_count"), used = key("expert_used_count"), gate = key("expert_gating_func");
        const bool may_lack = architecture.experts == Experts::kPerhaps;
        const uint64_t n = may_lack ? file_.get_uint(count).value_or(0) : file_.require_uint(count);
        if (n == 0 && may_lack) return;
        config_.n_experts = bounded(quoted(count), n, kMaxExperts);
        config_.n_experts_used = bounded(quoted(used), file_.require_uint(used), config_.n_experts);
        config_.expert_ffn_dim = dimension("expert_feed_forward_length", config_.ffn_dim);
        if (architecture.shared_expert) {
            config_.shared_ffn_dim = dimension("expert_shared_feed_forward_length", config_.ffn_dim);
        }
        config_.normalise_experts =
            file_.get_bool(key("expert_weights_norm")).value_or(architecture.normalised_experts);
        const double scale = file_.get_float(key("expert_weights_scale")).value_or(0);
        if (scale != 0) config_.expert_scale = static_cast<float>(positive(key("expert_weights_scale"), scale));
        constexpr uint64_t kSoftmax = 1, kSoftmaxOfChosen = 3;
        const uint64_t gating = file_.get_uint(gate).value_or(kSoftmax);
        if (gating != kSoftmax && gating != kSoftmaxOfChosen) {
            fail("key " + quoted(gate) + " is " + std::to_string(gating) +
                 ", which is not supported; 1 (softmax) and 3 (softmax of the chosen experts) are");
        }
        config_.softmax_of_chosen = gating == kSoftmaxOfChosen;
    }

    // Every tensor that the decoder uses is there with the shape that the dimensions ask for, and no other
    // is.
    void check_tensors() {
        const GgufTensor& embedding = file_.tensor("token_embd.weight");
        config_.n_vocab = bounded("the number of rows of token_embd.weight", embedding.rows(), kMaxVocab);
        check_vocab_keys();
        config_.tied_head = file_.find_tensor("output.weight") == nullptr;

        expect("token_embd.weight", {config_.dim, config_.n_vocab});
        expect("output_norm.weight", {config_.dim});
        if (!config_.tied_head) expect("output.weight", {config_.dim, config_.n_vocab});
        if (file_.find_tensor("rope_freqs.weight") != nullptr) {
            expect("rope_freqs.weight", {config_.rope_dims / 2});
        }
        const std::vector<LayerTensor> parts = layer_tensors(config_);
        for (size_t layer = 0; layer < config_.n_layers; ++layer) {
            for (const LayerTensor& part : parts) {
                expect(layer_tensor_name(layer, part.name), part.dims());
            }
        }
        if (n_expected_ == file_.tensors().size()) return;
        for (const GgufTensor& tensor : file_.tensors()) {
            if (!known(tensor.name)) {
                fail("tensor " + quoted(tensor.name) + " is not supported for architecture " +
                     quoted(config_.architecture.name));
            }
        }
    }

    // Rows may outnumber tokens (padding); a token without a row cannot be looked up.
    void check_vocab_keys() const {
        const GgufArray* tokens = file_.get_array("tokenizer.ggml.tokens");
        if (tokens != nullptr && tokens->size() > config_.n_vocab) {
            fail("the vocabulary has " + std::to_string(tokens->size()) +
                 " tokens but token_embd.weight only " + std::to_string(config_.n_vocab) + " rows");
        }
    }

    void expect(const std::string& name, const std::vector<uint64_t>& dims) {
        const GgufTensor& tensor = file_.tensor(name);
        size_t d = 0;
        bool same = tensor.n_dims >= dims.size();
        for (const uint64_t dim : dims) same = same && tensor.dims[d++] == dim;
        while (same && d < 4) same = tensor.dims[d++] == 1;
        if (!same)
            fail("tensor " + quoted(name) + " has shape " + shape(std::span(tensor.dims, tensor.n_dims)) +
                 "; " + shape(dims) + " is needed");
        ++n_expected_;
    }

    static std::string shape(std::span<const uint64_t> dims) {
        std::string out;
        for (const uint64_t dim : dims) {
            if (!out.empty()) out += " x ";
            out += std::to_string(dim);
        }
        return out;
    }

    // Whether expect() has asked for this name; only called to find the one to blame.
    bool known(const std::string& name) const {
        for (const char* whole :
             {"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"}) {
            if (name == whole) return true;
        }
        const std::vector<LayerTensor> parts = layer_tensors(config_);
        for (size_t layer = 0; layer < config_.n_layers; ++layer) {
            for (const LayerTensor& part : parts) {
                if (name == layer_tensor_name(layer, part.name)) return true;
            }
        }
        return false;
    }

    const GgufFile& file_;
    ModelConfig config_;
    size_t n_expected_ = 0;
};

}  // namespace

std::vector<LayerTensor> layer_tensors(const ModelConfig& c) {
    const Architecture& a = c.architecture;
    std::vector<LayerTensor> tensors;
    const auto add = [&](bool there, const char* name, uint64_t cols, uint64_t rows = 0, uint64_t experts = 0) {
        if (there) tensors.push_back({name, cols, rows, experts});
    };
    const bool dense = c.n_experts == 0, shared = c.shared_ffn_dim != 0;
    add(true, "attn_norm.weight", c.dim);
    add(true, "attn_q.weight", c.dim, c.q_dim());
    add(a.qkv_bias, "attn_q.bias", c.q_dim());
    add(true, "attn_k.weight", c.dim, c.kv_dim());
    add(a.qkv_bias, "attn_k.bias", c.kv_dim());
    add(true, "attn_v.weight", c.dim, c.kv_dim());
    add(a.qkv_bias, "attn_v.bias", c.kv_dim());
    const bool whole = a.qk_norm == QkNorm::kWhole;
    add(a.qk_norm != QkNorm::kNone, "attn_q_norm.weight", whole ? c.q_dim() : c.head_dim);
    add(a.qk_norm != QkNorm::kNone, "attn_k_norm.weight", whole ? c.kv_dim() : c.head_dim);
    add(true, "attn_output.weight", c.q_dim(), c.dim);
    add(a.post_norms, "post_attention_norm.weight", c.dim);
    add(true, "ffn_norm.weight", c.dim);
    add(dense, "ffn_gate.weight", c.dim, c.ffn_dim);
    add(dense, "ffn_up.weight", c.dim, c.ffn_dim);
    add(dense, "ffn_down.weight", c.ffn_dim, c.dim);
    // The shared expert comes before the others: while it is computed, these may be read.
    add(!dense, "ffn_gate_inp.weight", c.dim, c.n_experts);
    add(shared, "ffn_gate_inp_shexp.weight", c.dim);
    add(shared, "ffn_gate_shexp.weight", c.dim, c.shared_ffn_dim);
    add(shared, "ffn_up_shexp.weight", c.dim, c.shared_ffn_dim);
    add(shared, "ffn_down_shexp.weight", c.shared_ffn_dim, c.dim);
    add(!dense, "ffn_gate_exps.weight", c.dim, c.expert_ffn_dim, c.n_experts);
    add(!dense, "ffn_up_exps.weight", c.dim, c.expert_ffn_dim, c.n_experts);
    add(!dense, "ffn_down_exps.weight", c.expert_ffn_dim, c.dim, c.n_experts);
    add(a.post_norms, "post_ffw_norm.weight", c.dim);
    return tensors;
}

std::vector<uint64_t> LayerTensor::dims() const {
    std::vector<uint64_t> out{cols};
    if (rows != 0) out.push_back(rows);
    if (experts != 0) out.push_back(experts);
    return out;
}

std::string layer_tensor_name(size_t layer, const char* name) {
    return "blk." + std::to_string(layer) + "." + name;
}

ModelConfig read_config(const GgufFile& file) {
    return ConfigReader(file).read();
}

}  // namespace weir
