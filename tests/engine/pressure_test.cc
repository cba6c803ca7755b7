// Memory pressure from a made-up /proc and /sys, and what becomes of the budget.
#include "runtime/engine/pressure.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tests/fake_root.h"

namespace weir {
namespace {

using std::chrono::milliseconds;
class PressureNumbers : public ::testing::Test {
  protected:
    void SetUp() override { put("proc/meminfo", "MemTotal:       8000000 kB\nMemFree: 1 kB\nMemAvailable:   6000000 kB\n"); }
    void put(const std::string& path, const std::string& text) { system_.put(path, text); }
    test::FakeRoot system_;
    const std::filesystem::path root_ = system_.path();
};

constexpr uint64_t kMiB = 1 << 20;

std::string meminfo(uint64_t available_mib) {
    return "MemTotal:       8388608 kB\nMemAvailable:   " + std::to_string(available_mib << 10) + " kB\n";
}

TEST_F(PressureNumbers, TheMachineAloneIsLookedAtWhereThereIsNoCgroup) {
    const PressureSource source(root_);
    const PressureSample s = source.sample();
    EXPECT_EQ(s.total, uint64_t{8000000} << 10);
    EXPECT_EQ(s.available, uint64_t{6000000} << 10);
    EXPECT_EQ(s.group_limit, 0u);
    EXPECT_FALSE(s.stall_us);
    EXPECT_EQ(source.describe(), "psi=none");
}

TEST_F(PressureNumbers, TheV2LevelWithTheLeastRoomCountsAndPageCacheIsRoom) {
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "1000000000\n");
    put("sys/fs/cgroup/a/b/memory.high", "900000000\n");
    put("sys/fs/cgroup/a/b/memory.current", "500000000\n");
    put("sys/fs/cgroup/a/b/memory.stat", "anon 400000000\ninactive_file 60000000\nactive_file 40000000\n");
    put("sys/fs/cgroup/a/memory.max", "2000000000\n");
    put("sys/fs/cgroup/a/memory.high", "max\n");
    put("sys/fs/cgroup/a/memory.current", "1900000000\n");
    put("sys/fs/cgroup/a/memory.stat", "inactive_file 0\nactive_file 0\n");
    PressureSample s = PressureSource(root_).sample();
    EXPECT_EQ(s.group_limit, 2000000000u);
    EXPECT_EQ(s.group_room, 100000000u);
    put("sys/fs/cgroup/a/memory.current", "600000000\n");
    s = PressureSource(root_).sample();
    EXPECT_EQ(s.group_limit, 900000000u);
    EXPECT_EQ(s.group_room, 500000000u);
    EXPECT_NE(s.group.find("a/b"), std::string::npos);
}

TEST_F(PressureNumbers, V1UsageAndSoftLimit) {
    put("proc/self/cgroup", "4:memory:/docker/abc\n");
    const std::string at = "sys/fs/cgroup/memory/docker/abc/";
    put(at + "memory.limit_in_bytes", "1000000000\n");
    put(at + "memory.soft_limit_in_bytes", "9223372036854771712\n");
    put(at + "memory.usage_in_bytes", "800000000\n");
    put(at + "memory.stat", "inactive_file 1\ntotal_inactive_file 50000000\ntotal_active_file 50000000\n");
    EXPECT_EQ(PressureSource(root_).sample().group_room, 300000000u);
    put(at + "memory.soft_limit_in_bytes", "750000000\n");
    EXPECT_EQ(PressureSource(root_).sample().group_room, 50000000u);
}

TEST_F(PressureNumbers, OurCgroupsStallsComeBeforeTheMachines) {
    const std::string text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=TOTAL\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
    const auto psi = [&](const char* total) { return std::string(text).replace(text.find("TOTAL"), 5, total); };
    put("proc/pressure/memory", psi("111"));
    EXPECT_EQ(PressureSource(root_).sample().stall_us, 111u);
    put("proc/self/cgroup", "0::/a\n");
    put("sys/fs/cgroup/a/memory.pressure", psi("222"));
    EXPECT_EQ(PressureSource(root_).sample().stall_us, 222u);
    EXPECT_EQ(PressureSource(root_).describe(), "psi=cgroup");
}

// A system of 8 GiB in which the rest of the world takes some memory and the policy's budget some.
struct World {
    PressurePolicy policy{1000 * kMiB, 2 * kMiB};
    uint64_t others = 1000 * kMiB;
    uint64_t group_limit = 0;
    uint64_t group_others = 0;
    uint64_t stall = 0;
    milliseconds now{0};

