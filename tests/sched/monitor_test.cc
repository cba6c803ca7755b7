// Each of the four warnings: when it is raised, when it is taken back, and what does not raise it.
#include "schedtool/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace weir::sched {
namespace {

using testing::HasSubstr;

MonitorOptions small_windows() {
    MonitorOptions o;
    o.window = 10;
    o.device_bytes_per_s = 2e9;
    return o;
}

void score(Monitor* monitor, double perplexity, size_t windows) {
    for (size_t i = 0; i < windows * 10; ++i) monitor->score(std::log(perplexity) + (i % 2 == 0 ? 0.5 : -0.5));
}

bool warned(const Monitor& monitor, Warning warning) { return monitor.state().warned[static_cast<size_t>(warning)]; }

MonitorSample reading(double gb_per_s, double stall, double must_gb_per_s) {
    MonitorSample s;
    s.busy_s = 1;
    s.stall_s = stall;
    s.bytes_read = static_cast<uint64_t>(gb_per_s * 1e9);
    s.must_read = static_cast<uint64_t>(must_gb_per_s * 1e9);
    return s;
}

TEST(Monitor, ComparesTheLastThreeWindowsWithTheFirst) {
    Monitor monitor(small_windows());
    score(&monitor, 20, 2);
    EXPECT_EQ(monitor.state().baseline_perplexity, 0);
    score(&monitor, 20, 1);
    EXPECT_NEAR(monitor.state().baseline_perplexity, 20, 1e-9);
    score(&monitor, 20.9, 3);
    EXPECT_FALSE(warned(monitor, Warning::kPerplexity));
    score(&monitor, 23, 1);  // one window alone: exp(mean of ln 20.9, ln 20.9, ln 23) = 21.6
    EXPECT_TRUE(warned(monitor, Warning::kPerplexity));
    const auto changes = monitor.take_changes();
    ASSERT_EQ(changes.size(), 1u);
    EXPECT_TRUE(changes[0].raised);
    EXPECT_THAT(changes[0].text, HasSubstr("recalibration is wanted"));
    score(&monitor, 20, 3);
    EXPECT_FALSE(warned(monitor, Warning::kPerplexity));
    EXPECT_EQ(monitor.take_changes().size(), 1u);
    EXPECT_TRUE(monitor.take_changes().empty());
    EXPECT_NEAR(monitor.state().baseline_perplexity, 20, 1e-9);  // which never moves
}

TEST(Monitor, TakesABaselineThatIsGiven) {
    MonitorOptions o = small_windows();
    o.baseline_perplexity = 10;
    Monitor monitor(o);
    score(&monitor, 20, 3);
    EXPECT_TRUE(warned(monitor, Warning::kPerplexity));
}

TEST(Monitor, MemoryCountsAtOnce) {
    Monitor monitor(small_windows());
    MonitorSample s;
    s.memory_share = 0.79;
    monitor.sample(s);
    EXPECT_FALSE(warned(monitor, Warning::kMemory));
    s.memory_share = 0.81;
    monitor.sample(s);
    monitor.sample(s);
    EXPECT_TRUE(warned(monitor, Warning::kMemory));
    EXPECT_EQ(monitor.state().raised[static_cast<size_t>(Warning::kMemory)], 1u);
    s.memory_share = 0.2;
    monitor.sample(s);
    EXPECT_FALSE(warned(monitor, Warning::kMemory));
}

TEST(Monitor, JudgesTheDeviceOnlyWhereReadsBound) {
    Monitor monitor(small_windows());
    for (int i = 0; i < 20; ++i) monitor.sample(reading(0.5, 0.0, 0.5));
    EXPECT_FALSE(warned(monitor, Warning::kDevice));
    for (int i = 0; i < 9; ++i) monitor.sample(reading(0.5, 0.5, 0.5));
    EXPECT_FALSE(warned(monitor, Warning::kDevice));  // a span is not over
    monitor.sample(reading(0.5, 0.5, 0.5));
    EXPECT_TRUE(warned(monitor, Warning::kDevice));
    EXPECT_NEAR(monitor.state().device_share, 0.25, 1e-6);
    for (int i = 0; i < 10; ++i) monitor.sample(reading(0.1, 0.0, 0.1));
    EXPECT_TRUE(warned(monitor, Warning::kDevice));  // nothing was learnt
    for (int i = 0; i < 10; ++i) monitor.sample(reading(1.5, 0.5, 1.5));
    EXPECT_FALSE(warned(monitor, Warning::kDevice));

    MonitorOptions no_probe = small_windows();
    no_probe.device_bytes_per_s = 0;
    Monitor silent(no_probe);
    for (int i = 0; i < 20; ++i) silent.sample(reading(0.01, 0.9, 0.01));
    EXPECT_FALSE(warned(silent, Warning::kDevice));
}

TEST(Monitor, BytesAreComparedWithWhatMustBeRead) {
    Monitor monitor(small_windows());
    for (int i = 0; i < 10; ++i) monitor.sample(reading(1.1, 0, 1));
    EXPECT_FALSE(warned(monitor, Warning::kBytesPerToken));
    for (int i = 0; i < 10; ++i) monitor.sample(reading(1.2, 0, 1));
    EXPECT_TRUE(warned(monitor, Warning::kBytesPerToken));
    EXPECT_NEAR(monitor.state().bytes_ratio, 1.2, 1e-9);
    MonitorSample filling = reading(5, 0, 1);
    filling.must_is_known = false;
    monitor.sample(filling);
    for (int i = 0; i < 9; ++i) monitor.sample(reading(1, 0, 1));
    EXPECT_TRUE(warned(monitor, Warning::kBytesPerToken));  // a span with memory filled says nothing
    for (int i = 0; i < 10; ++i) monitor.sample(reading(1, 0, 1));
    EXPECT_FALSE(warned(monitor, Warning::kBytesPerToken));
}

}  // namespace
}  // namespace weir::sched
