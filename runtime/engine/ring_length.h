// How many Extents the ring of streamed weights holds. A long ring keeps the device busy where reads bound; where they do not,
// the same frames are worth more as weights that stay. So it begins long, and is halved as long as nobody waits.
//
// Pure and deterministic: shares of time in, a number out. Used by the leader, pass by pass.
#pragma once

#include <algorithm>
#include <cstddef>

namespace weir {

class RingLength {
  public:
    RingLength() = default;
    RingLength(size_t shortest, size_t longest) : shortest_(shortest), longest_(longest), extents_(longest) {}

    size_t extents() const { return extents_; }

    // A pass is over, which waited for weights for this share of its time. True where the length is now another.
    bool took(double wait_share) {
        const size_t before = extents_;
        if (wait_share < kCalm) {
            if (++calm_passes_ >= patience_) {
                extents_ = std::max(shortest_, extents_ / 2);
                calm_passes_ = 0;
            }
        } else {
            calm_passes_ = 0;
            if (wait_share > kWaits && extents_ < longest_) {
                extents_ = std::min(longest_, 2 * extents_);
                patience_ = std::min(2 * patience_, kMostPatience);
            }
        }
        return extents_ != before;
    }

  private:
    static constexpr double kCalm = 0.01;
    static constexpr double kWaits = 0.05;
    static constexpr size_t kFirstPatience = 3;  // calm passes before the ring is halved; doubles when that was too short
    static constexpr size_t kMostPatience = 768;

    size_t shortest_ = 0;
    size_t longest_ = 0;
    size_t extents_ = 0;
    size_t calm_passes_ = 0;
    size_t patience_ = kFirstPatience;
};

}  // namespace weir
