// The kernel refuses to move, copy, register or wake: the N-th call, each errno once and for good. No byte is wrong,
// nothing hangs; what can go on by another way does.
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <thread>

#include "pager/frame_pool.h"
#include "pager/installer.h"
#include "pager/pager.h"
#include "tests/pager/fault_fixture.h"

namespace weir::test {
namespace {

using pager::InstallRung;
using pager::PagerOptions;

class IoctlFaults : public PagerFaults {
  protected:
    void SetUp() override {
        WEIR_NEEDS_UFFD();
        moves_ = pager::Uffd(pager::UffdSource::kAuto).has_move();
    }
    bool walk_with(const IoctlFault& fault, InstallRung install, bool gates = true) {
        count_ = 0;
        PagerOptions o = options();
        o.install = install;
        o.gates = gates;
        o.ioctl_call = faulty_ioctl(fault, &count_);
        return walk(std::move(o));
    }
    static std::string describe(const IoctlFault& f, bool gates) {
        return std::string(std::strerror(f.error)) + (f.part ? " after a part" : "") + " at call " +
               std::to_string(f.when.nth) + (f.when.for_good ? " for good" : "") + (gates ? "" : ", without gates");
    }

    bool moves_ = false;
    std::atomic<uint64_t> count_{0};
};

constexpr int kErrors[] = {EAGAIN, EBUSY, ENOMEM, ENOSPC, EEXIST, EINVAL};

TEST_F(IoctlFaults, AMoveThatFailsOnceCostsNothingButTime) {
    if (!moves_) GTEST_SKIP() << "no UFFDIO_MOVE here";
    ASSERT_TRUE(walk_with({.call = Call::kMove, .when = {UINT64_MAX, false}}, InstallRung::kMove));
    const uint64_t calls = count_;
    for (const int error : kErrors) {
        for (uint64_t nth = 1; nth <= calls; ++nth) {
            const bool part = nth % 2 != 0, gates = nth / 2 % 2 != 0;
            const IoctlFault fault = {.call = Call::kMove, .error = error, .when = {nth, false}, .part = part};
            ASSERT_TRUE(walk_with(fault, InstallRung::kMove, gates)) << describe(fault, gates) << ": " << failure_;
        }
    }
}

TEST_F(IoctlFaults, WhatCanNeverBeMovedIsCopied) {
    if (!moves_) GTEST_SKIP() << "no UFFDIO_MOVE here";
    for (const int error : {EAGAIN, EBUSY, EEXIST, EINVAL}) {
        for (const uint64_t nth : {1, 2, 15, 40}) {
            for (const bool part : {false, true}) {
                for (const bool gates : {true, false}) {
                    const IoctlFault fault = {.call = Call::kMove, .error = error, .when = {nth, true}, .part = part};
                    ASSERT_TRUE(walk_with(fault, InstallRung::kMove, gates)) << describe(fault, gates) << ": " << failure_;
                    EXPECT_GT(stats_.copied_moves + stats_.hollow_frames, 0u) << describe(fault, gates);
                }
            }
        }
    }
}

TEST_F(IoctlFaults, ACopyThatFailsOnceCostsNothingButTime) {
    ASSERT_TRUE(walk_with({.call = Call::kCopy, .when = {UINT64_MAX, false}}, InstallRung::kCopy));
    const uint64_t calls = count_;
    for (const int error : {EAGAIN, EBUSY, ENOMEM, ENOSPC, EEXIST}) {
        for (uint64_t nth = 1; nth <= calls; ++nth) {
            const bool part = nth % 2 != 0, gates = nth / 2 % 2 != 0;
            const IoctlFault fault = {.call = Call::kCopy, .error = error, .when = {nth, false}, .part = part};
            ASSERT_TRUE(walk_with(fault, InstallRung::kCopy, gates)) << describe(fault, gates) << ": " << failure_;
        }
    }
}

TEST_F(IoctlFaults, WhatCannotGoOnEndsInOneText) {
    const auto fails = [&](Call call, int error, InstallRung install, const char* text) {
        for (const uint64_t nth : {1, 2, 15, 30}) {
            const IoctlFault fault = {.call = call, .error = error, .when = {nth, true}};
            EXPECT_FALSE(walk_with(fault, install)) << describe(fault, true);
            EXPECT_NE(failure_.find("installing Extent"), std::string::npos) << failure_;
            EXPECT_NE(failure_.find(text), std::string::npos) << failure_;
        }
    };
    fails(Call::kCopy, EINVAL, InstallRung::kCopy, "copying it failed: Invalid argument");
    fails(Call::kCopy, EEXIST, InstallRung::kCopy, "copying it failed: File exists");
    fails(Call::kCopy, EAGAIN, InstallRung::kCopy, "copying it failed: Resource temporarily unavailable");
    fails(Call::kCopy, ENOMEM, InstallRung::kCopy, "copying it failed: Cannot allocate memory");
    fails(Call::kCopy, ESRCH, InstallRung::kCopy, "the process is ending");
    if (!moves_) return;
    fails(Call::kMove, ENOMEM, InstallRung::kMove, "moving it failed: Cannot allocate memory");
    fails(Call::kMove, ESRCH, InstallRung::kMove, "the process is ending");
}

// Pages that vanish from a frame before it is moved: absent for the move and, by a fault of the kernel's own, for a copy.
TEST_F(IoctlFaults, AFrameThatLostPagesIsReadOnceMore) {
    if (!moves_) GTEST_SKIP() << "no UFFDIO_MOVE here";
    const auto losing = [&](Nth when) {
        return [this, when](int fd, unsigned long request, void* argument) -> int {
            if (_IOC_NR(request) != static_cast<unsigned>(Call::kMove) || !when.hits(++count_))
                return ::ioctl(fd, request, argument);
            const uint64_t page = pager::page_size();  // of uffdio_move: the source's last page
            const auto* const words = static_cast<uint64_t*>(argument);
            (void)::madvise(reinterpret_cast<void*>(words[1] + words[2] - page), page, MADV_DONTNEED);
            return ::ioctl(fd, request, argument);
        };
    };
    for (const bool gates : {true, false}) {
        count_ = 0;
        PagerOptions count = options();
        count.install = InstallRung::kMove;
        count.gates = gates;
        count.ioctl_call = losing({UINT64_MAX, false});
        ASSERT_TRUE(walk(std::move(count)));
        EXPECT_EQ(stats_.lost_frames, 0u);
        uint64_t lost = 0;
        const uint64_t calls = count_;
        for (uint64_t nth = 1; nth <= calls; nth += 3) {
            for (const bool for_good : {false, true}) {
                count_ = 0;
                PagerOptions o = options();
                o.install = InstallRung::kMove;
                o.gates = gates;
                o.ioctl_call = losing({nth, for_good});
                ASSERT_TRUE(walk(std::move(o))) << "call " << nth << ": " << failure_;
                EXPECT_LE(stats_.lost_frames, for_good ? kExtents : 1);
                lost += stats_.lost_frames;
            }
        }
        EXPECT_GT(lost, calls / 9) << "two runs in three calls, and a third of the moves installs at least";
    }
}

// The same while three frames are held until moving is all but given up: they have lost their pages too.
TEST_F(IoctlFaults, HeldFramesThatLostPagesAreReadOnceMore) {
    if (!moves_) GTEST_SKIP() << "no UFFDIO_MOVE here";
    std::set<uint64_t> held;  // slots
    uint64_t refused = 0;     // moves of others
    PagerOptions o = options();
    o.install = InstallRung::kMove;
    o.ioctl_call = [&](int fd, unsigned long request, void* argument) -> int {
        if (_IOC_NR(request) != static_cast<unsigned>(Call::kMove)) return ::ioctl(fd, request, argument);
        const uint64_t page = pager::page_size();
        auto* const words = static_cast<uint64_t*>(argument);  // of uffdio_move: dst, src, len, mode, move
        (void)::madvise(reinterpret_cast<void*>(words[1] + words[2] - page), page, MADV_DONTNEED);
        if (held.size() < 3) held.insert(words[0]);
        const bool is_held = held.contains(words[0]);
        if (!is_held || refused >= pager::Installer::kMaxRefusals - 1) {
            refused += !is_held;
            return ::ioctl(fd, request, argument);
        }
        words[4] = static_cast<uint64_t>(-EBUSY);
        errno = EBUSY;
        return -1;
    };
    ASSERT_TRUE(walk(std::move(o))) << failure_;
    EXPECT_GT(stats_.busy_retries, 0u);
    EXPECT_GE(stats_.lost_frames, pager::Installer::kMaxRefusals);
}

TEST_F(IoctlFaults, FramesThatAlwaysLosePagesEndInOneText) {
    if (!moves_) GTEST_SKIP() << "no UFFDIO_MOVE here";
    for (const uint64_t nth : {1, 2, 15, 30}) {
        PagerOptions o = options();
        o.install = InstallRung::kMove;
        o.read_queue = std::make_unique<FaultyQueue>(ReadFault::kVanished, Nth{nth, true});
        EXPECT_FALSE(walk(std::move(o))) << "read " << nth;
        EXPECT_GE(stats_.lost_frames, 8u);
        EXPECT_NE(failure_.find("copying it failed: pages of its frame are gone"), std::string::npos) << failure_;
    }
}

TEST_F(IoctlFaults, RegistrationThatFails) {
    for (const uint64_t nth : {1, 2}) {  // the Region, the probe's page
        EXPECT_THROW(walk_with({.call = Call::kRegister, .error = ENOMEM, .when = {nth, true}}, InstallRung::kAuto),
                     std::runtime_error);
    }
    if (!moves_) return;
    EXPECT_FALSE(walk_with({.call = Call::kRegister, .error = ENOMEM, .when = {3, true}}, InstallRung::kMove));
    EXPECT_NE(failure_.find("memory for the frames"), std::string::npos) << failure_;
}

// A thread that is not woken sleeps for ever. It takes luck to need a wake: a fault whose message comes after its page.
TEST_F(IoctlFaults, WakingThatFailsForGoodEndsTheProcess) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
            PagerOptions o = options();
            o.workers = 4;
            o.gates = false;
            o.ioctl_call = faulty_ioctl({.call = Call::kWake, .error = EINVAL, .when = {1, true}}, &count_);
            auto pager = start(std::move(o));
            for (size_t round = 0; round < 1000; ++round) {
                std::vector<std::jthread> team;
                for (size_t w = 0; w < 4; ++w) team.emplace_back([&] { EXPECT_TRUE(is_right(*pager, round % kExtents)); });
            }
            end("waking was never needed");
        },
        ::testing::ExitedWithCode(70), "unanswerable: waking");
}

