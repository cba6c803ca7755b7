// The reader on real files: the test models and vocabularies.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "runtime/error.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"
#include "tests/material.h"

namespace weir {
namespace {

TEST(MaterialModels, Stories260K) {
    const auto path = test::shared_file("models/stories260K-F32.gguf");
    if (!test::require_material(path)) return;
    const GgufFile file = GgufFile::open(path);
    EXPECT_EQ(file.version(), 3u);
    EXPECT_EQ(file.file_size(), std::filesystem::file_size(path));
    EXPECT_EQ(file.tensors().size(), 48u);
    EXPECT_EQ(file.metadata().size(), 24u);
    const ModelConfig config = read_config(file);
    EXPECT_STREQ(config.architecture.name, "llama");
    EXPECT_EQ(config.dim, 64u);
    EXPECT_EQ(config.n_layers, 5u);
    EXPECT_EQ(config.n_heads, 8u);
    EXPECT_EQ(config.n_kv_heads, 4u);
    EXPECT_EQ(config.head_dim, 8u);
    EXPECT_EQ(config.ffn_dim, 172u);
    EXPECT_EQ(config.n_vocab, 512u);
    ASSERT_NE(file.get_array("tokenizer.ggml.tokens"), nullptr);
    EXPECT_EQ(file.get_array("tokenizer.ggml.tokens")->strings.size(), 512u);
    EXPECT_EQ(file.get_array("tokenizer.ggml.scores")->floats.size(), 512u);
}

TEST(MaterialModels, Demo8M) {
    const auto path = test::shared_file("models/weir-demo-8m-f16.gguf");
    if (!test::require_material(path)) return;
    const GgufFile file = GgufFile::open(path);
    const ModelConfig config = read_config(file);
    EXPECT_EQ(config.dim, 256u);
    EXPECT_EQ(config.n_layers, 8u);
    EXPECT_EQ(config.n_heads, 4u);
    EXPECT_EQ(config.n_kv_heads, 2u);
    EXPECT_EQ(config.ffn_dim, 768u);
    EXPECT_EQ(config.n_vocab, 4096u);
    EXPECT_EQ(config.n_ctx_train, 512u);
    EXPECT_FALSE(config.tied_head);
    EXPECT_EQ(file.tensor("blk.0.ffn_down.weight").type, kernels::Type::kF16);
}

// Files without tensors: the index can be read, but there is no model to run.
TEST(MaterialModels, VocabulariesOnly) {
    for (const char* name : {"gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"}) {
        const auto path = test::shared_file(std::string("vocabs/ggml-vocab-") + name + ".gguf");
        if (!test::require_material(path)) return;
        const GgufFile file = GgufFile::open(path);
        EXPECT_TRUE(file.tensors().empty()) << name;
        ASSERT_NE(file.get_array("tokenizer.ggml.tokens"), nullptr) << name;
        EXPECT_GT(file.get_array("tokenizer.ggml.tokens")->strings.size(), 30000u) << name;
        EXPECT_THROW(read_config(file), Error) << name;
    }
}

}  // namespace
}  // namespace weir
