#include "runtime/service/token_trie.h"

#include <algorithm>
#include <numeric>

namespace weir {
namespace {

// Heads followed for one mask. An ordinary one takes some thousands, one of a schema with thousands of alternatives a
// million; this is half a second.
constexpr uint64_t kMostWork = 30'000'000;

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : size_(tokenizer.size()) {
    offsets_.reserve(size_ + 1);
    for (size_t i = 0; i < size_; ++i) {
        const TokenId id = static_cast<TokenId>(i);
        offsets_.push_back(static_cast<uint32_t>(texts_.size()));
        if (tokenizer.ends_generation(id)) {
            ends_.push_back(id);
            continue;
        }
        const std::string text = tokenizer.piece(id);
        if (text.empty() || text.size() > UINT16_MAX) continue;
        texts_ += text;
        by_text_.push_back(id);
    }
    offsets_.push_back(static_cast<uint32_t>(texts_.size()));
    texts_.shrink_to_fit();
    by_text_.shrink_to_fit();
    std::sort(by_text_.begin(), by_text_.end(), [this](TokenId a, TokenId b) {
        const int order = text(a).compare(text(b));
        return order != 0 ? order < 0 : a < b;
    });

    std::vector<uint32_t> open;  // nodes of the text before, one a byte
    std::string_view before;
    const auto close = [&](size_t depth) {
        for (; open.size() > depth; open.pop_back()) nodes_[open.back()].skip = static_cast<uint32_t>(nodes_.size());
    };
    for (size_t i = 0; i < by_text_.size(); ++i) {
        const std::string_view here = text(by_text_[i]);
        const size_t most = std::min(before.size(), here.size());
        close(static_cast<size_t>(std::mismatch(before.begin(), before.begin() + most, here.begin()).first -
                                  before.begin()));
        while (open.size() < here.size()) {
            open.push_back(static_cast<uint32_t>(nodes_.size()));
            nodes_.push_back({0, static_cast<uint32_t>(i), 0, static_cast<uint16_t>(open.size() - 1),
                              static_cast<uint8_t>(here[open.size() - 1])});
        }
        ++nodes_[open.back()].tokens;
        before = here;
    }
    close(0);
    nodes_.shrink_to_fit();
}

bool TokenTrie::ends(TokenId id) const { return std::find(ends_.begin(), ends_.end(), id) != ends_.end(); }

void TokenTrie::allow(GrammarMatcher& matcher, std::vector<uint64_t>& mask) const {
    mask.assign(mask_words(), 0);
    bool any = false;
    const auto set = [&](TokenId id) {
        mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (static_cast<size_t>(id) % 64);
        any = true;
    };
    const uint64_t begin = matcher.work();
    for (size_t i = 0; i < nodes_.size();) {
        const Node& node = nodes_[i];
        if (!matcher.look(node.depth, node.byte)) {
            i = node.skip;
            continue;
        }
        if (matcher.work() - begin > kMostWork)
            throw GrammarError("the schema takes too much work for each token: make it smaller");
        for (uint32_t t = 0; t < node.tokens; ++t) set(by_text_[node.first + t]);
        ++i;
    }
    if (matcher.may_end()) std::for_each(ends_.begin(), ends_.end(), set);
    if (!any && !matcher.may_end()) throw GrammarError("this model's vocabulary cannot spell what the schema asks for");
}

const std::vector<uint64_t>& Constraint::mask() {
    for (const Kept& kept : kept_) {
        if (kept.generation == matcher_.generation() && kept.place == matcher_.place()) return kept.mask;
    }
    Kept& kept = kept_[next_++ % kKept];
    kept.generation = 0;
    trie_.allow(matcher_, kept.mask);
    kept.place = matcher_.place();
    kept.generation = matcher_.generation();
    return kept.mask;
}

void Constraint::took(TokenId id) {
    if (trie_.ends(id)) return;
    if (!matcher_.advance(trie_.text(id))) throw GrammarError("a token came that the schema does not allow");
}

size_t Constraint::most_bytes(size_t n_vocab) { return GrammarMatcher::most_bytes() + kKept * (n_vocab / 8 + 8); }

}  // namespace weir
