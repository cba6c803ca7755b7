#include "runtime/model/tokenizer_spm.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "runtime/error.h"
#include "runtime/model/printable.h"
#include "runtime/model/utf8.h"

namespace weir {

namespace {

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

// The byte that "<0xNN>" stands for; -1 where text is not of that form.
int parse_byte_token(std::string_view text) {
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    const int high = hex_digit(text[3]);
    const int low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

SpmTokenizer::SpmTokenizer(const GgufFile& file)
    : VocabularyTokenizer(file, {.sentencepiece = true, .adds_bos = true}),
      add_space_prefix_(file.get_bool("tokenizer.ggml.add_space_prefix").value_or(true)) {
    byte_tokens_.fill(-1);
    if (!vocab_.has_type(TokenType::kByte)) return;
    for (TokenId id = 0; id < static_cast<TokenId>(vocab_.size()); ++id) {
        if (vocab_.type(id) != TokenType::kByte) continue;
        const int byte = parse_byte_token(vocab_.text(id));
        if (byte < 0) {
            throw Error(file.path() + ": key 'tokenizer.ggml.token_type' says that token " + std::to_string(id) + ", " +
                        quoted(vocab_.text(id)) + ", is a byte; its text would have to be <0xNN>");
        }
        TokenId& slot = byte_tokens_[static_cast<size_t>(byte)];
        if (slot < 0) slot = id;
    }
}

TokenId SpmTokenizer::find_mergeable(std::string_view text) const {
    if (text.size() > vocab_.longest_text()) return -1;
    const std::optional<TokenId> id = vocab_.find(text);
    if (!id) return -1;
    switch (vocab_.type(*id)) {
        case TokenType::kUndefined:
        case TokenType::kNormal:
        case TokenType::kUserDefined:
        case TokenType::kUnused: return *id;
        case TokenType::kUnknown:
        case TokenType::kControl:
        case TokenType::kByte: break;
    }
    return -1;
}

// Merges the symbols of one text. Symbols form a linked list; candidates wait in a heap and are checked when they come
// out, since a neighbour may have been merged meanwhile. n log n in the length of the text.
class SpmTokenizer::Merger {
  public:
    Merger(const SpmTokenizer& tokenizer, std::string_view text)
        : tokenizer_(tokenizer), text_(text), splits_needed_(tokenizer.vocab_.has_type(TokenType::kUnused)) {}

    void run(std::vector<TokenId>& out) {
        cut_into_characters();
        for (uint32_t i = 0; i + 1 < symbols_.size(); ++i) propose(i);
        merge();
        for (uint32_t i = 0; i != kNone; i = symbols_[i].next) emit(symbols_[i], out);
    }

  private:
    static constexpr uint32_t kNone = UINT32_MAX;

    struct Symbol {
        uint32_t begin;
        uint32_t length;  // 0: merged into its left neighbour
        uint32_t previous;
        uint32_t next;
        TokenId id;  // -1: no token, so a character by itself
    };

    struct Candidate {
        float score;
        uint32_t left;
        uint32_t length;  // of both together
        TokenId id;

        // The heap gives the best score first, and of equals the leftmost.
        bool operator<(const Candidate& other) const {
            return score != other.score ? score < other.score : left > other.left;
        }
    };

    std::string_view text_of(const Symbol& symbol) const { return text_.substr(symbol.begin, symbol.length); }

    void cut_into_characters() {
        symbols_.reserve(text_.size());
        for (size_t at = 0; at < text_.size();) {
            const size_t length = std::max<size_t>(utf8_length(text_.substr(at)), 1);
            const auto i = static_cast<uint32_t>(symbols_.size());
            symbols_.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(length), i - 1, i + 1,
                                tokenizer_.find_mergeable(text_.substr(at, length))});
            at += length;
        }
        symbols_.back().next = kNone;  // the first one's previous wrapped around to kNone
    }

    // Makes a symbol and its right neighbour a candidate where together they are a token.
    void propose(uint32_t left) {
        const Symbol& a = symbols_[left];
        const Symbol& b = symbols_[a.next];
        const TokenId id = tokenizer_.find_mergeable(text_.substr(a.begin, a.length + b.length));
        if (id < 0) return;
        candidates_.push({tokenizer_.vocab_.score(id), left, a.length + b.length, id});
        if (splits_needed_ && tokenizer_.vocab_.type(id) == TokenType::kUnused) split_at_[id] = a.length;
    }

