#include "runtime/service/watchdog_feeder.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <utility>

namespace weir {

WatchdogFeeder::WatchdogFeeder(std::chrono::microseconds interval, Hooks hooks) : hooks_(std::move(hooks)) {
    thread_ = std::jthread([this, interval](const std::stop_token& stop) { watch(stop, interval / 2); });
}

WatchdogFeeder::~WatchdogFeeder() {
    thread_.request_stop();
    thread_.join();
}

void WatchdogFeeder::watch(const std::stop_token& stop, std::chrono::microseconds pause) {
    ::pthread_setname_np(::pthread_self(), "weir-feeder");
    std::mutex mutex;
    std::condition_variable_any woken;
    Beat last;
    bool silent = false;
    while (!stop.stop_requested()) {
        hooks_.probe();
        const Beat beat = hooks_.beat();
        const bool moves = !beat.working || !last.working || beat.moves != last.moves;
        if (moves) hooks_.feed();
        if (!moves && !silent) hooks_.on_silence();
        silent = !moves;
        last = beat;
        std::unique_lock lock(mutex);
        (void)woken.wait_for(lock, stop, pause, [] { return false; });
    }
}

}  // namespace weir
