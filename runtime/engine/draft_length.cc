#include "runtime/engine/draft_length.h"

#include <algorithm>

namespace weir {
namespace {

// What a pass or a draft is worth when the next one comes: some twenty of them tell what to expect.
constexpr double kKept = 0.95;
// Of the line: where passes had all the same number of rows it rises by this share of their mean with each row, as if a
// distance of one row had been seen once.
constexpr double kPriorRise = 0.05;

}  // namespace

double expected_tokens(double acceptance, size_t k) {
    double tokens = 0;
    for (size_t i = 0; i <= k; ++i) tokens = 1 + acceptance * tokens;
    return tokens;
}

void PassCost::took(size_t rows, double seconds) {
    const auto x = static_cast<double>(rows);
    weight_ = kKept * weight_ + 1;
    rows_ = kKept * rows_ + x;
    seconds_ = kKept * seconds_ + seconds;
    rows_rows_ = kKept * rows_rows_ + x * x;
    rows_seconds_ = kKept * rows_seconds_ + x * seconds;
}

double PassCost::seconds(size_t rows) const {
    if (!known()) return 0;
    const double mean_rows = rows_ / weight_, mean_seconds = seconds_ / weight_;
    const double variance = std::max(0.0, rows_rows_ - weight_ * mean_rows * mean_rows);
    const double covariance = rows_seconds_ - weight_ * mean_rows * mean_seconds;
    const double rise = std::max(0.0, (covariance + kPriorRise * mean_seconds) / (variance + 1));
    return std::max(mean_seconds / 4, mean_seconds + rise * (static_cast<double>(rows) - mean_rows));
}

void DraftRecord::took(size_t drafted, double seconds) {
    ++drafts_;
    tokens_ = kKept * tokens_ + static_cast<double>(drafted);
    seconds_ = kKept * seconds_ + seconds;
}

void DraftRecord::judged(size_t judged, size_t right) {
    judged_ = kKept * judged_ + static_cast<double>(judged);
    right_ = kKept * right_ + static_cast<double>(right);
}

DraftChoice choose_draft(const DraftRecord& record, const PassCost& verify, size_t most) {
    DraftChoice best;
    for (size_t k = 0; k <= most; ++k) {
        const double seconds = static_cast<double>(k) * record.seconds_per_token() + verify.seconds(k + 1);
        const double rate = expected_tokens(record.acceptance(), k) / std::max(seconds, 1e-9);
        if (k == 0 || rate > best.tokens_per_s) best = {k, rate};
    }
    return best;
}

}  // namespace weir
