#include "runtime/service/answer.h"

#include <algorithm>
#include <utility>

namespace weir {

Answer::Answer(std::shared_ptr<Generation> generation, const Tokenizer& tokenizer, std::vector<std::string> stops)
    : generation_(std::move(generation)), stops_(std::move(stops)), stream_(tokenizer) {}

Generation::Next Answer::next(Piece* piece, std::chrono::milliseconds patience) {
    using Next = Generation::Next;
    *piece = {};
    if (ended_) return Next::kEnd;
    const auto deadline = std::chrono::steady_clock::now() + patience;
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        GeneratedToken token;
        const Next next = generation_->next(&token, std::max(left, std::chrono::milliseconds(0)));
        if (next == Next::kNothing) return next;
        if (next == Next::kEnd) return end(piece);
        ++tokens_;
        const TokenId id = token.id;
        held_tokens_.push_back(std::move(token));
        if (take(stream_.add(id), false, piece)) return Next::kToken;
    }
}

// Adds text, and gives out what no stop string can begin in any more. True where something was given out.
bool Answer::take(std::string text, bool last, Piece* piece) {
    held_ += text;
    size_t cut = std::string::npos;
    for (const std::string& stop : stops_) cut = std::min(cut, held_.find(stop));
    size_t keep = 0;
    if (cut != std::string::npos) {
        stopped_ = ended_ = true;
        generation_->cancel();
        outcome_ = generation_->outcome();
        held_.resize(cut);
    } else if (!last) {
        for (const std::string& stop : stops_) {
            for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
                if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
            }
        }
    }
    const size_t given = held_.size() - keep;
    if (given == 0 && !ended_) return false;
    piece->text = held_.substr(0, given);
    held_.erase(0, given);
    piece->tokens = std::exchange(held_tokens_, {});
    return true;
}

Generation::Next Answer::end(Piece* piece) {
    const bool more = take(stream_.finish(), true, piece);
    if (!stopped_) outcome_ = generation_->outcome();
    ended_ = true;
    if (more) return Generation::Next::kToken;
    piece->tokens = std::exchange(held_tokens_, {});
    return piece->tokens.empty() ? Generation::Next::kEnd : Generation::Next::kToken;
}

}  // namespace weir
