// Limits of memory from a made-up /proc and /sys, and how a budget is divided.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/engine/budget.h"
#include "runtime/error.h"
#include "tests/fake_root.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = 1 << 20;

class FakeSystem : public ::testing::Test {
  protected:
    void SetUp() override {
        put("proc/meminfo", "MemTotal:       8000000 kB\nMemFree: 1 kB\nMemAvailable:   6000000 kB\n");
    }
    void put(const std::string& path, const std::string& text) { fake_.put(path, text); }
    test::FakeRoot fake_;
    const fs::path& root_ = fake_.path();
};

TEST_F(FakeSystem, NoCgroupMeansTheMachine) {
    const MemoryLimits m = read_memory_limits(root_);
    EXPECT_EQ(m.whole(), uint64_t{8000000} * 1024);
    EXPECT_EQ(m.sensible(), uint64_t{6000000} * 1024 / 5 * 4);
}

TEST_F(FakeSystem, TheTightestV2LevelCounts) {
    put("proc/self/cgroup", "0::/a/b/c\n");
    put("sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.max", "3000000000\n");
    put("sys/fs/cgroup/a/memory.max", "2000000000\n");
    put("sys/fs/cgroup/a/b/memory.high", "1500000000\n");
    const MemoryLimits m = read_memory_limits(root_);
    EXPECT_EQ(m.cgroup, 1500000000u);
    EXPECT_NE(m.cgroup_name.find("a/b"), std::string::npos);
}