    void merge() {
        while (!candidates_.empty()) {
            const Candidate best = candidates_.top();
            candidates_.pop();
            Symbol& left = symbols_[best.left];
            // Symbols only grow: equal lengths mean that both are as they were proposed.
            if (left.length == 0 || left.next == kNone) continue;
            Symbol& right = symbols_[left.next];
            if (left.length + right.length != best.length) continue;
            left.length = best.length;
            left.id = best.id;
            left.next = right.next;
            right.length = 0;
            if (left.next != kNone) symbols_[left.next].previous = best.left;
            if (left.previous != kNone) propose(left.previous);
            if (left.next != kNone) propose(best.left);
        }
    }

    void emit(const Symbol& symbol, std::vector<TokenId>& out) {
        if (symbol.id < 0) {
            tokenizer_.append_bytes(text_of(symbol), out);
        } else if (!splits_needed_ || tokenizer_.vocab_.type(symbol.id) != TokenType::kUnused) {
            out.push_back(symbol.id);
        } else {
            emit_split(text_of(symbol), out);
        }
    }

    // An unused token serves as a step towards longer ones, but is not given out: it is taken apart again as it was
    // put together, down to bytes for a character.
    void emit_split(std::string_view text, std::vector<TokenId>& out) {
        std::vector<std::string_view> pending{text};
        while (!pending.empty()) {
            const std::string_view part = pending.back();
            pending.pop_back();
            const TokenId id = tokenizer_.find_mergeable(part);
            const auto split = split_at_.find(id);
            if (split != split_at_.end()) {
                pending.push_back(part.substr(split->second));
                pending.push_back(part.substr(0, split->second));
            } else if (id >= 0 && tokenizer_.vocab_.type(id) != TokenType::kUnused) {
                out.push_back(id);
            } else {
                tokenizer_.append_bytes(part, out);
            }
        }
    }

    const SpmTokenizer& tokenizer_;
    const std::string_view text_;
    const bool splits_needed_;
    std::vector<Symbol> symbols_;
    std::priority_queue<Candidate> candidates_;
    std::unordered_map<TokenId, uint32_t> split_at_;  // unused token → length of the left part that gave it last
};

void SpmTokenizer::encode_text(std::string_view text, std::vector<TokenId>& out) const {
    std::string escaped;
    escaped.reserve(text.size() + text.size() / 2 + kBlankSymbol.size());
    if (add_space_prefix_) escaped += kBlankSymbol;
    for (const char c : text) {
        if (c == ' ') {
            escaped += kBlankSymbol;
        } else {
            escaped += c;
        }
    }
    Merger(*this, escaped).run(out);
}

void SpmTokenizer::append_bytes(std::string_view text, std::vector<TokenId>& out) const {
    const auto token_of = [this](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
    const bool all = std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) >= 0; });
    if (all) {
        for (const char c : text) out.push_back(token_of(c));
        return;
    }
    // A vocabulary without byte tokens: one unknown token for a whole run of such characters.
    const std::optional<TokenId> unknown = vocab_.unknown();
    if (unknown && (out.empty() || out.back() != *unknown)) out.push_back(*unknown);
}

void SpmTokenizer::append_piece(TokenId id, std::string& out) const {
    if (vocab_.type(id) == TokenType::kByte) {
        out.push_back(static_cast<char>(parse_byte_token(vocab_.text(id))));
    } else {
        append_unescaped(vocab_.text(id), out);
    }
}

std::string SpmTokenizer::decode(const std::vector<TokenId>& ids, bool special) const {
    std::string text = VocabularyTokenizer::decode(ids, special);
    if (!add_space_prefix_) return text;
    // The first token that is not control carries the blank that encode put there, unless it is a byte.
    size_t before = 0;
    for (const TokenId id : ids) {
        const TokenType type = vocab_.type(id);
        if (type == TokenType::kControl || type == TokenType::kUnknown) {
            if (special) before += vocab_.text(id).size();
            continue;
        }
        if (vocab_.text(id).substr(0, kBlankSymbol.size()) == kBlankSymbol) text.erase(before, 1);
        break;
    }
    return text;
}

}  // namespace weir