    PressureSample sample() const {
        PressureSample s;
        s.total = 8192 * kMiB;
        s.available = s.total - std::min(s.total, others + policy.budget());
        s.group_limit = group_limit;
        s.group_room = group_limit - std::min(group_limit, group_others + policy.budget());
        s.group = "/the/group";
        s.stall_us = stall;
        return s;
    }
    void run(milliseconds time) {
        for (const milliseconds until = now + time; now < until; now += milliseconds(250)) policy.decide(sample(), now);
    }
};

TEST(Pressure, WithRoomNothingChanges) {
    World w;
    w.run(milliseconds(60'000));
    EXPECT_EQ(w.policy.budget(), 1000 * kMiB);
}

TEST(Pressure, GivesWhatTheMachineMissesAtOnceAndTakesItAgainSlowly) {
    World w;
    w.run(milliseconds(1000));
    w.others = 7700 * kMiB;  // more than there is by 500 MiB: that does not show in what is available, which is nothing
    w.run(milliseconds(2500));
    EXPECT_GE(w.sample().available, 128 * kMiB) << "a 64th of the machine stays free";
    const uint64_t low = w.policy.budget();
    EXPECT_GT(low, 250 * kMiB);
    EXPECT_NE(w.policy.reason().find("available in the machine"), std::string::npos) << w.policy.reason();
    w.run(milliseconds(30'000));
    EXPECT_EQ(w.policy.budget(), low) << "no room, no growth, and no shrinking either";
    w.others = 1000 * kMiB;
    w.run(milliseconds(5'000));
    EXPECT_LT(w.policy.budget(), low + 6 * 32 * kMiB);
    w.run(milliseconds(60'000));
    EXPECT_EQ(w.policy.budget(), 1000 * kMiB);
}

TEST(Pressure, DoesNotSwingWhereOthersTakeWhatWeGive) {
    World w;
    uint64_t changes = 0, last = w.policy.budget();
    for (int i = 0; i < 4 * 300; ++i) {  // five minutes; others hover about where we would have to shrink
        w.others = (7100 + (i / 8 % 2) * 90) * kMiB;
        w.run(milliseconds(250));
        changes += w.policy.budget() != last;
        last = w.policy.budget();
    }
    EXPECT_LT(changes, 40u);
    EXPECT_GT(last, 600 * kMiB);
}

TEST(Pressure, ACgroupsRoomCountsToo) {
    World w;
    w.group_limit = 1500 * kMiB;
    w.group_others = 200 * kMiB;
    w.run(milliseconds(5000));
    EXPECT_EQ(w.policy.budget(), 1000 * kMiB);
    w.group_others = 700 * kMiB;
    w.run(milliseconds(1500));
    EXPECT_LT(w.policy.budget(), 800 * kMiB);
    EXPECT_GT(w.policy.budget(), 650 * kMiB);
    EXPECT_NE(w.policy.reason().find("/the/group"), std::string::npos) << w.policy.reason();
}

TEST(Pressure, ALimitThatIsTheBudgetItselfIsNoPressure) {
    World w;
    w.group_limit = 1020 * kMiB;
    w.group_others = 16 * kMiB;
    w.run(milliseconds(60'000));
    EXPECT_EQ(w.policy.budget(), 1000 * kMiB);
}

TEST(Pressure, StallsThatLastShrinkAndShortOnesDoNot) {
    World w;
    for (int i = 0; i < 40; ++i) {  // 250 ms of stalls now and then
        w.stall += i % 4 == 0 ? 100'000 : 0;
        w.run(milliseconds(250));
    }
    EXPECT_EQ(w.policy.budget(), 1000 * kMiB);
    for (int i = 0; i < 8; ++i) {
        w.stall += 60'000;  // 24 %
        w.run(milliseconds(250));
    }
    EXPECT_LT(w.policy.budget(), 1000 * kMiB);
    EXPECT_GT(w.policy.budget(), 850 * kMiB);
    EXPECT_NE(w.policy.reason().find("24 %"), std::string::npos) << w.policy.reason();
}

TEST(Pressure, SwappingShrinksByWhatWasSwapped) {
    World w;
    PressureSample s = w.sample();
    w.policy.decide(s, milliseconds(0));
    s.swapped = 50 * kMiB;
    EXPECT_LE(w.policy.decide(s, milliseconds(250)), 950 * kMiB);
    EXPECT_GT(w.policy.decide(s, milliseconds(500)), 900 * kMiB);
}

TEST(Pressure, AWishIsFollowedButPressureStays) {
    World w;
    w.policy.set_wanted(500 * kMiB);
    EXPECT_EQ(w.policy.budget(), 500 * kMiB);
    w.policy.set_wanted(1200 * kMiB);
    EXPECT_EQ(w.policy.budget(), 1200 * kMiB);
    w.policy.set_in_force(1199 * kMiB);  // in whole Extents
    w.run(milliseconds(20'000));
    EXPECT_EQ(w.policy.budget(), 1199 * kMiB);
    w.policy.set_wanted(1300 * kMiB);
    EXPECT_EQ(w.policy.budget(), 1300 * kMiB);
    w.others = 7700 * kMiB;
    w.run(milliseconds(2500));
    const uint64_t low = w.policy.budget();
    EXPECT_LT(low, 500 * kMiB);
    w.policy.set_wanted(1000 * kMiB);
    EXPECT_EQ(w.policy.budget(), low);
}

class Monitor : public PressureNumbers {
  protected:
    PressureMonitor::Hooks hooks() {
        PressureMonitor::Hooks h;
        h.set_budget = [](uint64_t bytes) { return bytes / (2 * kMiB) * (2 * kMiB); };
        h.on_change = [this](uint64_t, uint64_t now, const std::string& reason) {
            const std::lock_guard lock(mutex_);
            said_ += std::to_string(now / kMiB) + " " + reason + "\n";
        };
        return h;
    }
    template <typename Condition>
    static bool soon(Condition&& condition) {
        for (int i = 0; i < 1000; ++i) {
            if (condition()) return true;
            std::this_thread::sleep_for(milliseconds(10));
        }
        return false;
    }
    std::string said() {
        const std::lock_guard lock(mutex_);
        return said_;
    }
    std::mutex mutex_;
    std::string said_;
};

TEST_F(Monitor, FollowsTheMachine) {
    put("proc/meminfo", meminfo(4000));
    PressureMonitor monitor(1000 * kMiB, 2 * kMiB, true, {}, hooks(), root_);
    std::this_thread::sleep_for(milliseconds(600));
    EXPECT_EQ(monitor.changes(), 0u);
    put("proc/meminfo", meminfo(20));
    EXPECT_TRUE(soon([&] { return monitor.budget() < 900 * kMiB; }));
    put("proc/meminfo", meminfo(4000));
    EXPECT_NE(said().find("20.0 MiB available"), std::string::npos) << said();
    EXPECT_GT(monitor.changes(), 0u);
}

TEST_F(Monitor, FollowsAScriptWithoutWatching) {
    put("proc/meminfo", meminfo(1));  // would be pressure
    PressureMonitor monitor(1000 * kMiB, 2 * kMiB, false, {{milliseconds(10), 600 * kMiB}, {milliseconds(40), 801 * kMiB}}, hooks(), root_);
    EXPECT_TRUE(soon([&] { return monitor.changes() == 2; }));
    EXPECT_EQ(monitor.budget(), 800 * kMiB);
    EXPECT_EQ(said(), "600 asked for\n800 asked for\n");
}

}  // namespace
}  // namespace weir
