// Writes the seed corpus of tokenizer_fuzz into a folder: make_tokenizer_corpus tests/fuzz/corpus/tokenizer
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/tokenizer/small_vocab.h"

namespace {

using weir::GgufWriter;
using weir::TokenType;
using weir::test::SmallVocab;

SmallVocab tiny(const std::string& model, const std::string& pre) {
    SmallVocab v;
    v.model = model;
    v.pre = pre;
    v.add("<unk>", TokenType::kUnknown);
    v.add("<s>", TokenType::kControl);
    v.add("</s>", TokenType::kControl);
    v.add("ca", TokenType::kUserDefined);
    v.also = [](GgufWriter& w) {
        w.add("tokenizer.ggml.bos_token_id", uint32_t{1});
        w.add("tokenizer.ggml.eos_token_id", uint32_t{2});
        w.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
        w.add("tokenizer.ggml.add_eos_token", true);
        w.add("tokenizer.chat_template", "{{'<|im_start|>system\\nA.<|im_end|>\\n'}}");
    };
    return v;
}

SmallVocab tiny_bpe(const std::string& pre) {
    SmallVocab v = tiny("gpt2", pre);
    for (const char* text : {"a", "b", "c", "1", "\u0120"}) v.add(text);
    v.add_merge("a", "b");
    v.add_merge("\u0120", "ab");
    return v;
}

SmallVocab tiny_spm() {
    SmallVocab v = tiny("llama", "default");
    for (const char* text : {"<0x20>", "<0xC3>", "<0xA9>"}) v.add(text, TokenType::kByte);
    for (const char* text : {"a", "b", "c", "\u2581"}) v.add(text, TokenType::kNormal, -9);
    v.add("ab", TokenType::kUnused, -1);
    v.add("abc", TokenType::kNormal, -2);
    v.add("\u2581a", TokenType::kNormal, -3);
    return v;
}

void write(const std::filesystem::path& path, const SmallVocab& vocab) {
    const std::vector<std::byte> bytes = vocab.bytes();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) std::fprintf(stderr, "cannot write %s\n", path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make_tokenizer_corpus FOLDER\n");
        return 2;
    }
    const std::filesystem::path folder = argv[1];
    std::filesystem::create_directories(folder);
    write(folder / "bpe-llama3", tiny_bpe("llama-bpe"));
    write(folder / "bpe-unknown", tiny_bpe("unknown"));
    write(folder / "spm", tiny_spm());
    return 0;
}
