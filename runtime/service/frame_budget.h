// What the weights may take, by two who have a say: memory pressure, which lowers and raises it, and rest, in which the
// service gives back all that it can and remembers what it may have.
//
// Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

namespace weir {

class FrameBudget {
  public:
    // set: sets the budget that is in force, and returns it, as WeightStore::set_frame_bytes().
    FrameBudget(uint64_t allowed, std::function<uint64_t(uint64_t)> set) : set_(std::move(set)), allowed_(allowed) {}

    // What is in force; at rest, what will be.
    uint64_t allow(uint64_t bytes) {
        const std::lock_guard lock(mutex_);
        allowed_ = bytes;
        return rests_ ? bytes : set_(bytes);
    }
    void rest(bool rests) {
        const std::lock_guard lock(mutex_);
        if (std::exchange(rests_, rests) != rests) (void)set_(rests ? 0 : allowed_);
    }

  private:
    const std::function<uint64_t(uint64_t)> set_;
    std::mutex mutex_;
    uint64_t allowed_;
    bool rests_ = false;
};

}  // namespace weir