// A frame that came back is registered; populating it so would be a fault of the pool's own.
TEST_F(IoctlFaults, FramesThatCannotBeUnregisteredAreTriedAgainAsSuch) {
    constexpr size_t kFrames = 4, kFrameBytes = 64 << 10;
    std::atomic<int> refusals{0};
    pager::Uffd uffd(pager::UffdSource::kAuto, [&](int fd, unsigned long request, void* argument) {
        if (request == UFFDIO_UNREGISTER && refusals.exchange(1) == 0) {
            errno = ENOMEM;
            return -1;
        }
        return ::ioctl(fd, request, argument);
    });
    pager::FramePool pool(kFrames, kFrames, kFrameBytes, &uffd, [] {});
    const auto until = [](auto&& holds) {
        for (int i = 0; i < 5000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return holds();
    };
    ASSERT_TRUE(until([&] { return pool.backed() == kFrames; }));
    uint32_t frame = 0;
    ASSERT_TRUE(pool.take(&frame));
    pool.want(kFrames - 1);
    pool.give(frame);
    ASSERT_TRUE(until([&] { return pool.backed() == kFrames - 1; }));
    pool.want(kFrames);
    ASSERT_TRUE(until([&] { return pool.error() == ENOMEM; }));
    pool.want(kFrames);
    EXPECT_TRUE(until([&] { return pool.backed() == kFrames; })) << std::strerror(pool.error());
    EXPECT_EQ(pool.error(), 0);
}

// Probes beside a team that walks: they are no faults of the Region's, and what passes is borne.
TEST_F(IoctlFaults, AProbeIsAnsweredHoweverOften) {
    if (!moves_) GTEST_SKIP() << "no UFFDIO_MOVE here: Extents are copied too";
    for (const int error : {0, ENOMEM, EAGAIN, EEXIST}) {
        std::atomic<uint64_t> count{0};
        PagerOptions o = options();
        o.install = InstallRung::kMove;
        if (error != 0) o.ioctl_call = faulty_ioctl({.call = Call::kCopy, .error = error, .when = {2, false}}, &count);
        size_t probes = 0;
        EXPECT_TRUE(walk(std::move(o), [&](pager::Pager& pager, uint64_t ordinal) {
            if (ordinal % 8 != 0) return;
            pager.probe_faults();
            ++probes;
        })) << failure_;
        EXPECT_EQ(stats_.faults, 0u);
        EXPECT_GE(count, error == 0 ? 0u : probes + 1) << "one was answered at the second attempt";
    }
}

}  // namespace
}  // namespace weir::test
