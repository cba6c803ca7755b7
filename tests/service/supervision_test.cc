// What the service manager is told, what it hands over, and when its watchdog is fed.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/error.h"
#include "runtime/service/frame_budget.h"
#include "runtime/service/service_manager.h"
#include "runtime/service/watchdog_feeder.h"
#include "runtime/severity.h"

namespace weir::test {
namespace {

using namespace std::chrono_literals;

// A manager's end of the notify socket.
class NotifySocket {
  public:
    explicit NotifySocket(std::string name)
        : name_(std::move(name)), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address = {};
        address.sun_family = AF_UNIX;
        name_.copy(address.sun_path, sizeof address.sun_path - 1);
        if (name_[0] == '@') address.sun_path[0] = '\0';
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
        EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0) << std::strerror(errno);
    }
    ~NotifySocket() {
        ::close(fd_);
        if (name_[0] == '/') ::unlink(name_.c_str());
    }
    // What was sent; "" where nothing comes within a moment.
    std::string next() {
        pollfd poll_fd = {fd_, POLLIN, 0};
        if (::poll(&poll_fd, 1, 100) != 1) return "";
        char text[512];
        const ssize_t n = ::recv(fd_, text, sizeof text, 0);
        return n < 0 ? "" : std::string(text, static_cast<size_t>(n));
    }
    const std::string& name() const { return name_; }

  private:
    std::string name_;
    int fd_;
};

class Supervision : public ::testing::Test {
  protected:
    void TearDown() override {
        for (const char* name : kVariables) ::unsetenv(name);
    }
    static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
    static std::string own_pid() { return std::to_string(::getpid()); }
    static std::string socket_name(const char* prefix) { return prefix + ("weir-notify-" + own_pid()); }
    static constexpr const char* kVariables[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC",  "WATCHDOG_PID",  "LISTEN_PID",
                                                 "LISTEN_FDS",    "LISTEN_FDNAMES", "JOURNAL_STREAM"};
};

TEST_F(Supervision, WithoutAManagerNothingHappens) {
    ServiceManager manager;
    EXPECT_FALSE(manager.listens());
    EXPECT_EQ(manager.watchdog(), 0us);
    EXPECT_EQ(manager.take_socket(), -1);
    manager.notify("READY=1");
    manager.status("well");
    manager.reloading();
}

TEST_F(Supervision, TheManagerIsTold) {
    for (const std::string& name : {socket_name("/tmp/"), socket_name("@")}) {
        NotifySocket socket(name);
        set("NOTIFY_SOCKET", name);
        const ServiceManager manager;
        EXPECT_TRUE(manager.listens());
        manager.notify("READY=1");
        EXPECT_EQ(socket.next(), "READY=1");
        manager.status("two\nlines");
        EXPECT_EQ(socket.next(), "STATUS=two lines");
        manager.reloading();
        const std::string reloading = socket.next();
        EXPECT_EQ(reloading.rfind("RELOADING=1\nMONOTONIC_USEC=", 0), 0u) << reloading;
        EXPECT_GT(std::stoull(reloading.substr(reloading.rfind('=') + 1)), 0u);
        EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr) << "children are told nothing";
    }
}

TEST_F(Supervision, AManagerThatHasGoneIsNoError) {
    for (const char* name : {"/nowhere/at/all", "vsock:2:1234", "@weir-nobody", ""}) {
        set("NOTIFY_SOCKET", name);
        const ServiceManager manager;
        manager.notify("READY=1");
    }
    set("NOTIFY_SOCKET", "/" + std::string(300, 'x'));
    EXPECT_FALSE(ServiceManager().listens());
}

TEST_F(Supervision, AWatchdogMeansOneProcess) {
    set("WATCHDOG_USEC", "3000000");
    EXPECT_EQ(ServiceManager().watchdog(), 3s);
    set("WATCHDOG_USEC", "3000000");
    set("WATCHDOG_PID", own_pid());
    EXPECT_EQ(ServiceManager().watchdog(), 3s);
    set("WATCHDOG_USEC", "3000000");
    set("WATCHDOG_PID", "1");
    EXPECT_EQ(ServiceManager().watchdog(), 0s);
    set("WATCHDOG_USEC", "soon");
    EXPECT_EQ(ServiceManager().watchdog(), 0s);
}

// The third descriptor is the one that is handed over, whatever it is here.
class HandedOver : public Supervision {
  protected:
    void SetUp() override { saved_ = ::fcntl(3, F_DUPFD_CLOEXEC, 10); }
    void TearDown() override {
        Supervision::TearDown();
        ::close(3);
        if (saved_ >= 0) ::dup2(saved_, 3), ::close(saved_);
    }
    static void hand_over(int type, bool listens) {
        const int fd = ::socket(AF_INET, type, 0);
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        if (listens) {
            ASSERT_EQ(::listen(fd, 4), 0);
        }
        if (fd != 3) ::dup2(fd, 3), ::close(fd);
        set("LISTEN_PID", own_pid());
        set("LISTEN_FDS", "1");
    }
    int saved_ = -1;
};

