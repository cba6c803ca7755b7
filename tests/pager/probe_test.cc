// The probes: what they find holds when it is used, and a device's figures come from real reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "pager/device_probe.h"
#include "pager/system.h"
#include "pager/system_probe.h"
#include "tests/pager/live.h"

namespace weir::pager {
namespace {

using test::PatternFile;

TEST(SystemProbe, EveryUffdRungIsWhatItSays) {
    bool any = false;
    for (const UffdSource source : {UffdSource::kUserModeOnly, UffdSource::kDevice, UffdSource::kSystemCall}) {
        const RungProbe probe = probe_uffd(source);
        EXPECT_EQ(probe.works(), probe.error == 0) << probe.step;
        any |= probe.works();
        if (probe.works()) {
            EXPECT_NO_THROW(Uffd{source});
        } else if (std::string(probe.step) == "open") {
            EXPECT_THROW(Uffd{source}, std::runtime_error);
        }
    }
    EXPECT_EQ(any, test::why_no_uffd().empty());
    EXPECT_EQ(probe_uffd_open(UffdSource::kAuto), EINVAL);
}

TEST(SystemProbe, InstallRungs) {
    WEIR_NEEDS_UFFD();
    const InstallProbe probe = probe_install();
    EXPECT_TRUE(probe.copy.works()) << probe.copy.step;
    EXPECT_EQ(probe.move.works(), Uffd(UffdSource::kAuto).has_move()) << probe.move.step;
    if (probe.stays_huge) {
        EXPECT_TRUE(probe.huge_move.works() && probe.huge_frame);
    }
}

TEST(SystemProbe, UringIsWhatTheQueueFinds) {
    const UringProbe probe = probe_uring();
    EXPECT_EQ(probe.error == 0, probe_io_uring() == 0);
    if (probe.error != 0) {
        EXPECT_TRUE(probe.flags.empty());
    }
}

TEST(DeviceProbe, ReadsWhatItSaysAtEveryDepth) {
    const PatternFile pattern((24 << 20) + 777);
    for (const IoMode io : {IoMode::kAuto, IoMode::kBuffered}) {
        const File file = File::open(pattern.path(), io);
        for (const size_t depth : {1, 3, 16, 64}) {
            const DeviceSpeed speed = probe_device(file, depth, 48 << 20, 30);
            EXPECT_EQ(speed.bytes, 48u << 20) << depth;  // twice over the file, by whole reads
            EXPECT_EQ(speed.read_bytes, 2u << 20);
            EXPECT_EQ(speed.depth, std::min<size_t>(depth, 24));
            EXPECT_GT(speed.bytes_per_s, 0);
        }
    }
}

TEST(DeviceProbe, EndsAtItsLimitOfTime) {
    const PatternFile pattern(8 << 20);
    const File file = File::open(pattern.path(), IoMode::kAuto);
    const DeviceSpeed speed = probe_device(file, 4, uint64_t{1} << 50, 0.05);
    EXPECT_GE(speed.seconds, 0.05);
    EXPECT_LT(speed.bytes, uint64_t{1} << 40);
}

TEST(DeviceProbe, ShortFilesAndOddPlaces) {
    for (const uint64_t bytes : {uint64_t{8}, uint64_t{5000}, (uint64_t{2} << 20) + 8, (uint64_t{5} << 20) - 8}) {
        const PatternFile pattern(bytes);
        const File file = File::open(pattern.path(), IoMode::kAuto);
        for (const ReaderRung reader : {ReaderRung::kAuto, ReaderRung::kPread}) {
            DeviceProbe probe;
            probe.bytes = 6 << 20;
            probe.from = bytes - 1;
            probe.reader = reader;
            const DeviceSpeed speed = probe_device(file, probe);
            EXPECT_GT(speed.bytes, 0u) << bytes;
        }
        DeviceProbe harder;
        harder.bytes = 6 << 20;
        harder.fresh = true;
        harder.busy_threads = 2;
        EXPECT_GT(probe_device(file, harder).bytes, 0u) << bytes;
        const DeviceLatency latency = probe_latency(file, 50, 10);
        EXPECT_EQ(latency.reads, 50u);
        EXPECT_LE(latency.p50_us, latency.p99_us);
    }
    const PatternFile empty(0);
    EXPECT_THROW(probe_device(File::open(empty.path(), IoMode::kAuto), 1, 1 << 20, 1), std::runtime_error);
}

TEST(DeviceProbe, AFileThatShrankIsAnError) {
    const PatternFile pattern(8 << 20);
    const File file = File::open(pattern.path(), IoMode::kAuto);
    std::filesystem::resize_file(pattern.path(), 1 << 20);
    EXPECT_THROW(probe_device(file, 4, 16 << 20, 10), std::runtime_error);
}

TEST(FileGranule, IsAtLeastThePageAndWhatTheFileSystemStates) {
    const PatternFile pattern(1 << 20);
    const File file = File::open(pattern.path(), IoMode::kAuto);
    EXPECT_GE(file.granule(), page_size());
    EXPECT_GE(file.granule(), file.stated_offset_align());
    EXPECT_GE(file.granule(), file.stated_memory_align());
    EXPECT_EQ(file.granule() & (file.granule() - 1), 0u);
    EXPECT_EQ(file.direct(), file.why_buffered().empty());
}

}  // namespace
}  // namespace weir::pager
