#include "runtime/model/tokenizer.h"

#include "runtime/error.h"
#include "runtime/model/printable.h"
#include "runtime/model/tokenizer_bpe.h"
#include "runtime/model/tokenizer_pre.h"
#include "runtime/model/tokenizer_spm.h"

namespace weir {

namespace {

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const GgufFile& file, const std::string& override_name) {
    const std::string known = "; known are " + PreTokenizer::known_names();
    if (!override_name.empty()) {
        auto made = PreTokenizer::create(override_name);
        if (!made) throw UsageError("--pre-tokenizer " + quoted(override_name) + " is not known" + known);
        return made;
    }
    const std::string* name = file.get_string("tokenizer.ggml.pre");
    const std::string how = known + "; if this model's is one of them, say so with --pre-tokenizer NAME";
    if (!name)
        throw Error(file.path() + ": key 'tokenizer.ggml.pre' is missing, so the pre-tokenizer is not known" + how);
    auto made = PreTokenizer::create(*name);
    if (!made)
        throw Error(file.path() + ": key 'tokenizer.ggml.pre' is " + quoted(*name) + ", which is not known" + how);
    return made;
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_gguf(const GgufFile& file, const std::string& pre_tokenizer) {
    const std::string& model = file.require_string("tokenizer.ggml.model");
    if (model == "gpt2") return std::make_unique<BpeTokenizer>(file, make_pre_tokenizer(file, pre_tokenizer));
    if (model == "llama") {
        if (!pre_tokenizer.empty() && pre_tokenizer != "default") {
            throw UsageError("--pre-tokenizer " + quoted(pre_tokenizer) + " does not apply to " + file.path() +
                             ": a SentencePiece vocabulary has no pre-tokenizer");
        }
        return std::make_unique<SpmTokenizer>(file);
    }
    throw Error(file.path() + ": key 'tokenizer.ggml.model' is " + quoted(model) +
                ", a family that is not known; known are llama (SentencePiece BPE) and gpt2 (byte-level BPE)");
}

}  // namespace weir
