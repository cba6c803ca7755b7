#include "runtime/model/tokenizer_vocab.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/error.h"
#include "runtime/model/printable.h"

namespace weir {

namespace {

// Control tokens that end a turn or a text in the usual chat formats. A file's eos_token_id names one of them, and
// models answer with another one all the same.
constexpr std::string_view kEndTexts[] = {
    "<|im_end|>", "<|eot_id|>",    "<|eom_id|>",      "<|end|>",       "<|endoftext|>", "<|end_of_text|>",
    "<|eot|>",    "<end_of_turn>", "<|end_of_turn|>", "<|endofturn|>", "<eos>",         "</s>",
};

uint64_t hash_text(std::string_view text) { return std::hash<std::string_view>{}(text); }

[[noreturn]] void fail(const GgufFile& file, const std::string& key, const std::string& reason) {
    throw Error(file.path() + ": key " + quoted(key) + " " + reason);
}

// Where the key is absent: nullptr.
const GgufArray* sized_array(const GgufFile& file, const std::string& key, size_t tokens) {
    const GgufArray* array = file.get_array(key);
    if (array && array->size() != tokens) {
        fail(file, key, "has " + std::to_string(array->size()) + " entries for " + std::to_string(tokens) + " tokens");
    }
    return array;
}

std::optional<TokenId> special_id(const GgufFile& file, const std::string& key, size_t tokens) {
    const std::optional<uint64_t> id = file.get_uint(key);
    if (!id) return std::nullopt;
    if (*id >= tokens) {
        fail(file, key,
             "is " + std::to_string(*id) + ", outside of the vocabulary of " + std::to_string(tokens) + " tokens");
    }
    return static_cast<TokenId>(*id);
}

}  // namespace

void append_unescaped(std::string_view text, std::string& out) {
    for (size_t blank; (blank = text.find(kBlankSymbol)) != std::string_view::npos;) {
        out += text.substr(0, blank);
        out += ' ';
        text.remove_prefix(blank + kBlankSymbol.size());
    }
    out += text;
}

Vocabulary::Vocabulary(const GgufFile& file, Family family) {
    read_texts(file);
    read_types(file, family);
    read_special_ids(file, family);
    index_specials(family);
}

void Vocabulary::read_texts(const GgufFile& file) {
    const std::string key = "tokenizer.ggml.tokens";
    const GgufArray* tokens = file.get_array(key);
    if (!tokens || tokens->strings.empty()) fail(file, key, "is missing or holds no strings: no vocabulary");
    size_t bytes = 0;
    for (const std::string& token : tokens->strings) {
        bytes += token.size();
        longest_text_ = std::max(longest_text_, token.size());
    }
    const size_t n = tokens->strings.size();
    if (n > size_t{1} << 24 || bytes > std::numeric_limits<uint32_t>::max()) {
        fail(file, key, "holds " + std::to_string(n) + " tokens of " + std::to_string(bytes) + " bytes: too many");
    }
    texts_.reserve(bytes);
    offsets_.reserve(n + 1);
    offsets_.push_back(0);
    for (const std::string& token : tokens->strings) {
        texts_ += token;
        offsets_.push_back(static_cast<uint32_t>(texts_.size()));
    }
    types_.assign(n, TokenType::kNormal);
    by_text_ = HashIndex(n);
    for (TokenId id = 0; id < static_cast<TokenId>(n); ++id) {
        const std::string_view mine = text(id);
        by_text_.insert(hash_text(mine), id, [&](TokenId other) { return text(other) == mine; });
    }
}

void Vocabulary::read_types(const GgufFile& file, Family family) {
    const std::string types_key = "tokenizer.ggml.token_type";
    const std::string scores_key = "tokenizer.ggml.scores";
    const GgufArray* types = sized_array(file, types_key, size());
    if (types) {
        if (types->integers.size() != size()) fail(file, types_key, "does not hold integers");
        for (size_t i = 0; i < size(); ++i) {
            const int64_t type = types->integers[i];
            if (type < 0 || type > static_cast<int64_t>(TokenType::kByte)) {
                fail(file, types_key,
                     "gives token " + std::to_string(i) + " the type " + std::to_string(type) + "; 0 to 6 are known");
            }
            types_[i] = static_cast<TokenType>(type);
        }
    }
    for (const TokenType type : types_) ++type_counts_[static_cast<size_t>(type)];
    if (!family.sentencepiece) return;

    // Without types byte tokens are not known as such, without scores nothing can be merged.
    if (!types) fail(file, types_key, "is missing; a SentencePiece vocabulary needs it");
    const GgufArray* scores = sized_array(file, scores_key, size());
    if (!scores) fail(file, scores_key, "is missing; a SentencePiece vocabulary needs it");
    if (scores->floats.size() != size()) fail(file, scores_key, "does not hold floats");
    scores_.reserve(size());
    for (size_t i = 0; i < size(); ++i) {
        if (std::isnan(scores->floats[i])) fail(file, scores_key, "gives token " + std::to_string(i) + " a NaN");
        scores_.push_back(static_cast<float>(scores->floats[i]));
    }
}

void Vocabulary::read_special_ids(const GgufFile& file, Family family) {
    const std::string prefix = "tokenizer.ggml.";
    const auto id_of = [&](const char* name) { return special_id(file, prefix + name + "_token_id", size()); };
    bos_ = id_of("bos");
    eos_ = id_of("eos");
    unknown_ = id_of("unknown");
    id_of("padding");  // not used, but a wrong one tells of a damaged file
    for (const std::optional<TokenId> id : {eos_, id_of("eot"), id_of("eom")}) {
        if (id) end_ids_.push_back(*id);
    }
    for (const std::string_view text : kEndTexts) {
        const std::optional<TokenId> id = find(text);
        if (id && type(*id) == TokenType::kControl) end_ids_.push_back(*id);
    }

    // A family's default asks for what may not be there; a key that does is an error.
    const auto asks = [&](const char* name, bool family_default, std::optional<TokenId> id) {
        const std::string key = prefix + "add_" + name + "_token";
        const std::optional<bool> asked = file.get_bool(key);
        if (asked.value_or(false) && !id) fail(file, key, "is true, but there is no " + prefix + name + "_token_id");
        return asked.value_or(family_default) && id;
    };
    adds_bos_ = asks("bos", family.adds_bos, bos_);
    adds_eos_ = asks("eos", false, eos_);
}

void Vocabulary::index_specials(Family family) {
    for (TokenId id = 0; id < static_cast<TokenId>(size()); ++id) {
        const bool always = type(id) == TokenType::kUserDefined;
        if (!always && type(id) != TokenType::kControl && type(id) != TokenType::kUnknown) continue;
        const std::string_view spelled = text(id);
        if (spelled.empty()) continue;
        specials_.push_back({std::string(spelled), id, always});
        if (!family.sentencepiece) continue;
        // The text to search has blanks where the vocabulary may have their symbol.
        std::string with_blanks;
        append_unescaped(spelled, with_blanks);
        if (with_blanks != spelled) specials_.push_back({std::move(with_blanks), id, always});
    }
    // Stable: of two tokens with one text the first is taken.
    std::stable_sort(specials_.begin(), specials_.end(),
                     [](const Special& a, const Special& b) { return a.text < b.text; });
    for (size_t i = 0; i < specials_.size(); ++i) {
        auto& range = by_first_byte_[static_cast<unsigned char>(specials_[i].text[0])];
        if (range.second == 0) range.first = i;
        range.second = i + 1;
    }
}

bool Vocabulary::ends_generation(TokenId id) const {
    return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

std::optional<TokenId> Vocabulary::find(std::string_view wanted) const {
    const TokenId id = by_text_.find(hash_text(wanted), [&](TokenId other) { return text(other) == wanted; });
    if (id < 0) return std::nullopt;
    return id;
}

// Narrows the range of specials that agree with the text so far, byte by byte; in a sorted range the one that ends
// here comes first.
const Vocabulary::Special* Vocabulary::longest_special(std::string_view text, bool parse_special) const {
    auto [low, high] = by_first_byte_[static_cast<unsigned char>(text[0])];
    const Special* longest = nullptr;
    for (size_t depth = 1; low < high; ++depth) {
        bool taken = false;
        for (; low < high && specials_[low].text.size() == depth; ++low) {
            if (taken || (!specials_[low].always && !parse_special)) continue;
            longest = &specials_[low];
            taken = true;
        }
        if (depth >= text.size()) break;
        const auto wanted = static_cast<unsigned char>(text[depth]);
        const auto byte = [depth](const Special& s) { return static_cast<unsigned char>(s.text[depth]); };
        const auto begin = specials_.begin() + static_cast<ptrdiff_t>(low);
        const auto end = specials_.begin() + static_cast<ptrdiff_t>(high);
        const auto first = std::partition_point(begin, end, [&](const Special& s) { return byte(s) < wanted; });
        const auto last = std::partition_point(first, end, [&](const Special& s) { return byte(s) <= wanted; });
        low = static_cast<size_t>(first - specials_.begin());
        high = static_cast<size_t>(last - specials_.begin());
    }
    return longest;
}

void Vocabulary::split_specials(std::string_view text, bool parse_special, std::vector<TextFragment>& out) const {
    size_t plain_from = 0;
    for (size_t at = 0; at < text.size();) {
        const Special* special = longest_special(text.substr(at), parse_special);
        if (!special) {
            ++at;
            continue;
        }
        if (at > plain_from) out.push_back({text.substr(plain_from, at - plain_from)});
        out.push_back({{}, special->id});
        at += special->text.size();
        plain_from = at;
    }
    if (text.size() > plain_from) out.push_back({text.substr(plain_from)});
}

std::vector<TokenId> VocabularyTokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
    if (text.size() > kMaxTextBytes) {
        throw Error("a text of " + std::to_string(text.size()) + " bytes is too long; at most " +
                    std::to_string(kMaxTextBytes) + " can be tokenized");
    }
    std::vector<TextFragment> fragments;
    vocab_.split_specials(text, parse_special, fragments);
    std::vector<TokenId> ids;
    if (add_special && vocab_.adds_bos()) ids.push_back(*vocab_.bos());
    for (const TextFragment& fragment : fragments) {
        if (fragment.id >= 0) {
            ids.push_back(fragment.id);
        } else {
            encode_text(fragment.text, ids);
        }
    }
    if (add_special && vocab_.adds_eos()) ids.push_back(*vocab_.eos());
    return ids;
}

void VocabularyTokenizer::append_token(TokenId id, bool special, std::string& out) const {
    if (id < 0 || static_cast<size_t>(id) >= vocab_.size()) {
        throw Error("token id " + std::to_string(id) + " is outside of the vocabulary of " +
                    std::to_string(vocab_.size()) + " tokens");
    }
    const TokenType type = vocab_.type(id);
    if (type != TokenType::kControl && type != TokenType::kUnknown) {
        append_piece(id, out);
    } else if (special) {
        out += vocab_.text(id);
    }
}

std::string VocabularyTokenizer::piece(TokenId id, bool special) const {
    std::string out;
    append_token(id, special, out);
    return out;
}

std::string VocabularyTokenizer::decode(const std::vector<TokenId>& ids, bool special) const {
    std::string out;
    for (const TokenId id : ids) append_token(id, special, out);
    return out;
}

}  // namespace weir
