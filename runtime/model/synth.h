// Synthetic models: GGUF files with the dimensions of usual models and random weights. What they say means
// nothing, but they take the memory, the reads and the arithmetic of the real ones. Made at disk speed, for
// measurements and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace weir {

struct SynthOptions {
    std::string shape;    // one of synth_shapes()
    std::string type;     // of all matrices, one of synth_types(); norms, biases and routers are F32
    std::string architecture = "llama";  // whose tensors and keys the file has, see architecture.h
    size_t n_layers = 0;  // 0: as many as the shape has
    size_t n_vocab = 0;   // 0: as many as the shape has
    bool tied = false;    // no head of its own: the head is token_embd, as Gemma's always is
    uint64_t seed = 1;    // equal options give equal files
    uint64_t split_bytes = 0;  // of tensors in a file at most, unless one alone is larger; 0: all in one
};

// Names that the options take, in the order of size: "1.1b 3b 7b-a1b 7b 13b", "q4_0 q4_k q8_0 f16".
std::string synth_shapes();
std::string synth_types();

// Bytes of the files that write_synth would write. Throws UsageError for options that name no model.
uint64_t synth_file_bytes(const SynthOptions& options);

// Writes PATH.partial and renames it to PATH when it is whole; with split_bytes so all parts, named as gguf_split.h has it with
// PATH less its ".gguf" as their stem, and returns the path of the first. `go_on` is called after each chunk with the
// bytes written so far and those of the whole file; it returns false to stop. Throws UsageError for options
// that name no model, Error where the disk has no room, writing fails or go_on stopped it; PATH is then as it
// was, and PATH.partial is gone.
std::string write_synth(const SynthOptions& options, const std::string& path,
                        const std::function<bool(uint64_t done, uint64_t total)>& go_on);

}  // namespace weir