TEST_F(HandedOver, OneSocketThatListensIsTaken) {
    hand_over(SOCK_STREAM, true);
    ServiceManager manager;
    EXPECT_EQ(manager.take_socket(), 3);
    EXPECT_EQ(manager.take_socket(), -1);
    EXPECT_EQ(::fcntl(3, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(std::getenv("LISTEN_FDS"), nullptr);
}

TEST_F(HandedOver, SocketsOfOthersAreLeftAlone) {
    hand_over(SOCK_STREAM, true);
    set("LISTEN_PID", "1");
    EXPECT_EQ(ServiceManager().take_socket(), -1);
    EXPECT_GE(::fcntl(3, F_GETFD), 0);
}

TEST_F(HandedOver, OtherThingsAreErrors) {
    hand_over(SOCK_STREAM, false);
    EXPECT_THROW(ServiceManager(), Error);
    hand_over(SOCK_DGRAM, false);
    EXPECT_THROW(ServiceManager(), Error);
    hand_over(SOCK_STREAM, true);
    set("LISTEN_FDS", "2");
    EXPECT_THROW(ServiceManager(), Error);
}

// Waits until it holds, 10 s at most.
template <typename Condition>
bool comes(Condition&& condition) {
    for (int i = 0; i < 10'000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(1ms);
    }
    return false;
}

TEST(WatchdogFeeder, FeedsWhileWorkMovesOrThereIsNone) {
    std::atomic<int> probes{0}, feeds{0}, silences{0};
    std::atomic<bool> working{false};
    std::atomic<uint64_t> moves{0};
    std::atomic<bool> moving{true};
    WatchdogFeeder feeder(2ms, {.probe = [&] { ++probes; },
                                .beat =
                                    [&] {
                                        return Beat{working.load(), moving ? ++moves : moves.load()};
                                    },
                                .feed = [&] { ++feeds; },
                                .on_silence = [&] { ++silences; }});
    EXPECT_TRUE(comes([&] { return feeds > 5; })) << "idle";
    working = true;
    const int before = feeds;
    EXPECT_TRUE(comes([&] { return feeds > before + 5; })) << "working";
    moving = false;
    EXPECT_TRUE(comes([&] { return silences > 0; }));
    const int fed = feeds, probed = probes;
    EXPECT_TRUE(comes([&] { return probes > probed + 5; }));
    EXPECT_EQ(feeds, fed) << "stuck, and fed all the same";
    EXPECT_EQ(silences, 1);
    working = false;
    EXPECT_TRUE(comes([&] { return feeds > fed; })) << "idle again";
}

TEST(WatchdogFeeder, DoesNotFeedWhileAProbeIsNotAnswered) {
    std::atomic<bool> answered{true};
    std::atomic<int> feeds{0}, asked{0};
    WatchdogFeeder feeder(2ms, {.probe =
                                    [&] {
                                        ++asked;
                                        answered.wait(false);
                                    },
                                .beat = [] { return Beat{}; },
                                .feed = [&] { ++feeds; },
                                .on_silence = [] {}});
    EXPECT_TRUE(comes([&] { return feeds > 3; }));
    answered = false;
    const int before = asked;
    EXPECT_TRUE(comes([&] { return asked > before; }));
    const int fed = feeds;
    std::this_thread::sleep_for(20ms);
    EXPECT_LE(feeds, fed + 1);  // the one that was on its way
    answered = true;
    answered.notify_all();
    EXPECT_TRUE(comes([&] { return feeds > fed + 1; }));
}

TEST(FrameBudget, AtRestPressureIsOnlyRemembered) {
    std::vector<uint64_t> set;
    FrameBudget frames(100, [&](uint64_t bytes) {
        set.push_back(bytes);
        return bytes / 2;
    });
    EXPECT_EQ(frames.allow(80), 40u);
    frames.rest(true);
    frames.rest(true);
    EXPECT_EQ(frames.allow(60), 60u);
    frames.rest(false);
    EXPECT_EQ(set, (std::vector<uint64_t>{80, 0, 60}));
}

TEST_F(Supervision, LinesHaveASeverityForTheJournalAlone) {
    EXPECT_STREQ(severity_prefix(Severity::kError), "");
    struct stat err = {};
    ASSERT_EQ(::fstat(STDERR_FILENO, &err), 0);
    set("JOURNAL_STREAM", std::to_string(err.st_dev) + ":" + std::to_string(err.st_ino));
    EXPECT_STREQ(severity_prefix(Severity::kError), "<3>");
    EXPECT_STREQ(severity_prefix(Severity::kWarning), "<4>");
    for (const std::string& other :
         {std::to_string(err.st_dev) + ":1" + std::to_string(err.st_ino), std::string("nonsense"), std::string()}) {
        set("JOURNAL_STREAM", other);
        EXPECT_STREQ(severity_prefix(Severity::kError), "") << other;
    }
}

}  // namespace
}  // namespace weir::test
