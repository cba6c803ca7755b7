#include "runtime/engine/draft_head.h"

#include <algorithm>
#include <array>

#include "pager/check.h"

namespace weir {
namespace {

// Of likely tokens, one in so many is a character: Gemma's first 512 are a quarter of what English and code have, and what
// comes behind them hardly occurs there.
constexpr size_t kCharacterShare = 32;

bool is_character(const std::string& piece) {
    return std::count_if(piece.begin(), piece.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }) == 1;
}

}  // namespace

uint64_t DraftHead::bytes(kernels::Level level, size_t rows, size_t cols) { return rows * kernels::level_row_bytes(level, cols); }

DraftHead::DraftHead(WeightStore& store, const Matrix& head, kernels::Level level, std::span<const TokenId> first, size_t rows)
    : store_(store), first_(first.size()), next_(first.size()), memory_(bytes(level, rows, head.cols)), has_(head.rows) {
    CHECK(first.size() < rows && rows <= head.rows);
    matrix_.name = head.name;
    matrix_.type = head.type;
    matrix_.cols = head.cols;
    matrix_.row_bytes = kernels::level_row_bytes(level, head.cols);
    matrix_.level = level;
    matrix_.band_rows = matrix_.part_rows = rows;
    matrix_.apart = true;
    Matrix::Band band;
    band.rows.fine_steps = head.bands.front().rows.fine_steps;
    band.first = memory_.data();
    size_t at = 0;
    for (size_t p = 0; p < kernels::kPlanes; ++p) {
        if (!kernels::reads_plane(level, static_cast<kernels::Plane>(p))) continue;
        band.rows.plane[p] = memory_.data() + at;
        at += rows * kernels::plane_row_bytes(static_cast<kernels::Plane>(p), head.cols);
    }
    matrix_.bands.push_back(band);
    tokens_.reserve(rows);
    tokens_.assign(first.begin(), first.end());
    for (const TokenId id : first) has_.at(static_cast<size_t>(id)) = true;
    copy(first, 0);
    matrix_.rows = tokens_.size();
}

void DraftHead::copy(std::span<const TokenId> ids, size_t to_row) {
    std::array<std::byte*, kernels::kPlanes> to = {};
    for (size_t p = 0; p < kernels::kPlanes; ++p) {
        const std::byte* const plane = matrix_.bands.front().rows.plane[p];
        if (plane != nullptr)
            to[p] = memory_.data() + (plane - memory_.data()) + to_row * kernels::plane_row_bytes(static_cast<kernels::Plane>(p), matrix_.cols);
    }
    bytes_read_ += store_.copy_rows(matrix_.name, ids, matrix_.level, to);
}

void DraftHead::add(TokenId id) {
    if (has_.at(static_cast<size_t>(id))) return;
    if (next_ == matrix_.band_rows) next_ = first_;
    copy({&id, 1}, next_);
    if (next_ == tokens_.size()) {
        tokens_.push_back(id);
    } else {
        has_[static_cast<size_t>(tokens_[next_])] = false;
        tokens_[next_] = id;
    }
    has_[static_cast<size_t>(id)] = true;
    ++next_;
    matrix_.rows = tokens_.size();
}

std::vector<TokenId> likely_tokens(const Tokenizer& tokenizer, size_t n) {
    const auto all = static_cast<TokenId>(tokenizer.size());
    n = std::min(n, tokenizer.size());
    const auto first = static_cast<TokenId>(n - n / kCharacterShare);
    std::vector<TokenId> tokens;
    tokens.reserve(n);
    for (TokenId id = 0; id < first; ++id) tokens.push_back(id);
    for (TokenId id = first; id < all && tokens.size() < n; ++id)
        if (is_character(tokenizer.piece(id))) tokens.push_back(id);
    return tokens;
}

}  // namespace weir
