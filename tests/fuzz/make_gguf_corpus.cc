// Writes the seed corpus of gguf_fuzz into a folder: make_gguf_corpus tests/fuzz/corpus/gguf
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/model/raw_gguf.h"
#include "tests/model/small_model.h"

namespace {

using weir::GgufWriter;
using weir::test::RawGguf;
using weir::test::SmallModel;

SmallModel one_layer() {
    SmallModel model;
    model.layers = 1;
    model.dim = 4;
    model.heads = 2;
    model.ffn = 4;
    model.vocab = 3;
    return model;
}

RawGguf every_value(uint32_t version) {
    RawGguf raw;
    raw.start(0, 25, version);
    raw.key("u8", 0).put(uint8_t{1}).key("i8", 1).put(int8_t{-1}).key("u16", 2).put(uint16_t{2});
    raw.key("i16", 3).put(int16_t{-2}).key("u32", 4).put(uint32_t{3}).key("i32", 5).put(int32_t{-3});
    raw.key("f32", 6).put(1.0f).key("b", 7).put(uint8_t{1}).key("s", 8).text("text");
    raw.key("u64", 10).put(uint64_t{4}).key("i64", 11).put(int64_t{-4}).key("f64", 12).put(2.0);
    raw.array("au8", 0, 1)
        .put(uint8_t{1})
        .array("ai8", 1, 1)
        .put(int8_t{1})
        .array("au16", 2, 1)
        .put(uint16_t{1});
    raw.array("ai16", 3, 1)
        .put(int16_t{1})
        .array("au32", 4, 1)
        .put(uint32_t{1})
        .array("ai32", 5, 1)
        .put(int32_t{1});
    raw.array("af32", 6, 1).put(1.0f).array("ab", 7, 1).put(uint8_t{0}).array("as", 8, 2).text("a").text("");
    raw.array("au64", 10, 1)
        .put(uint64_t{1})
        .array("ai64", 11, 1)
        .put(int64_t{1})
        .array("af64", 12, 1)
        .put(1.0);
    raw.array("none", 8, 0);
    return raw;
}

std::vector<std::byte> every_tensor_type() {
    GgufWriter writer;
    for (const weir::kernels::TypeTraits& t : weir::kernels::all_traits()) {
        writer.add_tensor(t.name, t.type, {t.block_elements});
    }
    std::vector<std::byte> bytes = writer.header();
    bytes.resize(writer.file_size());
    return bytes;
}

void write(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) std::fprintf(stderr, "cannot write %s\n", path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make_gguf_corpus FOLDER\n");
        return 2;
    }
    const std::filesystem::path folder = argv[1];
    std::filesystem::create_directories(folder);

    write(folder / "llama", one_layer().bytes());
    SmallModel tied = one_layer();
    tied.tied = true;
    tied.also = [](GgufWriter& w) {
        w.add("llama.rope.dimension_count", uint32_t{2});
        w.add("llama.rope.freq_base", 1e6f);
        w.add("llama.rope.scaling.type", "linear");
        w.add("llama.rope.scaling.factor", 2.0f);
        w.add("llama.attention.sliding_window", uint32_t{8});
        w.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "c"});
        w.add_tensor("rope_freqs.weight", weir::kernels::Type::kF32, {1});
    };
    write(folder / "llama-tied-rope", tied.bytes());
    SmallModel experts = one_layer();
    experts.also = [](GgufWriter& w) { w.add("llama.expert_count", uint32_t{8}); };
    write(folder / "llama-experts", experts.bytes());

    write(folder / "values-v2", every_value(2).bytes());
    write(folder / "values-v3", every_value(3).bytes());
    write(folder / "tensor-types", every_tensor_type());
    RawGguf aligned;
    aligned.start(2, 1).key("general.alignment", 4).put(uint32_t{64});
    aligned.tensor("x", {4}, 0, 0).tensor("y", {2, 2, 1, 1}, 0, 64).data(80, 64);
    write(folder / "aligned", aligned.bytes());
    write(folder / "big-endian", RawGguf().raw("GGUF").put(uint32_t{0x03000000}).data(32).bytes());
    write(folder / "nested-array", RawGguf().start(0, 1).array("k", 9, 1).put(uint32_t{0}).data(32).bytes());
    write(folder / "empty", {});
    return 0;
}
