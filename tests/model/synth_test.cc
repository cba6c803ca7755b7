// Synthetic models: that they are whole, that their weights have the spread they should, and what is refused.
#include "runtime/model/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/error.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"
#include "runtime/model/synth_vocab.h"
#include "runtime/model/synth_weights.h"

namespace weir {
namespace {

using testing::HasSubstr;

TEST(SynthWeights, MeanAndDeviation) {
    for (const kernels::Type type :
         {kernels::Type::kF32, kernels::Type::kF16, kernels::Type::kQ4_0, kernels::Type::kQ8_0, kernels::Type::kQ4_K,
          kernels::Type::kQ6_K, kernels::Type::kIQ4_XS, kernels::Type::kIQ3_S, kernels::Type::kIQ2_XXS, kernels::Type::kIQ1_M,
          kernels::Type::kTQ2_0, kernels::Type::kMXFP4}) {
        for (const double deviation : {1.0, 0.0221, 0.001}) {
            SCOPED_TRACE(std::string(kernels::traits(type).name) + " " + std::to_string(deviation));
            const size_t n = size_t{256} * 4096;
            std::vector<std::byte> bytes(kernels::row_bytes(type, n));
            WeightSource::make(type, deviation, 1, 2)->fill(bytes);
            std::vector<float> values(n);
            kernels::select_kernels("scalar")->dequantize(type, bytes.data(), values.data(), n);
            double sum = 0;
            double squares = 0;
            for (const float value : values) {
                ASSERT_TRUE(std::isfinite(value));
                sum += value;
                squares += double{value} * value;
            }
            EXPECT_LT(std::abs(sum / static_cast<double>(n)), 0.01 * deviation);
            EXPECT_NEAR(std::sqrt(squares / static_cast<double>(n)) / deviation, 1.0, 0.01);
        }
    }
}

TEST(SynthWeights, EveryBlockIsAnother) {
    for (const kernels::Type type : {kernels::Type::kQ4_0, kernels::Type::kQ8_0, kernels::Type::kQ4_K, kernels::Type::kQ6_K,
                                     kernels::Type::kIQ2_S, kernels::Type::kMXFP4}) {
        const size_t block = kernels::traits(type).block_bytes;
        std::set<std::string> seen;
        for (const uint64_t stream : {0u, 1u}) {
            for (const uint64_t seed : {1u, 2u}) {
                std::vector<std::byte> bytes(block * 1000);
                WeightSource::make(type, 1.0, seed, stream)->fill(bytes);
                for (size_t at = 0; at < bytes.size(); at += block) {
                    seen.emplace(reinterpret_cast<const char*>(bytes.data()) + at + 4, block - 4);
                }
            }
        }
        EXPECT_EQ(seen.size(), 4000u);
    }
    EXPECT_THROW(WeightSource::make(kernels::Type::kQ5_K, 1.0, 1, 0), Error);
}

TEST(SynthWeights, NoCodeOfMinus128) {
    std::vector<std::byte> bytes(34 * 10000);
    WeightSource::make(kernels::Type::kQ8_0, 1.0, 1, 0)->fill(bytes);
    size_t lowest = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
        if (i % 34 < 2) continue;
        ASSERT_NE(static_cast<uint8_t>(bytes[i]), 0x80);
        if (static_cast<uint8_t>(bytes[i]) == 0x81) ++lowest;
    }
    EXPECT_GT(lowest, 0u);
}

TEST(SynthVocab, ExactlyAsManyAndAllUnlike) {
    for (const size_t n : {kMinSynthVocab, size_t{32000}, size_t{128256}, kMaxSynthVocab}) {
        const SynthVocab vocab = make_synth_vocab(n);
        EXPECT_EQ(vocab.tokens.size(), n);
        EXPECT_EQ(vocab.scores.size(), n);
        EXPECT_EQ(vocab.types.size(), n);
        EXPECT_EQ(std::set<std::string>(vocab.tokens.begin(), vocab.tokens.end()).size(), n);
        EXPECT_EQ(vocab.tokens[3], "<0x00>");
        EXPECT_EQ(vocab.tokens[258], "<0xFF>");
        EXPECT_EQ(vocab.tokens.back(), "~");
    }
}

// Pairs merge only to pieces that are there: every longer piece must be two others joined.
TEST(SynthVocab, EveryPieceCanBeMerged) {
    const SynthVocab vocab = make_synth_vocab(32000);
    const std::set<std::string> all(vocab.tokens.begin() + 259, vocab.tokens.end());
    for (const std::string& piece : all) {
        const bool character = piece.size() == 1 || piece == "\xe2\x96\x81";
        bool merges = character;
        for (size_t cut = 1; cut < piece.size() && !merges; ++cut) {
            merges = all.count(piece.substr(0, cut)) != 0 && all.count(piece.substr(cut)) != 0;
        }
        ASSERT_TRUE(merges) << piece;
    }
}

TEST(Synth, SizesOfTheUsualModels) {
    const auto mib = [](const char* shape, const char* type) {
        SynthOptions options;
        options.shape = shape;
        options.type = type;
        return synth_file_bytes(options) >> 20;
    };
    EXPECT_EQ(mib("1.1b", "q4_0"), 591u);
    EXPECT_EQ(mib("3b", "q4_0"), 1938u);
    EXPECT_EQ(mib("7b", "q4_k"), 3616u);
    EXPECT_EQ(mib("1.1b", "q4_k_m"), 639u);
    EXPECT_EQ(mib("13b", "q8_0"), 13190u);
    EXPECT_EQ(mib("1.1b", "f16"), 2099u);
}

class SynthFile : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "weir-synth-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
        options_.shape = "1.1b";
        options_.type = "q4_0";
        options_.n_layers = 1;
        options_.n_vocab = 512;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string write(const char* name) const {
        write_synth(options_, folder_ / name, [](uint64_t, uint64_t) { return true; });
        return folder_ / name;
    }
    std::string refusal(const std::string& path) const {
        try {
            write_synth(options_, path, [](uint64_t, uint64_t) { return true; });
        } catch (const Error& error) {
            return error.what();
        }
        return {};
    }
    static std::string content(const std::string& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    }
    size_t files() const {
        return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
    }

