// How far predictions of a layer's experts can be trusted. The next layer's router is asked on the current hidden state, and
// names experts by rank, the likeliest first; what it is worth differs from rank to rank and from model to model. So each rank's
// record is kept, and only ranks that are right often enough are read ahead: a wrong read takes the device's time from a right
// one, and a slot from an expert that was here.
//
// Pure. Used by the leader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weir {

class Foresight {
  public:
    Foresight(size_t n_layers, size_t n_experts, size_t most_ranks)
        : predicted_(n_layers), ranks_(most_ranks), chosen_(n_experts) {
        for (std::vector<uint32_t>& p : predicted_) p.reserve(most_ranks);
    }

    // Predicted for the layer, the likeliest first. Those to be read ahead are the first trusted() of them. for_the_record:
    // ranks are those of one token's experts; what many tokens foresee together says nothing of them.
    void predict(size_t layer, std::span<const uint32_t> experts, bool for_the_record = true) {
        for_the_record_ = for_the_record;
        predicted_[layer].assign(experts.begin(), experts.begin() + static_cast<ptrdiff_t>(std::min(experts.size(), ranks_.size())));
    }
    std::span<const uint32_t> predicted(size_t layer) const { return predicted_[layer]; }

    // What the layer's router has then chosen. The prediction is used up.
    void chose(size_t layer, std::span<const uint32_t> experts) {
        std::fill(chosen_.begin(), chosen_.end(), uint8_t{0});
        for (const uint32_t e : experts) chosen_[e] = 1;
        for (size_t r = 0; r < predicted_[layer].size(); ++r) {
            const bool right = chosen_[predicted_[layer][r]] != 0;
            ++made_;
            right_ += right;
            if (!for_the_record_) continue;
            Rank& rank = ranks_[r];
            rank.seen = std::min(rank.seen + 1, kMemory);
            rank.right += (static_cast<double>(right) - rank.right) / rank.seen;
        }
        predicted_[layer].clear();
    }

    // Ranks that are worth a read.
    size_t trusted() const {
        size_t n = 0;
        while (n < ranks_.size() && ranks_[n].seen >= kFirstRecord && ranks_[n].right >= kWorthARead) ++n;
        return n;
    }
    uint64_t made() const { return made_; }
    uint64_t right() const { return right_; }

  private:
    // Right predictions of a rank below which it is not read ahead: one wrong read for six right ones keeps what is read within
    // 1.15 times of what was absent.
    static constexpr double kWorthARead = 0.87;
    // Predictions of a rank that its record looks back on: some 16 tokens of a model of 16 layers.
    static constexpr double kMemory = 256;
    static constexpr double kFirstRecord = 30;  // and those that it takes to have one

    struct Rank {
        double right = 0;  // share, ageing
        double seen = 0;   // predictions, up to kMemory
    };
    std::vector<std::vector<uint32_t>> predicted_;  // per layer
    std::vector<Rank> ranks_;
    std::vector<uint8_t> chosen_;
    bool for_the_record_ = true;  // the last prediction
    uint64_t made_ = 0;
    uint64_t right_ = 0;
};

}  // namespace weir
