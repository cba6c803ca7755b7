// The pager itself goes wrong: its thread ends or is stuck, its userfaultfd is closed under it. Nobody hangs and nobody
// reads a wrong byte: the process goes on, or it reports and ends within about a second.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "pager/mapping.h"
#include "pager/pager.h"
#include "pager/system.h"
#include "tests/pager/fault_fixture.h"

namespace weir::test {
namespace {

using pager::PagerOptions;

// Numbers of this process's descriptors that are userfaultfds, ascending.
std::vector<int> uffds() {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
        if (target.find("userfaultfd") != std::string::npos) found.push_back(std::stoi(entry.path().filename().string()));
    }
    std::sort(found.begin(), found.end());
    return found;
}

// The pager looks at these numbers meanwhile, on purpose: past the C library, or ThreadSanitizer takes that for a race.
void close_behind(int fd) { ::syscall(SYS_close, fd); }
int open_behind(const std::string& path) {
    return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC));
}

class PagerEnd : public PagerFaults {
  protected:
    void SetUp() override {
        WEIR_NEEDS_UFFD();
        ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    }
    // In a child: walks with a team of two until it is ended, or says that it was not.
    [[noreturn]] void walk_to_the_end(ReadFault fault, bool gates, PagerOptions o) {
        if (fault != ReadFault::kNone) o.read_queue = std::make_unique<FaultyQueue>(fault, Nth{20, true});
        o.gates = gates;
        const bool through = walk(std::move(o));
        end(through ? "walked to the end" : failure_.c_str());
    }
    void expect_end(ReadFault fault, const char* text) {
        for (const bool gates : {true, false}) {
            const auto begin = std::chrono::steady_clock::now();
            EXPECT_EXIT(walk_to_the_end(fault, gates, options()), ::testing::ExitedWithCode(70), text);
            // The limit of this test is 0.3 s (0.7 s by default); the rest is starting a child, on a busy machine.
            EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
        }
    }
};

TEST_F(PagerEnd, AThreadThatEndedEndsTheProcess) { expect_end(ReadFault::kExit, "unanswerable: the pager thread has ended"); }
TEST_F(PagerEnd, AThreadThatSleepsForEverEndsTheProcess) { expect_end(ReadFault::kStuck, "unanswerable: the pager thread does not answer"); }
TEST_F(PagerEnd, AThreadThatSpinsForEverEndsTheProcess) { expect_end(ReadFault::kSpin, "unanswerable: the pager thread does not answer"); }
TEST_F(PagerEnd, AQueueThatBreaksEndsTheProcess) { expect_end(ReadFault::kBroken, "unanswerable: waiting for reads: Bad file"); }

TEST_F(PagerEnd, AnIoctlThatDoesNotReturnEndsTheProcess) {
    for (const bool gates : {true, false}) {
        EXPECT_EXIT(
            {
                std::atomic<uint64_t> count{0};
                PagerOptions o = options();
                o.install = pager::InstallRung::kCopy;
                o.ioctl_call = faulty_ioctl({.call = Call::kCopy, .when = {20, true}, .stuck = true}, &count);
                walk_to_the_end(ReadFault::kNone, gates, std::move(o));
            },
            ::testing::ExitedWithCode(70), "unanswerable: the pager thread does not answer");
    }
}

