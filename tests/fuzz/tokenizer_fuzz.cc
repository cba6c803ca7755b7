// Fuzz target of the tokenizers: a vocabulary of any bytes gives an Error or a tokenizer, and that encodes any text to
// ids of its own and back without failing. The input is both: a GGUF file, and a text.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.h"
#include "runtime/model/chat.h"
#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}

void check(const weir::Tokenizer& tokenizer, std::string_view text) {
    for (const bool special : {false, true}) {
        const std::vector<weir::TokenId> ids = tokenizer.encode(text, special, special);
        size_t bytes = 0;
        for (const weir::TokenId id : ids) {
            require(id >= 0 && static_cast<size_t>(id) < tokenizer.size(), "ids lie within the vocabulary");
            bytes += tokenizer.piece(id, special).size();
        }
        const size_t decoded = tokenizer.decode(ids, special).size();
        require(decoded == bytes || decoded + 1 == bytes, "the text is its pieces, less one blank");
    }
}

std::unique_ptr<weir::Tokenizer> load(std::span<const std::byte> bytes, const char* pre_tokenizer) {
    try {
        const weir::GgufFile file = weir::GgufFile::parse(bytes, bytes.size(), "fuzz");
        if (const std::string* jinja = file.get_string("tokenizer.chat_template")) {
            const auto chat = weir::ChatTemplate::recognise(*jinja);
            if (chat) chat->render({{{"user", *jinja}, {"assistant", *jinja}, {"user", "?"}}}, {});
        }
        return weir::Tokenizer::from_gguf(file, pre_tokenizer);
    } catch (const weir::Error&) {
        return nullptr;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
    for (const char* pre_tokenizer : {"", "smollm"}) {
        const std::unique_ptr<weir::Tokenizer> tokenizer = load(bytes, pre_tokenizer);
        if (!tokenizer) continue;
        for (const std::string_view text : {"", " ", "aab abc <s>abc</s>", "it's 12345\n\n  caf\u00E9 \xFF\xE2\x96"}) {
            check(*tokenizer, text);
        }
        check(*tokenizer, {reinterpret_cast<const char*>(data), size});
    }
    return 0;
}
