// Text to token ids and back, exactly as the model's own tokenizer does it. Two families: SentencePiece BPE
// (tokenizer.ggml.model = "llama") and byte-level BPE ("gpt2") with the pre-tokenizers that tokenizer.ggml.pre names.
// An unknown family or pre-tokenizer is an Error that lists the known ones and how to override; never a guess.
//
// Immutable once built; any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/gguf.h"

namespace weir {

using TokenId = int32_t;

class Tokenizer {
  public:
    // pre_tokenizer: overrides tokenizer.ggml.pre where not empty. Throws Error.
    static std::unique_ptr<Tokenizer> from_gguf(const GgufFile& file, const std::string& pre_tokenizer = {});
    virtual ~Tokenizer() = default;

    // add_special: put BOS (EOS) where the file's keys ask for it (tokenizer.ggml.add_bos_token, add_eos_token, with
    // the family's default). parse_special: control and user-defined tokens spelled out in the text become their ids.
    virtual std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special) const = 0;

    // The bytes that a token stands for; control tokens give nothing unless `special`. A piece may hold part of a
    // UTF-8 character.
    virtual std::string piece(TokenId id, bool special = false) const = 0;

    // Text of a whole sequence, as SentencePiece has it: without the blank that it puts before the first word.
    virtual std::string decode(const std::vector<TokenId>& ids, bool special = false) const = 0;

    virtual size_t size() const = 0;
    virtual std::optional<TokenId> bos() const = 0;
    virtual std::optional<TokenId> eos() const = 0;
    virtual bool adds_bos() const = 0;
    // End of generation: EOS, EOT, EOM and their kind.
    virtual bool ends_generation(TokenId id) const = 0;
    // The id of a token by its exact text ("<|im_start|>").
    virtual std::optional<TokenId> find(std::string_view text) const = 0;
};

}  // namespace weir
