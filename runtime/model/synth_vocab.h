// The vocabulary of a synthetic model: SentencePiece BPE with byte tokens, so that it can encode any text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weir {

struct SynthVocab {
    // One entry per token. Ids 0, 1, 2 are <unk>, <s>, </s>; 3 to 258 are the bytes.
    std::vector<std::string> tokens;
    std::vector<float> scores;
    std::vector<int32_t> types;  // as tokenizer.ggml.token_type numbers them
};

constexpr size_t kMinSynthVocab = 512;
constexpr size_t kMaxSynthVocab = 400000;

// Exactly n tokens, kMinSynthVocab <= n <= kMaxSynthVocab.
SynthVocab make_synth_vocab(size_t n);

}  // namespace weir