// A probe sleeps in a fault as a worker does: it comes back, or the process ends.
TEST_F(PagerEnd, AProbeThatNobodyAnswersEndsTheProcess) {
    EXPECT_EXIT(
        {
            PagerOptions o = options();
            o.read_queue = std::make_unique<FaultyQueue>(ReadFault::kStuck, Nth{1, true});
            auto pager = start(std::move(o));
            pager->probe_faults();
            pager->plan(0, 0, kExtents);
            ::usleep(50'000);
            pager->probe_faults();
            end("the probe came back");
        },
        ::testing::ExitedWithCode(70), "unanswerable: the pager thread does not answer");
}

// Whoever destroys a pager that is stuck would wait for ever just as well.
TEST_F(PagerEnd, AStuckThreadDoesNotHoldUpTheEnd) {
    EXPECT_EXIT(
        {
            PagerOptions o = options();
            o.read_queue = std::make_unique<FaultyQueue>(ReadFault::kStuck, Nth{1, true});
            auto pager = start(std::move(o));
            pager->plan(0, 0, kExtents);
            ::usleep(50'000);
            pager.reset();
            end("the pager could be stopped");
        },
        ::testing::ExitedWithCode(70), "unanswerable: the pager thread does not answer");
}

TEST_F(PagerEnd, ClosingOneDescriptorIsHarmless) {
    for (const size_t which : {0, 1}) {
        for (const bool number_taken : {false, true}) {
            for (const bool gates : {true, false}) {
                SCOPED_TRACE(which);
                std::string notice;
                std::atomic<bool> noticed{false};
                int taken = -1;
                PagerOptions o = options();
                o.gates = gates;
                o.on_notice = [&](const char* text) {
                    notice = text;
                    noticed = true;
                };
                const bool through = walk(std::move(o), [&](pager::Pager&, uint64_t ordinal) {
                    if (ordinal == 2 * kExtents + 5) ::usleep(150'000);  // the watchdog says it within 100 ms
                    if (ordinal != kExtents + 5) return;
                    const std::vector<int> open = uffds();
                    ASSERT_EQ(open.size(), 2u);
                    close_behind(open[which]);
                    if (number_taken) taken = open_behind(pattern_.path());
                    ASSERT_EQ(taken, number_taken ? open[which] : -1);
                });
                EXPECT_TRUE(through) << failure_;
                EXPECT_EQ(stats_.restored, which == 0 ? 1u : 0u);
                EXPECT_EQ(noticed, which == 0);
                EXPECT_TRUE(!noticed || notice.find("second descriptor") != std::string::npos) << notice;
                if (taken >= 0) {
                    EXPECT_EQ(::fcntl(taken, F_GETFD), FD_CLOEXEC) << "a descriptor of somebody else was closed";
                    close_behind(taken);
                }
            }
        }
    }
}

TEST_F(PagerEnd, ClosingBothDescriptorsEndsTheProcess) {
    for (const bool gates : {true, false}) {
        EXPECT_EXIT(
            {
                PagerOptions o = options();
                o.gates = gates;
                (void)walk(std::move(o), [](pager::Pager&, uint64_t ordinal) {
                    if (ordinal != kExtents + 5) return;
                    for (const int fd : uffds()) close_behind(fd);
                });
                end(failure_.c_str());
            },
            ::testing::ExitedWithCode(70), "unanswerable: (.*Bad file descriptor|the userfaultfd was closed)");
    }
}

// Why all this: a thread that sleeps in a fault when the last descriptor closes goes on, and reads zeros.
TEST_F(PagerEnd, AfterTheLastCloseReadersWouldSeeZeros) {
    pager::Uffd uffd(pager::UffdSource::kAuto);
    const size_t page = pager::page_size();
    const pager::Mapping mapping(page, page, false, "test page");
    ASSERT_EQ(uffd.register_range(mapping.base(), page), 0);
    std::atomic<int> seen{-1};
    std::jthread reader([&] { seen = static_cast<int>(*static_cast<volatile std::byte*>(mapping.base())); });
    struct pollfd fault = {uffd.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&fault, 1, 10'000), 1);
    const std::vector<int> open = uffds();
    ASSERT_EQ(open.size(), 2u);
    close_behind(open[0]);
    ::usleep(20'000);
    EXPECT_EQ(seen, -1) << "one of two descriptors: the reader sleeps on";
    close_behind(open[1]);
    reader.join();
    EXPECT_EQ(seen, 0);
}

}  // namespace
}  // namespace weir::test
