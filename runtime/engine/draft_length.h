// How many tokens to draft before they are verified. A draft of k tokens costs k times what one takes to draft, and one pass
// that verifies k + 1 rows; it brings one token more than are right one after the other (Leviathan et al. 2023). So by the share
// of drafted tokens that are right, and by what passes take, some k brings the most tokens a second; it may be 0.
//
// Pure and deterministic: times in, a number out. Used by whoever decodes, pass by pass. The choice changes no bit of the result.
#pragma once

#include <cstddef>

namespace weir {

// Drafted at a time at most: each has a row of logits and one of every activation of its own.
constexpr size_t kMostDrafts = 16;

// Tokens that k drafted ones bring, each right with this probability where those before it are: 1 + a + a^2 + ... + a^k.
double expected_tokens(double acceptance, size_t k);

// What passes over the weights take by the number of their rows: a line through those that were seen, the older the less they
// count.
class PassCost {
  public:
    void took(size_t rows, double seconds);
    bool known() const { return weight_ > 0; }
    double seconds(size_t rows) const;

  private:
    double weight_ = 0, rows_ = 0, seconds_ = 0, rows_rows_ = 0, rows_seconds_ = 0;  // sums
};

// What is known of one source of drafts.
class DraftRecord {
  public:
    // A draft of `drafted` tokens took so long, and of these the first `right` were. `judged` of them were compared: those after
    // a wrong one were not, nor those after the answer's end.
    void took(size_t drafted, double seconds);
    void judged(size_t judged, size_t right);

    size_t drafts() const { return drafts_; }
    double acceptance() const { return right_ / judged_; }
    double seconds_per_token() const { return tokens_ > 0 ? seconds_ / tokens_ : 0; }

  private:
    size_t drafts_ = 0;
    // The older the less they count. Before anything was judged it is as if two of three had been right.
    double judged_ = 3, right_ = 2;
    double tokens_ = 0, seconds_ = 0;
};

struct DraftChoice {
    size_t tokens = 0;
    double tokens_per_s = 0;  // expected
};

// The best number of drafted tokens, at most `most`, where verifying takes as long as `verify` says.
DraftChoice choose_draft(const DraftRecord& record, const PassCost& verify, size_t most);

}  // namespace weir
