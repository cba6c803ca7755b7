#include "runtime/model/tokenizer_bpe.h"

#include <algorithm>
#include <queue>

#include "runtime/error.h"
#include "runtime/model/printable.h"
#include "runtime/model/utf8.h"

namespace weir {

namespace {

// Code points from here on stand for the bytes that print as nothing, in ascending order.
constexpr uint32_t kFirstStandIn = 256;

constexpr bool prints(uint32_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteMap {
    std::array<uint16_t, 256> code_point_of{};
    std::array<int16_t, kFirstStandIn + 68> byte_of{};  // -1: stands for no byte
};

constexpr ByteMap make_byte_map() {
    ByteMap map;
    for (int16_t& byte : map.byte_of) byte = -1;
    uint32_t next = kFirstStandIn;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const uint32_t code_point = prints(byte) ? byte : next++;
        map.code_point_of[byte] = static_cast<uint16_t>(code_point);
        map.byte_of[code_point] = static_cast<int16_t>(byte);
    }
    return map;
}

constexpr ByteMap kByteMap = make_byte_map();

// splitmix64's finaliser: pairs of small numbers must spread over all bits.
uint64_t hash_pair(TokenId left, TokenId right) {
    uint64_t x = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

}  // namespace

BpeTokenizer::BpeTokenizer(const GgufFile& file, std::unique_ptr<PreTokenizer> pre_tokenizer)
    : VocabularyTokenizer(file, {.sentencepiece = false, .adds_bos = pre_tokenizer->adds_bos()}),
      pre_tokenizer_(std::move(pre_tokenizer)) {
    for (size_t byte = 0; byte < 256; ++byte) {
        utf8_append(byte_texts_[byte], kByteMap.code_point_of[byte]);
        byte_tokens_[byte] = vocab_.find(byte_texts_[byte]).value_or(-1);
    }
    read_merges(file);
}

void BpeTokenizer::read_merges(const GgufFile& file) {
    const auto fail = [&file](const std::string& reason) {
        throw Error(file.path() + ": key 'tokenizer.ggml.merges' " + reason);
    };
    const GgufArray* merges = file.get_array("tokenizer.ggml.merges");
    if (!merges || merges->strings.size() != merges->size()) fail("is missing or does not hold strings");
    const size_t n = merges->strings.size();
    if (n > size_t{1} << 26) fail("holds " + std::to_string(n) + " entries: too many");
    merges_.reserve(n);
    by_pair_ = HashIndex(n);
    std::string joined;
    for (size_t i = 0; i < n; ++i) {
        const std::string_view merge = merges->strings[i];
        const size_t blank = merge.find(' ', 1);
        if (blank == std::string_view::npos) {
            fail("has entry " + std::to_string(i) + ", " + quoted(merge) + ", which is not two tokens and a blank");
        }
        const std::string_view left = merge.substr(0, blank);
        const std::string_view right = merge.substr(blank + 1);
        joined.assign(left).append(right);
        const std::optional<TokenId> ids[] = {vocab_.find(left), vocab_.find(right), vocab_.find(joined)};
        if (!ids[0] || !ids[1] || !ids[2]) {
            fail("has entry " + std::to_string(i) + ", " + quoted(merge) +
                 ", whose parts or result are not in the vocabulary");
        }
        const Merge& mine = merges_.emplace_back(Merge{*ids[0], *ids[1], *ids[2]});
        by_pair_.insert(hash_pair(mine.left, mine.right), static_cast<int32_t>(i), [&](int32_t other) {
            const Merge& theirs = merges_[static_cast<size_t>(other)];
            return theirs.left == mine.left && theirs.right == mine.right;
        });
    }
}

int32_t BpeTokenizer::rank(TokenId left, TokenId right) const {
    return by_pair_.find(hash_pair(left, right), [&](int32_t i) {
        const Merge& merge = merges_[static_cast<size_t>(i)];
        return merge.left == left && merge.right == right;
    });
}

// Merges words, one after the other, in memory that is used again. Symbols form a linked list; candidates wait in a
// heap and are checked when they come out. n log n in the length of a word.
class BpeTokenizer::Merger {
  public:
    explicit Merger(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void run(std::string_view word, std::vector<TokenId>& out) {
        symbols_.clear();
        for (const char c : word) {
            const TokenId id = tokenizer_.byte_tokens_[static_cast<unsigned char>(c)];
            // Some vocabularies lack bytes that their texts did not have. The models' own tokenizers drop them too.
            if (id < 0) continue;
            const auto i = static_cast<uint32_t>(symbols_.size());
            symbols_.push_back({id, i - 1, i + 1});
        }
        if (symbols_.empty()) return;
        symbols_.back().next = kNone;  // the first one's previous wrapped around to kNone
        for (uint32_t i = 0; i + 1 < symbols_.size(); ++i) propose(i);
        merge();
        for (uint32_t i = 0; i != kNone; i = symbols_[i].next) out.push_back(symbols_[i].id);
    }

  private:
    static constexpr uint32_t kNone = UINT32_MAX;
    static constexpr TokenId kMerged = -1;

    struct Symbol {
        TokenId id;
        uint32_t previous;
        uint32_t next;
    };

    struct Candidate {
        int32_t rank;
        uint32_t left;

        // The heap gives the lowest rank first, and of equals the leftmost.
        bool operator<(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };

    void propose(uint32_t left) {
        const int32_t rank = tokenizer_.rank(symbols_[left].id, symbols_[symbols_[left].next].id);
        if (rank >= 0) candidates_.push({rank, left});
    }

    void merge() {
        while (!candidates_.empty()) {
            const Candidate best = candidates_.top();
            candidates_.pop();
            const Merge& merge = tokenizer_.merges_[static_cast<size_t>(best.rank)];
            Symbol& left = symbols_[best.left];
            if (left.id != merge.left || left.next == kNone) continue;
            Symbol& right = symbols_[left.next];
            if (right.id != merge.right) continue;
            left.id = merge.result;
            left.next = right.next;
            right.id = kMerged;
            if (left.next != kNone) symbols_[left.next].previous = best.left;
            if (left.previous != kNone) propose(left.previous);
            if (left.next != kNone) propose(best.left);
        }
    }

    const BpeTokenizer& tokenizer_;
    std::vector<Symbol> symbols_;
    std::priority_queue<Candidate> candidates_;  // empty between words
};

TokenId BpeTokenizer::find_word(std::string_view word, std::string& scratch) const {
    if (word.size() > vocab_.longest_text()) return -1;
    scratch.clear();
    for (const char c : word) scratch += byte_texts_[static_cast<unsigned char>(c)];
    const std::optional<TokenId> id = vocab_.find(scratch);
    if (!id || vocab_.type(*id) == TokenType::kControl || vocab_.type(*id) == TokenType::kUnknown) return -1;
    return *id;
}

void BpeTokenizer::encode_text(std::string_view text, std::vector<TokenId>& out) const {
    std::vector<std::string_view> words;
    pre_tokenizer_->split(text, words);
    Merger merger(*this);
    std::string scratch;
    for (const std::string_view word : words) {
        const TokenId whole = pre_tokenizer_->takes_whole_words() ? find_word(word, scratch) : -1;
        if (whole >= 0) {
            out.push_back(whole);
        } else {
            merger.run(word, out);
        }
    }
}

void BpeTokenizer::append_piece(TokenId id, std::string& out) const {
    std::string_view text = vocab_.text(id);
    if (vocab_.type(id) == TokenType::kUserDefined) {  // written as it is
        out += text;
        return;
    }
    while (!text.empty()) {
        const size_t length = std::max<size_t>(utf8_length(text), 1);
        const uint32_t code_point = utf8_decode(text.data(), length);
        const int byte = code_point < kByteMap.byte_of.size() ? kByteMap.byte_of[code_point] : -1;
        if (byte >= 0) {
            out.push_back(static_cast<char>(byte));
        } else {
            out += text.substr(0, length);
        }
        text.remove_prefix(length);
    }
}

}  // namespace weir
