#include "runtime/engine/worker_count.h"

#include <algorithm>

namespace weir {
namespace {

// From this share of a token on, waiting is worth a trial with fewer workers.
constexpr double kWorthTrying = 0.15;
// A trial has won where its tokens take at most this share of the others' time: less is noise.
constexpr double kWon = 0.98;

}  // namespace

void WorkerCount::took(double seconds, double wait_share) {
    if (skip_ > 0) {  // what the ring held when the number changed was read for the old one
        --skip_;
        return;
    }
    seconds_[n_seconds_++ % kSample] = seconds;
    wait_share_ = wait_share;
    if (until_trial_ > 0) --until_trial_;
    if (n_seconds_ < kSample) return;
    if (trying_ != 0) {
        const bool won = median() <= base_ * kWon;
        if (won) workers_ = trying_;
        interval_ = won ? kFirstInterval : std::min(2 * interval_, kLastInterval);
        until_trial_ = won && workers_ > 1 && workers_ < most_ ? 0 : interval_;
        trying_ = 0;
        skip_ = won ? 0 : 1;
        n_seconds_ = 0;
        return;
    }
    if (until_trial_ > 0 || most_ == 1) return;
    // Fewer where the reads bound; all where they no longer do, and now and then where fewer were better once.
    looked_down_ = wait_share_ >= kWorthTrying && workers_ > 1 && !(looked_down_ && workers_ < most_);
    if (looked_down_) return start(workers_ / 2);
    if (workers_ < most_) return start(most_);
}

void WorkerCount::start(size_t workers) {
    base_ = median();
    trying_ = workers;
    skip_ = 1;
    n_seconds_ = 0;
}

double WorkerCount::median() const {
    std::array<double, kSample> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[kSample / 2];
}

}  // namespace weir
