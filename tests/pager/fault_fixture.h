// A small paged file and a walk over it that compares every byte, for tests in which something goes wrong.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "pager/pager.h"
#include "tests/pager/faulty.h"
#include "tests/pager/live.h"

namespace weir::test {

constexpr size_t kExtent = 64 << 10;
constexpr size_t kExtents = 24;
constexpr size_t kPasses = 3;

[[noreturn]] inline void end(const char* text) {
    std::fprintf(stderr, "unanswerable: %s\n", text);
    std::_Exit(70);
}

class PagerFaults : public ::testing::Test {
  protected:
    static pager::PagerOptions options() {
        pager::PagerOptions o;
        o.frames = 10;
        o.patience = {.no_memory_ms = 150, .stuck_ms = 300, .slow_ms = 5000};
        o.on_unanswerable = end;
        return o;
    }
    std::unique_ptr<pager::Pager> start(pager::PagerOptions o) {
        return pager::Pager::start(file_, pager::cut_layout(ranges_, kExtent), std::move(o));
    }
    bool is_right(const pager::Pager& pager, size_t extent) const {
        return image_is_right(pager.region(), ranges_, extent * kExtent, (extent + 1) * kExtent, pattern_.bytes());
    }

    // Walks some passes; true where everything came, false where the pager gave up, with the reason in failure_.
    // at: called before each Extent.
    bool walk(pager::PagerOptions o, const std::function<void(pager::Pager&, uint64_t)>& at = {}) {
        auto pager = start(std::move(o));
        bool through = true;
        for (uint64_t ordinal = 0; ordinal < kPasses * kExtents && through; ++ordinal) {
            const size_t extent = ordinal % kExtents;
            if (extent == 0) pager->plan(ordinal, 0, kExtents);
            if (at) at(*pager, ordinal);
            through = pager->acquire(0, extent, extent);
            if (!through) break;
            EXPECT_TRUE(is_right(*pager, extent)) << "ordinal " << ordinal;
            pager->publish(0, ordinal + 1);
        }
        stats_ = pager->stats();
        failure_ = pager->failure();
        EXPECT_LE(stats_.peak_frames, 10u);
        return through;
    }

    PatternFile pattern_{kExtents * kExtent};
    pager::File file_ = pager::File::open(pattern_.path(), pager::IoMode::kAuto);
    std::vector<pager::ImageRange> ranges_ = {{0, 0, kExtents * kExtent}};
    pager::PagerStats stats_;
    std::string failure_;
};

}  // namespace weir::test