TEST_F(FakeSystem, TheTightestV1LevelCountsAndNoLimitIsNone) {
    put("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "1000000000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    EXPECT_EQ(read_memory_limits(root_).cgroup, 1000000000u);
}

TEST_F(FakeSystem, AContainerSeesItsOwnGroupAsTheTop) {
    put("proc/self/cgroup", "0::/../../elsewhere\n");
    put("sys/fs/cgroup/memory.max", "700000000\n");
    EXPECT_EQ(read_memory_limits(root_).cgroup, 700000000u);
}

TEST_F(FakeSystem, EveryLevelIsTold) {
    put("proc/self/cgroup", "4:memory:/\n0::/a/b\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "123456\n");
    put("sys/fs/cgroup/unified/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/unified/a/b/memory.high", "500000000\n");
    put("sys/fs/cgroup/unified/a/b/memory.current", "400000000\n");
    put("sys/fs/cgroup/unified/a/memory.max", "600000000\n");
    put("sys/fs/cgroup/unified/a/memory.current", "450000000\n");
    const MemoryLimits m = read_memory_limits(root_);
    ASSERT_EQ(m.levels.size(), 3u);
    EXPECT_TRUE(m.levels[0].v1);
    EXPECT_EQ(m.levels[0].limit, UINT64_MAX);
    EXPECT_EQ(m.levels[0].usage, 123456u);
    EXPECT_EQ(m.levels[1].high, 500000000u);
    EXPECT_EQ(m.levels[1].usage, 400000000u);
    EXPECT_EQ(m.levels[2].limit, 600000000u);
    EXPECT_EQ(m.cgroup, 500000000u);
    EXPECT_EQ(m.cgroup_name, (root_ / "sys/fs/cgroup/unified/a/b").string());
}

TEST_F(FakeSystem, Swap) {
    EXPECT_EQ(read_swap(root_).total, 0u);
    EXPECT_EQ(read_swap(root_).swappiness, -1);
    put("proc/meminfo", "MemTotal: 8000000 kB\nSwapTotal:  2000 kB\nSwapFree:  1500 kB\n");
    put("proc/sys/vm/swappiness", "60\n");
    const SwapState swap = read_swap(root_);
    EXPECT_EQ(swap.total, 2000u << 10);
    EXPECT_EQ(swap.free, 1500u << 10);
    EXPECT_EQ(swap.swappiness, 60);
}

TEST_F(FakeSystem, Pressure) {
    EXPECT_FALSE(read_pressure(root_).machine);
    EXPECT_EQ(read_pressure(root_).cgroup_file, "");
    const char* const kText = "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=3.25 avg60=0.50 avg300=0.00 total=1\n";
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.pressure", kText);
    EXPECT_FALSE(read_pressure(root_).machine);
    EXPECT_EQ(read_pressure(root_).cgroup_file, (root_ / "sys/fs/cgroup/a/b/memory.pressure").string());
    put("proc/pressure/memory", kText);
    const PressureState pressure = read_pressure(root_);
    EXPECT_TRUE(pressure.machine);
    EXPECT_EQ(pressure.some, 12.5);
    EXPECT_EQ(pressure.full, 3.25);
}

TEST_F(FakeSystem, NoProcIsAnError) {
    fake_.remove("proc/meminfo");
    EXPECT_THROW(read_memory_limits(root_), Error);
}

BudgetInput input(PagingMode mode) {
    BudgetInput in;
    in.mode = mode;
    in.limits.total = in.limits.available = 8000 * kMiB;
    in.base = 20 * kMiB;
    in.kv_cache = 30 * kMiB;
    in.activations = 10 * kMiB;
    in.weights = 900 * kMiB;
    in.threads = 2;
    return in;
}

TEST(Budget, FramesAreWhatIsLeftAndNothingIsSpentTwice) {
    BudgetInput in = input(PagingMode::kUffd);
    in.ram = 500 * kMiB;
    const Budget b = divide_memory(in);
    EXPECT_LE(b.base + b.kv_cache + b.activations + b.reserve + b.tables + b.frames, b.ram);
    EXPECT_GT(b.frames, 425 * kMiB);
}

TEST(Budget, AMappingPaysForItsPageTablesToo) {
    BudgetInput in = input(PagingMode::kUffd);
    in.ram = 500 * kMiB;
    const Budget uffd = divide_memory(in);
    in.mode = PagingMode::kAdvised;
    const Budget advised = divide_memory(in);
    EXPECT_GE(advised.reserve, uffd.reserve + in.weights / 512);
    EXPECT_LE(advised.base + advised.kv_cache + advised.activations + advised.reserve + advised.tables + advised.frames, advised.ram);
}

TEST(Budget, WeightsRamSetsTheFramesAlone) {
    BudgetInput in = input(PagingMode::kUffd);
    in.weights_ram = 100 * kMiB;
    Budget b = divide_memory(in);
    EXPECT_NEAR(static_cast<double>(b.frames), 100.0 * kMiB, 1.0 * kMiB);
    in.ram = 150 * kMiB;  // both: the smaller counts
    b = divide_memory(in);
    EXPECT_LT(b.frames, 82 * kMiB);
}

TEST(Budget, FramesWithinFollowTheWholeProcess) {
    BudgetInput in = input(PagingMode::kUffd);
    in.ram = 500 * kMiB;
    const Budget b = divide_memory(in);
    EXPECT_EQ(frames_within(b, b.ram), b.frames);
    EXPECT_NEAR(static_cast<double>(frames_within(b, 400 * kMiB)), static_cast<double>(b.frames - 100 * kMiB), 1.0 * kMiB);
    EXPECT_EQ(frames_within(b, 10 * kMiB), 0u);
}

TEST(Budget, TooLittleIsRefusedWithFigures) {
    BudgetInput in = input(PagingMode::kUffd);
    in.ram = 50 * kMiB;
    try {
        divide_memory(in);
        FAIL();
    } catch (const UsageError& e) {
        EXPECT_NE(std::string(e.what()).find("KV cache 30.0 MiB"), std::string::npos) << e.what();
    }
}

TEST(Budget, ResidentMustFit) {
    BudgetInput in = input(PagingMode::kResident);
    in.ram = 900 * kMiB;
    EXPECT_THROW(divide_memory(in), UsageError);
    in.ram = 1000 * kMiB;
    EXPECT_NO_THROW(divide_memory(in));
}

}  // namespace
}  // namespace weir