    std::filesystem::path folder_;
    SynthOptions options_;
};

TEST_F(SynthFile, IsAModel) {
    for (const char* type : {"q4_0", "q4_k", "q8_0", "f16"}) {
        for (const bool tied : {false, true}) {
            if (tied && std::string(type) != "q4_0") continue;
            options_.type = type;
            options_.tied = tied;
            const GgufFile file = GgufFile::open(write("model.gguf"));
            EXPECT_EQ(file.file_size(), synth_file_bytes(options_));
            const ModelConfig config = read_config(file);
            EXPECT_THAT(config.name, HasSubstr("synthetic"));
            EXPECT_EQ(config.n_layers, 1u);
            EXPECT_EQ(config.dim, 2048u);
            EXPECT_EQ(config.n_kv_heads, 4u);
            EXPECT_EQ(config.n_vocab, 512u);
            EXPECT_EQ(config.tied_head, tied);
            EXPECT_EQ(file.tensors().front().name, "token_embd.weight");
            EXPECT_EQ(file.tensors()[6].name, "blk.0.ffn_down.weight");
        }
    }
    EXPECT_EQ(files(), 1u);
}

// The weights of the whole file, in several, none much larger than was asked for.
TEST_F(SynthFile, SplitsIntoParts) {
    const std::string whole_path = write("whole.gguf");
    const GgufFile whole = GgufFile::open(whole_path);
    const std::string whole_bytes = content(whole_path);
    options_.split_bytes = 8 << 20;
    const std::string first = write_synth(options_, folder_ / "model.gguf", [](uint64_t, uint64_t) { return true; });
    const GgufFile split = GgufFile::open(first);
    EXPECT_GT(split.parts().size(), 2u);
    EXPECT_EQ(files(), 1 + split.parts().size());
    EXPECT_EQ(split.file_size(), synth_file_bytes(options_));
    ASSERT_EQ(split.tensors().size(), whole.tensors().size());
    std::map<std::string, std::string> parts;
    for (const GgufPart& part : split.parts()) {
        parts[part.path] = content(part.path);
        EXPECT_EQ(parts[part.path].size(), part.bytes);
        EXPECT_LT(part.bytes, (8 << 20) + (1 << 20));
    }
    for (const GgufTensor& t : whole.tensors()) {
        const GgufTensor& other = split.tensor(t.name);
        const GgufPart& part = split.part_of(other);
        ASSERT_EQ(whole_bytes.compare(t.offset, t.bytes, parts[part.path], other.offset - part.begin, other.bytes), 0) << t.name;
    }
    options_.split_bytes = 1;
    EXPECT_EQ(GgufFile::open(write_synth(options_, folder_ / "one", [](uint64_t, uint64_t) { return true; })).parts().size(),
              whole.tensors().size());
    options_.n_layers = 200;
    EXPECT_THROW(synth_file_bytes(options_), UsageError);
}

