// Tells a watchdog outside the process that the service works, for as long as it does: whoever serves faults answers a
// probe, and the scheduler moves whenever it has work. A thread of its own asks twice in each interval of the
// watchdog's. A probe that is never answered holds that thread for ever, and nothing is fed any more.
//
// Owned by the command; destroyed before what its hooks ask.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace weir {

// What one look at the scheduler sees.
struct Beat {
    bool working = false;
    uint64_t moves = 0;  // so far
};

class WatchdogFeeder {
  public:
    struct Hooks {
        std::function<void()> probe;  // returns when a fault was answered
        std::function<Beat()> beat;
        std::function<void()> feed;
        std::function<void()> on_silence;  // work that does not move, once each time
    };
    WatchdogFeeder(std::chrono::microseconds interval, Hooks hooks);
    ~WatchdogFeeder();
    WatchdogFeeder(const WatchdogFeeder&) = delete;
    WatchdogFeeder& operator=(const WatchdogFeeder&) = delete;

  private:
    void watch(const std::stop_token& stop, std::chrono::microseconds pause);

    const Hooks hooks_;
    std::jthread thread_;
};

}  // namespace weir
