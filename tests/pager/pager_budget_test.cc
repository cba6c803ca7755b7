// The budget changes while a team walks: every byte stays right, what is held follows the budget, and nothing is read
// for the change itself.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <random>
#include <thread>

#include "pager/pager.h"
#include "pager/residency_policy.h"
#include "pager/system.h"
#include "tests/pager/fault_fixture.h"

namespace weir::test {
namespace {

constexpr size_t kSmall = 64 << 10;
constexpr size_t kHuge = 2 << 20;

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using pager::InstallRung;
using pager::PagerOptions;

struct Case {
    const char* name;
    size_t extent_bytes;
    size_t workers;
    bool gates;
    bool plans;
    InstallRung install;
};

class Budget : public ::testing::TestWithParam<Case> {
  protected:
    void SetUp() override { WEIR_NEEDS_UFFD(); }

    void open(const Case& c, size_t frames) {
        case_ = c;
        pattern_ = std::make_unique<PatternFile>(n_ * c.extent_bytes);
        file_ = std::make_unique<pager::File>(pager::File::open(pattern_->path(), pager::IoMode::kAuto));
        ranges_ = {{0, 0, n_ * c.extent_bytes}};
        PagerOptions o;
        o.workers = c.workers;
        o.frames = frames;
        o.gates = c.gates;
        o.install = c.install;
        o.on_unanswerable = end;
        pager_ = pager::Pager::start(*file_, pager::cut_layout(ranges_, c.extent_bytes), std::move(o));
    }

    // A team walks passes [first, first + n), until it is done or `stop`. Returns passes walked.
    size_t walk(size_t first, size_t n, const std::atomic<bool>* stop = nullptr) {
        std::barrier gate(static_cast<ptrdiff_t>(case_.workers));
        std::atomic<size_t> walked{0};
        std::atomic<bool> leave{false};
        std::vector<std::jthread> team;
        for (size_t w = 0; w < case_.workers; ++w) {
            team.emplace_back([&, w] {
                for (size_t pass = first; pass < first + n; ++pass) {
                    if (w == 0 && case_.plans) {
                        if (pass == first) pager_->plan(pass * n_, 0, n_);
                        if (pass + 1 < first + n) pager_->plan((pass + 1) * n_, 0, n_);
                    }
                    if (w == 0) leave = stop != nullptr && stop->load();
                    gate.arrive_and_wait();
                    if (leave) return;
                    for (size_t e = 0; e < n_; ++e) {
                        if (!pager_->acquire(w, e, e)) right_ = false;
                        const uint64_t part = case_.extent_bytes / case_.workers;
                        const uint64_t begin = e * case_.extent_bytes + w * part;
                        if (!image_is_right(pager_->region(), ranges_, begin, begin + part, pattern_->bytes())) right_ = false;
                        pager_->publish(w, pass * n_ + e + 1);
                    }
                    gate.arrive_and_wait();
                    if (w == 0) ++walked;
                }
            });
        }
        team.clear();
        return walked;
    }

    // Waits until no more frames hold memory than the budget says; false where that does not come. Frames that were being
    // populated when the budget shrank may still come and go for a moment after it.
    bool comes_to_hold(int patience_ms = 500) const {
        return comes_to([](const pager::PagerStats& s) { return s.held_frames <= s.budget_frames; }, patience_ms);
    }
    // Waits until all frames of the budget hold memory and no other does.
    bool settles() const {
        return comes_to([](const pager::PagerStats& s) { return s.held_frames == s.budget_frames; }, 5000);
    }
    template <typename Condition>
    bool comes_to(Condition condition, int patience_ms) const {
        for (int i = 0; i < patience_ms; ++i) {
            if (condition(pager_->stats())) return true;
            std::this_thread::sleep_for(1ms);
        }
        return false;
    }

    size_t n_ = 64;  // Extents
    Case case_{};
    std::unique_ptr<PatternFile> pattern_;
    std::unique_ptr<pager::File> file_;
    std::vector<pager::ImageRange> ranges_;
    std::unique_ptr<pager::Pager> pager_;
    std::atomic<bool> right_{true};
};

TEST_P(Budget, GoesUpAndDownAtRandomWhileATeamWalks) {
    const Case c = GetParam();
    open(c, 40);
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::atomic<bool> stop{false};
    size_t walked = 0;
    std::jthread walker([&] { walked = walk(0, SIZE_MAX / n_ / 2, &stop); });
    const auto until = Clock::now() + 2s;
    while (Clock::now() < until || pager_->stats().budget_changes <= 20) {
        const size_t wanted = random() % (n_ + 10);
        const size_t in_force = pager_->set_budget(wanted);
        EXPECT_GE(in_force, std::min(wanted, n_));
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 30));
        if (random() % 4 != 0) continue;  // else: several changes in a row, one of which may never be seen
        EXPECT_TRUE(comes_to_hold()) << pager_->stats().held_frames << " frames hold memory, " << in_force << " in force";
    }
    stop = true;
    walker.join();
    EXPECT_TRUE(right_);
    EXPECT_GE(walked, 1u);  // dozens, but for instrumented walkers on a busy machine
    EXPECT_EQ(pager_->failure(), "");
}