TEST_F(SynthFile, EveryArchitectureIsAModel) {
    for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma2", "gemma3"}) {
        options_.architecture = architecture;
        const ModelConfig config = read_config(GgufFile::open(write("model.gguf")));
        EXPECT_STREQ(config.architecture.name, architecture);
        EXPECT_EQ(config.head_dim, 64u);
        EXPECT_EQ(config.tied_head, config.architecture.scaled_embedding);
    }
    options_.shape = "7b-a1b";
    options_.architecture = "qwen3";
    EXPECT_THAT(refusal(folder_ / "x"), HasSubstr("architecture 'qwen3' has no experts, shape '7b-a1b' has"));
    for (const char* architecture : {"llama", "qwen2moe", "qwen3moe", "olmoe"}) {
        options_.architecture = architecture;
        const ModelConfig config = read_config(GgufFile::open(write("model.gguf")));
        EXPECT_STREQ(config.architecture.name, architecture);
        EXPECT_EQ(config.n_experts, 64u);
        EXPECT_EQ(config.n_experts_used, 8u);
        EXPECT_EQ(config.expert_ffn_dim, 1024u);
    }
    options_.shape = "1.1b";
    EXPECT_THAT(refusal(folder_ / "x"), HasSubstr("architecture 'olmoe' has experts, shape '1.1b' has none"));
    options_.architecture = "gpt2";
    EXPECT_THAT(refusal(folder_ / "x"), HasSubstr("unknown architecture 'gpt2'; there are: llama, qwen2"));
}

TEST_F(SynthFile, TheMixOfQ4KM) {
    options_.type = "q4_k_m";
    options_.n_layers = 2;
    const auto type = [](const GgufFile& file, const char* name) { return file.tensor(name).type; };
    {
        const GgufFile file = GgufFile::open(write("model.gguf"));
        for (const char* name : {"output.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight"}) EXPECT_EQ(type(file, name), kernels::Type::kQ6_K);
        for (const char* name : {"token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_up.weight", "blk.1.attn_v.weight", "blk.1.ffn_down.weight"})
            EXPECT_EQ(type(file, name), kernels::Type::kQ4_K);
    }
    options_.tied = true;
    EXPECT_EQ(type(GgufFile::open(write("model.gguf")), "token_embd.weight"), kernels::Type::kQ6_K);
}

TEST_F(SynthFile, NormsAreOnes) {
    const std::string path = write("model.gguf");
    const GgufFile file = GgufFile::open(path);
    const std::string bytes = content(path);
    for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}) {
        const GgufTensor& tensor = file.tensor(name);
        for (uint64_t at = 0; at < tensor.bytes; at += 4) {
            float value = 0;
            std::memcpy(&value, bytes.data() + tensor.offset + at, 4);
            ASSERT_EQ(value, 1.0f);
        }
    }
}

TEST_F(SynthFile, SeedDecides) {
    const std::string one = content(write("one.gguf"));
    EXPECT_EQ(content(write("again.gguf")), one);
    options_.seed = 2;
    EXPECT_NE(content(write("two.gguf")), one);
}

TEST_F(SynthFile, LeavesNothingBehindWhenStopped) {
    std::ofstream(folder_ / "model.gguf") << "what was here";
    std::ofstream(folder_ / "model.gguf.partial") << "of a run that was killed";
    uint64_t seen = 0;
    const auto stop_late = [&](uint64_t done, uint64_t total) {
        EXPECT_GT(done, seen);
        EXPECT_LE(done, total);
        seen = done;
        return done < total / 2;
    };
    EXPECT_THROW(write_synth(options_, folder_ / "model.gguf", stop_late), Error);
    EXPECT_EQ(files(), 1u);
    EXPECT_EQ(content(folder_ / "model.gguf"), "what was here");
    write("model.gguf");
    EXPECT_EQ(files(), 1u);
}

TEST_F(SynthFile, Refusals) {
    EXPECT_THAT(refusal(folder_), HasSubstr("is no regular file"));
    EXPECT_THAT(refusal(folder_ / "absent" / "model.gguf"), HasSubstr("cannot create: No such file"));
    options_.shape = "13b";
    options_.type = "f16";
    options_.n_layers = 1024;
    const auto space = std::filesystem::space(folder_);
    if (space.available < synth_file_bytes(options_)) {
        EXPECT_THAT(refusal(folder_ / "model.gguf"), HasSubstr("no room"));
    }
    EXPECT_EQ(files(), 0u);
    options_.n_layers = 1025;
    EXPECT_THROW(synth_file_bytes(options_), UsageError);
    options_.n_layers = 1;
    options_.n_vocab = 511;
    EXPECT_THROW(synth_file_bytes(options_), UsageError);
    options_.n_vocab = 0;
    options_.shape = "2b";
    EXPECT_THAT(refusal(folder_ / "x"), HasSubstr("unknown shape '2b'; there are: 1.1b 3b 7b-a1b 7b 13b"));
    options_.shape = "7b";
    options_.type = "q6_k";
    EXPECT_THAT(refusal(folder_ / "x"), HasSubstr("unknown type 'q6_k'; there are: q4_0 q4_k q4_k_m q8_0 f16"));
}

}  // namespace
}  // namespace weir
