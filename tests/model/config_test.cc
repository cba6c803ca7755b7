// What a configuration is read from, and what is refused instead of run wrongly.
#include "runtime/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "runtime/model/gguf.h"
#include "tests/model/small_model.h"

namespace weir {
namespace {

using test::SmallModel;
using testing::HasSubstr;

ModelConfig config_of(const SmallModel& model) {
    const std::vector<std::byte> bytes = model.bytes();
    return read_config(GgufFile::parse(bytes, bytes.size(), "small.gguf"));
}

std::string refusal(const SmallModel& model) {
    try {
        config_of(model);
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

template <typename T>
std::string refusal_with(const std::string& key, T value) {
    SmallModel model;
    model.without = {key};
    model.also = [&](GgufWriter& w) { w.add(key, value); };
    return refusal(model);
}

TEST(Config, Dimensions) {
    const ModelConfig config = config_of({});
    EXPECT_STREQ(config.architecture.name, "llama");
    EXPECT_EQ(config.name, "small");
    EXPECT_EQ(config.n_layers, 2u);
    EXPECT_EQ(config.dim, 8u);
    EXPECT_EQ(config.n_heads, 2u);
    EXPECT_EQ(config.n_kv_heads, 1u);
    EXPECT_EQ(config.head_dim, 4u);
    EXPECT_EQ(config.kv_dim(), 4u);
    EXPECT_EQ(config.rope_dims, 4u);
    EXPECT_EQ(config.ffn_dim, 12u);
    EXPECT_EQ(config.n_vocab, 6u);
    EXPECT_EQ(config.n_ctx_train, 16u);
    EXPECT_EQ(config.rms_eps, 1e-5f);
    EXPECT_EQ(config.rope_base, 10000.0f);
    EXPECT_EQ(config.rope_scale, 1.0f);
    EXPECT_FALSE(config.tied_head);
}

TEST(Config, TiedHead) {
    SmallModel model;
    model.tied = true;
    EXPECT_TRUE(config_of(model).tied_head);
}

TEST(Config, KeyValueHeadsDefaultToHeads) {
    SmallModel model;
    model.kv_heads = model.heads;
    model.without = {"llama.attention.head_count_kv"};
    EXPECT_EQ(config_of(model).n_kv_heads, model.heads);
}

TEST(Config, HeadLengthOfItsOwn) {
    SmallModel model;
    model.without = {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                     "blk.0.attn_output.weight"};
    model.layers = 1;
    model.also = [](GgufWriter& w) {
        w.add("llama.attention.key_length", uint32_t{6});
        w.add("llama.attention.value_length", uint32_t{6});
        w.add_tensor("blk.0.attn_q.weight", kernels::Type::kF32, {8, 12});
        w.add_tensor("blk.0.attn_k.weight", kernels::Type::kF32, {8, 6});
        w.add_tensor("blk.0.attn_v.weight", kernels::Type::kF32, {8, 6});
        w.add_tensor("blk.0.attn_output.weight", kernels::Type::kF32, {12, 8});
    };
    const ModelConfig config = config_of(model);
    EXPECT_EQ(config.head_dim, 6u);
    EXPECT_EQ(config.kv_dim(), 6u);
    EXPECT_THAT(refusal_with("llama.attention.value_length", uint32_t{2}), HasSubstr("different length"));
}

TEST(Config, Rope) {
    SmallModel model;
    model.also = [](GgufWriter& w) {
        w.add("llama.rope.dimension_count", uint32_t{2});
        w.add("llama.rope.freq_base", 500000.0f);
        w.add("llama.rope.scaling.type", "linear");
        w.add("llama.rope.scaling.factor", 4.0f);
        w.add_tensor("rope_freqs.weight", kernels::Type::kF32, {1});
    };
    const ModelConfig config = config_of(model);
    EXPECT_EQ(config.rope_dims, 2u);
    EXPECT_EQ(config.rope_base, 500000.0f);
    EXPECT_EQ(config.rope_scale, 0.25f);

    model.also = [](GgufWriter& w) { w.add("llama.rope.scale_linear", 2.0f); };
    EXPECT_EQ(config_of(model).rope_scale, 0.5f);
    model.also = [](GgufWriter& w) {
        w.add("llama.rope.scaling.type", "none");
        w.add("llama.rope.scaling.factor", 4.0f);
    };
    EXPECT_EQ(config_of(model).rope_scale, 1.0f);

    EXPECT_THAT(refusal_with("llama.rope.scaling.type", "yarn"), HasSubstr("rope scaling of type 'yarn'"));
    EXPECT_THAT(refusal_with("llama.rope.scaling.type", "linear"),
                HasSubstr("rope.scaling.factor' is missing"));
    EXPECT_THAT(refusal_with("llama.rope.scale_linear", 0.0f), HasSubstr("must be above 0"));
    EXPECT_THAT(refusal_with("llama.rope.freq_base", -1.0f), HasSubstr("must be above 0"));
    EXPECT_THAT(refusal_with("llama.rope.freq_base", std::nanf("")), HasSubstr("must be above 0"));
    EXPECT_THAT(refusal_with("llama.rope.dimension_count", uint32_t{6}), HasSubstr("up to the head's 4"));
    EXPECT_THAT(refusal_with("llama.rope.dimension_count", uint32_t{3}), HasSubstr("an even number"));
    model.also = [](GgufWriter& w) { w.add_tensor("rope_freqs.weight", kernels::Type::kF32, {4}); };
    EXPECT_THAT(refusal(model), HasSubstr("tensor 'rope_freqs.weight' has shape 4; 2 is needed"));
}

TEST(Config, SlidingWindowBoundsTheContext) {
    SmallModel model;
    model.also = [](GgufWriter& w) { w.add("llama.attention.sliding_window", uint32_t{10}); };
    EXPECT_EQ(config_of(model).n_ctx_train, 10u);
}

TEST(Config, MissingKeysAndTensorsAreNamed) {
    for (const char* key :
         {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.attention.head_count",
          "llama.feed_forward_length", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"}) {
        SmallModel model;
        model.without = {key};
        EXPECT_THAT(refusal(model), HasSubstr(std::string("small.gguf: key '") + key + "' is missing"));
    }
    const std::vector<std::byte> bytes = SmallModel{}.bytes();
    const GgufFile whole = GgufFile::parse(bytes, bytes.size(), "small.gguf");
    for (const GgufTensor& tensor : whole.tensors()) {
        if (tensor.name == "output.weight") continue;
        SmallModel model;
        model.without = {tensor.name};
        EXPECT_THAT(refusal(model), HasSubstr("small.gguf: tensor '" + tensor.name + "' is missing"));
    }
}

TEST(Config, WrongShapesAreNamed) {
    const std::vector<std::byte> bytes = SmallModel{}.bytes();
    const GgufFile whole = GgufFile::parse(bytes, bytes.size(), "small.gguf");
    for (const GgufTensor& tensor : whole.tensors()) {
        if (tensor.name == "token_embd.weight") continue;
        for (const bool more_rows : {false, true}) {
            SmallModel model;
            model.without = {tensor.name};
            model.also = [&](GgufWriter& w) {
                w.add_tensor(tensor.name, kernels::Type::kF32,
                             {tensor.dims[0] + (more_rows ? 0 : 1), tensor.dims[1] + (more_rows ? 1 : 0)});
            };
            EXPECT_THAT(refusal(model), HasSubstr("tensor '" + tensor.name + "' has shape "));
        }
    }
}

TEST(Config, AbsurdDimensions) {
    for (const char* key :
         {"llama.block_count", "llama.embedding_length", "llama.attention.head_count",
          "llama.attention.head_count_kv", "llama.feed_forward_length", "llama.context_length"}) {
        EXPECT_THAT(refusal_with(key, uint32_t{0}), HasSubstr(std::string("'") + key + "' is 0"));
        EXPECT_THAT(refusal_with(key, uint32_t{0xffffffff}), HasSubstr(key));
    }
    EXPECT_THAT(refusal_with("llama.attention.head_count", uint32_t{3}),
                HasSubstr("cannot be parted into 3 heads"));
    EXPECT_THAT(refusal_with("llama.attention.head_count_kv", uint32_t{3}), HasSubstr("cannot share 3"));
    EXPECT_THAT(refusal_with("llama.attention.head_count", uint32_t{8}), HasSubstr("must be even"));
    EXPECT_THAT(refusal_with("llama.attention.key_length", uint32_t{1 << 20}), HasSubstr("in all"));
    EXPECT_THAT(refusal_with("llama.attention.layer_norm_rms_epsilon", 0.0f), HasSubstr("must be above 0"));
    EXPECT_THAT(refusal_with("llama.block_count", "two"), HasSubstr("is not a whole number"));
}

TEST(Config, WhatIsNotHonouredIsRefused) {
    EXPECT_THAT(refusal_with("general.architecture", "gemma\n3"),
                HasSubstr("architecture 'gemma\\x0a3' is not"));
    EXPECT_EQ(refusal_with("llama.expert_count", uint32_t{0}), "");
    EXPECT_THAT(refusal_with("llama.expert_group_count", uint32_t{8}), HasSubstr("'llama.expert_group_count' is set"));
    EXPECT_THAT(refusal_with("llama.expert_shared_count", uint32_t{1}), HasSubstr("'llama.expert_shared_count' is set"));
    EXPECT_THAT(refusal_with("llama.logit_scale", 0.5f), HasSubstr("'llama.logit_scale' is set"));
    EXPECT_THAT(refusal_with("llama.attention.causal", false), HasSubstr("attention.causal"));
    EXPECT_THAT(refusal_with("split.count", uint32_t{3}), HasSubstr("one of 3 parts"));
    for (const char* name :
         {"blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight", "blk.1.attn_q_norm.weight", "blk.2.attn_q.weight",
          "output.bias", "blk.0.attn_q.weight2", "blk.00.attn_q.weight"}) {
        SmallModel model;
        model.also = [&](GgufWriter& w) { w.add_tensor(name, kernels::Type::kF32, {8}); };
        EXPECT_THAT(refusal(model), HasSubstr("tensor '" + std::string(name) + "' is not supported"));
    }
}

TEST(Config, GemmasKeysAndNormsMustBeThere) {
    SmallModel model;
    model.architecture = "gemma2";
    EXPECT_THAT(refusal(model), HasSubstr("'gemma2.attn_logit_softcapping' is missing"));
    model.also = [](GgufWriter& w) {
        w.add("gemma2.attn_logit_softcapping", 50.0f);
        w.add("gemma2.final_logit_softcapping", 30.0f);
    };
    EXPECT_THAT(refusal(model), HasSubstr("'gemma2.attention.sliding_window' is missing"));
    model.also = [](GgufWriter& w) {
        w.add("gemma2.attn_logit_softcapping", 50.0f);
        w.add("gemma2.final_logit_softcapping", 30.0f);
        w.add("gemma2.attention.sliding_window", uint32_t{4});
    };
    EXPECT_EQ(refusal(model), "");
    model.without = {"blk.0.post_attention_norm.weight"};
    EXPECT_THAT(refusal(model), HasSubstr("tensor 'blk.0.post_attention_norm.weight' is missing"));
}

SmallModel small_gemma(const char* architecture) {
    SmallModel model;
    model.architecture = architecture;
    model.also = [architecture](GgufWriter& w) {
        const std::string prefix = std::string(architecture) + ".";
        w.add(prefix + "attn_logit_softcapping", 50.0f);
        w.add(prefix + "final_logit_softcapping", 30.0f);
        w.add(prefix + "attention.sliding_window", uint32_t{4});
    };
    return model;
}

TEST(Config, GemmasWindowsScalesAndCaps) {
    SmallModel model = small_gemma("gemma2");
    model.layers = 46;
    ModelConfig config = config_of(model);
    EXPECT_EQ(config.attention_soft_cap, 50.0f);
    EXPECT_EQ(config.logit_soft_cap, 30.0f);
    EXPECT_EQ(config.embedding_scale, std::sqrt(8.0f));
    EXPECT_EQ(config.n_ctx_train, 16u);
    EXPECT_EQ(config.n_ropes(), 1u);
    EXPECT_TRUE(config.has_window(0));
    EXPECT_FALSE(config.has_window(1));
    EXPECT_EQ(config.attention_scale, 0.5f);
    model.head_dim = 6;
    EXPECT_EQ(config_of(model).attention_scale, 0.5f);  // 27B: dim / n_heads counts
    model.layers = 2;
    EXPECT_FLOAT_EQ(config_of(model).attention_scale, 1 / std::sqrt(6.0f));

    model = small_gemma("gemma3");
    model.layers = 12;
    config = config_of(model);
    EXPECT_EQ(config.n_ropes(), 2u);
    EXPECT_EQ(config.window_rope_base, 10000.0f);
    for (size_t layer = 0; layer < 12; ++layer) EXPECT_EQ(config.has_window(layer), layer != 5 && layer != 11);
    const auto also = model.also;
    model.also = [&](GgufWriter& w) {
        also(w);
        w.add("gemma3.attention.sliding_window_pattern", uint32_t{3});
        w.add("gemma3.rope.freq_base_swa", 20000.0f);
    };
    config = config_of(model);
    EXPECT_FALSE(config.has_window(2));
    EXPECT_EQ(config.window_rope_base, 20000.0f);
    model.also = [&](GgufWriter& w) {
        also(w);
        w.add("gemma3.rope.freq_base_swa", 0.0f);
    };
    EXPECT_THAT(refusal(model), HasSubstr("'gemma3.rope.freq_base_swa' is 0"));
}

TEST(Config, Experts) {
    SmallModel model;
    model.architecture = "qwen2moe";
    EXPECT_THAT(refusal(model), HasSubstr("'qwen2moe.expert_count' is missing"));
    model.experts = 4;
    const auto with = [&](auto add) {
        SmallModel changed = model;
        changed.also = [add](GgufWriter& w) { add(w); };
        return refusal(changed);
    };
    EXPECT_EQ(refusal(model), "");
    const ModelConfig config = config_of(model);
    EXPECT_EQ(config.n_experts, 4u);
    EXPECT_EQ(config.n_experts_used, 2u);
    EXPECT_EQ(config.expert_ffn_dim, 12u);
    EXPECT_EQ(config.shared_ffn_dim, 12u);
    EXPECT_FALSE(config.normalise_experts);
    EXPECT_THAT(with([](GgufWriter& w) { w.add("qwen2moe.expert_gating_func", uint32_t{2}); }),
                HasSubstr("'qwen2moe.expert_gating_func' is 2, which is not supported"));
    EXPECT_THAT(with([](GgufWriter& w) { w.add("qwen2moe.expert_weights_scale", -1.0f); }), HasSubstr("must be above 0"));
    EXPECT_THAT(with([](GgufWriter& w) { w.add("qwen2moe.expert_feed_forward_length", uint32_t{10}); }),
                HasSubstr("has shape 8 x 12 x 4; 8 x 10 x 4 is needed"));
    model.without = {"qwen2moe.expert_used_count"};
    EXPECT_THAT(refusal(model), HasSubstr("'qwen2moe.expert_used_count' is missing"));
    model.also = [](GgufWriter& w) { w.add("qwen2moe.expert_used_count", uint32_t{5}); };
    EXPECT_THAT(refusal(model), HasSubstr("'qwen2moe.expert_used_count' is 5; 1 to 4 is possible"));
    for (const char* tensor : {"blk.0.ffn_gate_inp.weight", "blk.1.ffn_down_exps.weight", "blk.0.ffn_gate_inp_shexp.weight"}) {
        model.also = nullptr;
        model.without = {tensor};
        EXPECT_THAT(refusal(model), HasSubstr("tensor '" + std::string(tensor) + "' is missing"));
    }
    model.without = {};
    model.architecture = "qwen3";
    EXPECT_THAT(refusal(model), HasSubstr("'qwen3.expert_count' is set, which is not supported"));
}

TEST(Config, BiasesAndHeadNormsOfTheQwens) {
    for (const auto& [architecture, tensor] : {std::pair{"qwen2", "blk.1.attn_k.bias"}, {"qwen3", "blk.1.attn_k_norm.weight"}}) {
        SmallModel model;
        model.architecture = architecture;
        EXPECT_STREQ(config_of(model).architecture.name, architecture);
        model.without = {tensor};
        EXPECT_THAT(refusal(model), HasSubstr("tensor '" + std::string(tensor) + "' is missing"));
        model.also = [name = tensor](GgufWriter& w) { w.add_tensor(name, kernels::Type::kF32, {5}); };
        EXPECT_THAT(refusal(model), HasSubstr("has shape 5; 4 is needed"));
    }
}

TEST(Config, VocabularyFitsTheEmbedding) {
    SmallModel model;
    model.also = [](GgufWriter& w) { w.add("tokenizer.ggml.tokens", std::vector<std::string>(6, "t")); };
    EXPECT_EQ(refusal(model), "");
    model.also = [](GgufWriter& w) { w.add("tokenizer.ggml.tokens", std::vector<std::string>(7, "t")); };
    EXPECT_THAT(refusal(model), HasSubstr("the vocabulary has 7 tokens but token_embd.weight only 6 rows"));
}

}  // namespace
}  // namespace weir