TEST_P(Budget, TheRingChangesItsLengthWhileATeamWalks) {
    const Case c = GetParam();
    if (c.extent_bytes != kSmall) return;  // the ring has a choice from some 300 Extents on
    n_ = 800;
    open(c, 200);
    std::mt19937 random(7);
    std::atomic<bool> stop{false};
    std::jthread walker([&] { walk(0, SIZE_MAX / n_ / 2, &stop); });
    for (int change = 0; change < 60; ++change) {
        if (random() % 4 == 0) pager_->set_budget(150 + random() % 100);
        pager_->set_ring(random() % 40);
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 30));
        const pager::PagerStats s = pager_->stats();
        EXPECT_EQ(s.ring_frames + s.pinned_extents, s.budget_frames);
        EXPECT_GE(s.ring_frames, pager::shortest_ring());
        EXPECT_LE(s.ring_frames, pager::longest_ring(n_));
    }
    EXPECT_TRUE(comes_to_hold());
    stop = true;
    walker.join();
    EXPECT_TRUE(right_);
    EXPECT_EQ(pager_->failure(), "");
}

TEST_P(Budget, ShrinksWhileNobodyWalks) {
    const Case c = GetParam();
    open(c, n_ + 2);
    walk(0, 2);
    for (const size_t frames : {50, 30, 0, 40, 12}) {
        const size_t in_force = pager_->set_budget(frames);
        EXPECT_GE(in_force, frames);
        const bool all_backed = c.install == InstallRung::kAuto;  // by copying, frames are had as Extents come
        EXPECT_TRUE(comes_to_hold()) << pager_->stats().held_frames << " of " << in_force;
        EXPECT_TRUE(!all_backed || settles()) << pager_->stats().held_frames << " of " << in_force;
    }
    walk(2, 2);
    EXPECT_TRUE(right_);
}

TEST_P(Budget, ShrinksAtOnceThoughAWorkerSitsOut) {
    const Case c = GetParam();
    open(c, n_ + 2);
    walk(0, 1);
    if (c.plans) pager_->plan(n_, 0, n_);
    for (size_t w = 1; w < c.workers; ++w) pager_->publish(w, pager::Pager::kSitsOut);
    pager_->set_budget(20);  // while worker 0 stands at the beginning of the pass
    EXPECT_TRUE(comes_to_hold(5000)) << pager_->stats().held_frames;
    for (size_t e = 0; e < n_; ++e) {
        ASSERT_TRUE(pager_->acquire(0, e, e));
        EXPECT_TRUE(image_is_right(pager_->region(), ranges_, e * c.extent_bytes, (e + 1) * c.extent_bytes, pattern_->bytes()));
        pager_->publish(0, n_ + e + 1);
    }
    for (size_t w = 1; w < c.workers; ++w) pager_->publish(w, 2 * n_);
    walk(2, 2);
    EXPECT_TRUE(right_);
}

TEST_P(Budget, NothingIsReadForAChange) {
    const Case c = GetParam();
    if (!c.gates || !c.plans) return;  // only with plans and gates are reads exact
    open(c, 40);
    walk(0, 3);
    size_t pass = 3;
    // Frames that the walk before left, and reads ahead that it did not use.
    const auto slack = [&] { return (pager_->stats().ring_frames + 4) * c.extent_bytes; };
    for (const size_t frames : {20, 30, 55, 25, 64}) {
        pager_->set_budget(frames);
        EXPECT_TRUE(comes_to_hold());
        const uint64_t before = pager_->stats().bytes_read;
        const size_t pinned_before = pager_->stats().pinned_extents;
        walk(pass, 4);
        pass += 4;
        const uint64_t read = pager_->stats().bytes_read - before;
        const uint64_t streamed = n_ - pinned_before;
        // What is newly pinned is read as often as it would have been: in the first pass.
        EXPECT_LE(read, (4 * streamed + n_ - streamed) * c.extent_bytes + slack()) << frames;
        const uint64_t steady_before = pager_->stats().bytes_read;
        walk(pass, 4);
        pass += 4;
        const uint64_t steady = pager_->stats().bytes_read - steady_before;
        EXPECT_LE(steady, 4 * (n_ - pager_->stats().pinned_extents) * c.extent_bytes + slack()) << frames;
    }
    EXPECT_TRUE(right_);
}

TEST_P(Budget, AShorterRingReadsLess) {
    const Case c = GetParam();
    if (!c.gates || !c.plans || c.extent_bytes != kSmall) return;
    n_ = 800;
    open(c, 600);
    walk(0, 3);
    const auto read_in_four_passes = [&](size_t first) {
        const uint64_t before = pager_->stats().bytes_read;
        walk(first, 4);
        return (pager_->stats().bytes_read - before) / c.extent_bytes;
    };
    const size_t longest = pager::longest_ring(n_), shortest = pager::shortest_ring();
    const uint64_t long_ring = read_in_four_passes(3);
    pager_->set_ring(shortest);
    EXPECT_LE(read_in_four_passes(7), long_ring + longest);  // nothing for the change itself
    const uint64_t short_ring = read_in_four_passes(11);
    EXPECT_LE(short_ring + 4 * (longest - shortest), long_ring + longest);
    pager_->set_ring(longest);
    EXPECT_LE(read_in_four_passes(15), long_ring + longest);
    EXPECT_TRUE(right_);
}

INSTANTIATE_TEST_SUITE_P(Rungs, Budget,
                         ::testing::Values(Case{"Move2M", kHuge, 2, true, true, InstallRung::kAuto},
                                           Case{"Move64K", kSmall, 2, true, true, InstallRung::kAuto},
                                           Case{"Move64KFaults", kSmall, 2, false, true, InstallRung::kAuto},
                                           Case{"Move64KNoPlan", kSmall, 2, true, false, InstallRung::kAuto},
                                           Case{"Copy64K", kSmall, 2, true, true, InstallRung::kCopy},
                                           Case{"Copy64KFaults", kSmall, 4, false, true, InstallRung::kCopy}),
                         [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace weir::test
