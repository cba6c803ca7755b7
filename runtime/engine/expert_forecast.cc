#include "runtime/engine/expert_forecast.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "pager/group_residency.h"

namespace weir {
namespace {

// Tokens that the policy settles in, some half-lives of a touch's worth, and tokens that count.
constexpr size_t kSettling = 128;
constexpr size_t kCounted = 128;

// Draws a token's experts, each by its popularity, no two alike; the popular ones are others in each layer.
class Routing {
  public:
    explicit Routing(const ExpertDemand& demand) : demand_(demand), random_(1), chosen_(demand.used) {
        double sum = 0;
        for (size_t r = 0; r < demand.experts; ++r) {
            sum += std::pow(static_cast<double>(r + 1), -demand.skew);
            up_to_.push_back(sum);
        }
    }

    const std::vector<uint32_t>& choose(size_t layer, size_t token) {
        if (demand_.trace != nullptr) {
            const auto recorded = demand_.trace->chosen(layer, token);
            chosen_.assign(recorded.begin(), recorded.end());
            return chosen_;
        }
        for (size_t i = 0; i < chosen_.size();) {
            const double at = static_cast<double>(random_()) / 4294967296.0 * up_to_.back();
            const auto rank = static_cast<size_t>(std::upper_bound(up_to_.begin(), up_to_.end(), at) - up_to_.begin());
            const auto expert = static_cast<uint32_t>((std::min(rank, demand_.experts - 1) + 7 * layer) % demand_.experts);
            if (std::find(chosen_.begin(), chosen_.begin() + static_cast<ptrdiff_t>(i), expert) ==
                chosen_.begin() + static_cast<ptrdiff_t>(i))
                chosen_[i++] = expert;
        }
        return chosen_;
    }

  private:
    const ExpertDemand& demand_;
    std::mt19937 random_;
    std::vector<double> up_to_;
    std::vector<uint32_t> chosen_;
};

}  // namespace

uint64_t ExpertDemand::group_bytes() const {
    uint64_t bytes = 0;
    for (const pager::Segment& s : groups.slots.segments) bytes += s.bytes;
    return n_groups() == 0 ? 0 : bytes / n_groups();
}

double expected_hit_rate(const ExpertDemand& demand, size_t slots) {
    if (slots >= demand.n_groups()) return 1;
    if (slots == 0) return 0;
    std::vector<pager::Group> groups;
    for (const uint32_t place : demand.groups.places) groups.push_back({1, place});
    pager::GroupResidency residency(std::move(groups), slots);
    Routing routing(demand);
    uint64_t uses = 0, here = 0;
    for (size_t token = 0; token < kSettling + kCounted; ++token) {
        for (size_t layer = 0; layer < demand.layers(); ++layer) {
            for (const uint32_t expert : routing.choose(layer, token)) {
                const auto group = static_cast<uint32_t>(layer * demand.experts + expert);
                const bool read = residency.touch(group) == pager::GroupResidency::Answer::kRead;
                if (read) residency.arrived(group);
                residency.release(group);
                if (token < kSettling) continue;
                ++uses;
                here += !read;
            }
        }
        residency.end_token();
    }
    return static_cast<double>(here) / static_cast<double>(uses);
}

}  // namespace weir
