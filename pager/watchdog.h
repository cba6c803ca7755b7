// Sees to it that nobody waits for ever for a pager thread that does not answer: a thread left asleep in a fault, or at a
// gate, is the worst that this room can do.
//
// A thread of its own looks every 100 ms whether anybody waits for weights (at a gate, in a fault, for a small read, for
// the pager's end) while the pager's loop makes no turns, and pings it if so: a pager that waits for slow reads answers at
// once. Where nothing has moved for a second it rests, until somebody waits, gives the pager something to do, or runs into
// a fault: an idle process takes no CPU. What does not answer is told apart by the pager thread's state:
//     gone                                    the loop was ended: the process ends at once
//     sleeps or runs without end of a turn    stuck: after stuck_ms the process ends
//     runnable, but does not get a CPU        the machine is busy: waited for
//     in the kernel, uninterruptible          reclaim, or a slow device: waited for
// Time is counted in looks, so that a suspended process or machine is not taken for a stuck pager.
// It also says what the pager thread itself must not stop to say: slow devices, and fallbacks that were taken.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "pager/pager_shared.h"

namespace weir::pager {

constexpr uint32_t kLookMs = 100;
constexpr uint32_t kLooksBeforeRest = 10;
// At most; whatever might be missed is found then.
constexpr uint32_t kRestMs = 30'000;

// What one look at the pager sees.
struct Look {
    uint64_t turns = 0;         // of the loop, so far
    bool waited_for = false;
    size_t reads_under_way = 0;
    uint64_t reads_landed = 0;  // so far
    char state = 'S';           // of the thread, as in /proc/.../stat; 0: there is none any more
    uint64_t cpu_ticks = 0;     // that it has used so far
};

// Judges a series of looks. Pure.
class Judge {
  public:
    enum class Verdict : uint8_t {
        kWell,
        kPing,   // no turn since the last look although somebody waits
        kSlow,   // no read has landed for slow_ms; said once, and again after six times that
        kStuck,
        kGone,
    };
    Judge(uint32_t stuck_ms, uint32_t slow_ms) : stuck_looks_(stuck_ms / kLookMs + 1), slow_looks_(slow_ms / kLookMs + 1) {}
    Verdict judge(const Look& look);
    // How long no read has landed.
    uint32_t slow_for_ms() const { return slow_ * kLookMs; }

  private:
    uint32_t stuck_looks_;
    uint32_t slow_looks_;
    Look last_;
    uint32_t silent_ = 0;  // looks without a turn, after the first ping
    uint32_t slow_ = 0;    // looks without a landing
};

class Watchdog {
  public:
    struct Hooks {
        std::function<void()> ping;                  // wakes the pager thread
        std::function<int()> uffd;                   // readable where a fault waits to be taken
        std::function<void()> tick;                  // once per look
        std::function<void(const char*)> on_stuck;   // must not return
        std::function<void(const char*)> on_notice;
    };
    // shared must outlive it; shared->thread_id is that of the pager thread until its orderly end.
    Watchdog(PagerShared* shared, uint32_t stuck_ms, uint32_t slow_ms, Hooks hooks);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

  private:
    void watch(const std::stop_token& stop);
    Look look() const;
    bool rest() const;

    PagerShared* const shared_;
    Judge judge_;
    Hooks hooks_;
    std::jthread thread_;
};

}  // namespace weir::pager
