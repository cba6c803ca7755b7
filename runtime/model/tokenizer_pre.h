// Pre-tokenizers of byte-level BPE: they cut a text into the words that merging stays within. Each is a row of regular
// expressions, applied one after the other to the pieces that the one before left: what matches is a piece, and what
// lies between two matches is one as well. The expressions are published in the models' own tokenizer.json files.
//
// Bytes that are not UTF-8 are words by themselves. Immutable once built; any thread may use it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

class PreTokenizer {
  public:
    // Its name, as tokenizer.ggml.pre has it, or an alias of it. nullptr where there is none.
    // jit: translate the expressions to machine code where the system lets us (not under W^X policies); the result is
    // the same without.
    static std::unique_ptr<PreTokenizer> create(std::string_view name, bool jit = true);

    // "default, gpt-2, ...": for messages.
    static std::string known_names();

    virtual ~PreTokenizer() = default;

    // Appends the words of text, all of its bytes in order. Takes linear time. Throws Error where pcre2 runs out of
    // memory.
    virtual void split(std::string_view text, std::vector<std::string_view>& words) const = 0;

    // A word that is a token as a whole is not merged from its bytes.
    virtual bool takes_whole_words() const = 0;
    // BOS goes before a text where the file does not say.
    virtual bool adds_bos() const = 0;
};

}  // namespace weir
