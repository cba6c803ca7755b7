// How many workers decode the next token. More are not always faster: where reads bound, workers that compute in bursts
// take the cores (on virtual machines the host's as well) and the memory's bandwidth from the reads that they wait for. So
// fewer are tried, and kept where tokens come sooner. The number of workers changes no bit of the result.
//
// Pure and deterministic: times in, a number out. Used by whoever decodes, token by token.
#pragma once

#include <array>
#include <cstddef>

namespace weir {

class WorkerCount {
  public:
    explicit WorkerCount(size_t most) : most_(most), workers_(most) {}

    // For the next token: 1 to most.
    size_t workers() const { return trying_ != 0 ? trying_ : workers_; }

    // A token took so long, this share of it waiting for weights.
    void took(double seconds, double wait_share);

  private:
    static constexpr size_t kSample = 3;  // tokens whose median is compared

    double median() const;
    void start(size_t workers);

    size_t most_;
    size_t workers_;        // best so far
    size_t trying_ = 0;     // 0: no trial is under way
    size_t skip_ = 0;       // tokens that still belong to the number before
    double base_ = 0;       // median of workers_ when the trial began
    std::array<double, kSample> seconds_{};
    size_t n_seconds_ = 0;  // collected, the newest kSample are kept
    double wait_share_ = 0;
    size_t until_trial_ = 0;
    size_t interval_ = kFirstInterval;
    bool looked_down_ = false;  // the last trial was one of fewer

    static constexpr size_t kFirstInterval = 32;  // tokens between trials; doubles with each that brought nothing
    static constexpr size_t kLastInterval = 512;
};

}  // namespace weir
