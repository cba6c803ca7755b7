// What it costs to install pages in a registered range and to evict them, by each rung of the install ladder and by the
// one that did not make it. `page` is the time per base page, install and evict together.
//
//   install_bench [--benchmark_filter=move.*]
//
// An iteration installs and evicts a stretch of 2 MiB (or one huge page) in pieces of `bytes`. busy:1 keeps a thread of the process running
// on another core, as decode threads do: changes of the page table then interrupt it.
//
//   move_huge   UFFDIO_MOVE of a whole transparent huge page, and back      (the pager's rung)
//   move_base   UFFDIO_MOVE of base pages, and back
//   copy        UFFDIO_COPY, MADV_DONTNEED                                  (the pager's rung before Linux 6.8)
//   continue    UFFDIO_CONTINUE on a memfd, FALLOC_FL_PUNCH_HOLE; `refill` is the time per page to bring a punched page
//               back, which comes on top
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <thread>

#include "pager/mapping.h"
#include "pager/system.h"
#include "pager/uffd.h"

namespace {

using namespace weir::pager;
using Clock = std::chrono::steady_clock;

// What is installed and evicted at a time: 2 MiB, or a huge page where that is larger.
const size_t kStretch = std::max(size_t{2} << 20, pmd_page_size());
// 64 MiB in turn, far more than a second-level cache and its TLB hold, so that each stretch is met cold, as by a walk.
const size_t kStretches = std::max<size_t>(2, (size_t{64} << 20) / kStretch);
const size_t kArea = kStretches * kStretch;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// A thread of this process on another core, where it is asked for.
class Sibling {
  public:
    explicit Sibling(bool busy) {
        if (!busy) return;
        thread_ = std::jthread([](const std::stop_token& stop) {
            std::atomic<uint64_t> n{0};
            while (!stop.stop_requested()) n.fetch_add(1, std::memory_order_relaxed);
        });
    }

  private:
    std::jthread thread_;
};

void populate(const Mapping& m) {
    for (size_t at = 0; at < m.bytes(); at += page_size()) m.base()[at] = std::byte{1};
}

void report(benchmark::State& state) {
    state.counters["page"] = benchmark::Counter(static_cast<double>(kStretch) / static_cast<double>(page_size()),
                                                benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void move(benchmark::State& state, bool huge) {
    const auto bytes = static_cast<size_t>(state.range(0));
    const Sibling sibling(state.range(1) != 0);
    Uffd uffd(UffdSource::kAuto);
    if (!uffd.has_move()) return state.SkipWithError("this kernel has no UFFDIO_MOVE");
    const Mapping region(kArea, kStretch, huge, "Region"), pool(kArea, kStretch, huge, "frames");
    populate(pool);
    if (uffd.register_range(region.base(), kArea) != 0 || uffd.register_range(pool.base(), kArea) != 0)
        return state.SkipWithError("registering failed");
    size_t stretch = 0;
    Outcome outcome = Outcome::kDone;
    // A held page is tried again, as the pager does.
    const auto move_all = [&](std::byte* to, std::byte* from) {
        for (size_t at = 0; at < kStretch && outcome == Outcome::kDone; at += bytes) {
            do outcome = uffd.move(to + at, from + at, bytes);
            while (outcome == Outcome::kBusy);
        }
    };
    for (auto _ : state) {
        std::byte* const slot = region.base() + stretch * kStretch;
        std::byte* const from = pool.base() + stretch * kStretch;
        move_all(slot, from);
        move_all(from, slot);
        if (outcome != Outcome::kDone) return state.SkipWithError("UFFDIO_MOVE failed");
        stretch = (stretch + 1) % kStretches;
    }
    report(state);
    state.counters["huge%"] = 100.0 * static_cast<double>(anon_huge_bytes(pool.base(), kArea)) / static_cast<double>(kArea);
}

void copy(benchmark::State& state) {
    const auto bytes = static_cast<size_t>(state.range(0));
    const Sibling sibling(state.range(1) != 0);
    Uffd uffd(UffdSource::kAuto);
    const Mapping region(kArea, kStretch, false, "Region"), pool(kArea, kStretch, true, "frames");
    populate(pool);
    if (uffd.register_range(region.base(), kArea) != 0) return state.SkipWithError("registering failed");
    size_t stretch = 0;
    for (auto _ : state) {
        std::byte* const slot = region.base() + stretch * kStretch;
        bool ok = true;
        for (size_t at = 0; at < kStretch; at += bytes)
            ok = ok && uffd.copy(slot + at, pool.base() + stretch * kStretch + at, bytes) == Outcome::kDone;
        for (size_t at = 0; at < kStretch; at += bytes) ok = ok && ::madvise(slot + at, bytes, MADV_DONTNEED) == 0;
        if (!ok) return state.SkipWithError("UFFDIO_COPY or MADV_DONTNEED failed");
        stretch = (stretch + 1) % kStretches;
    }
    report(state);
}

// A memfd that is mapped twice: filled through one mapping, installed in the other. The pager does not have this rung.
class MinorFaults {
  public:
    MinorFaults() {
        fd_ = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
        memory_ = ::memfd_create("weir-install-bench", MFD_CLOEXEC);
        struct uffdio_api api = {};
        api.api = UFFD_API;
        api.features = UFFD_FEATURE_MINOR_SHMEM;
        if (fd_ < 0 || memory_ < 0 || ::ftruncate(memory_, kStretch) != 0 || ::ioctl(fd_, UFFDIO_API, &api) != 0) return;
        for (void*& mapping : mappings_) {
            mapping = ::mmap(nullptr, kStretch, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
            if (mapping == MAP_FAILED) return;
        }
        struct uffdio_register request = {};
        request.range = {reinterpret_cast<uintptr_t>(mappings_[1]), kStretch};
        request.mode = UFFDIO_REGISTER_MODE_MINOR;
        ok_ = ::ioctl(fd_, UFFDIO_REGISTER, &request) == 0;
    }
    ~MinorFaults() {
        for (void* mapping : mappings_)
            if (mapping != MAP_FAILED) ::munmap(mapping, kStretch);
        if (memory_ >= 0) ::close(memory_);
        if (fd_ >= 0) ::close(fd_);
    }
    MinorFaults(const MinorFaults&) = delete;
    MinorFaults& operator=(const MinorFaults&) = delete;

    bool ok() const { return ok_; }
    void fill() {
        for (size_t at = 0; at < kStretch; at += page_size()) static_cast<volatile char*>(mappings_[0])[at] = 1;
    }
    bool install(size_t at, size_t bytes) {
        struct uffdio_continue request = {};
        request.range = {reinterpret_cast<uintptr_t>(mappings_[1]) + at, bytes};
        return ::ioctl(fd_, UFFDIO_CONTINUE, &request) == 0;
    }
    bool evict(size_t at, size_t bytes) {
        return ::fallocate(memory_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                           static_cast<off_t>(bytes)) == 0;
    }

  private:
    int fd_ = -1;
    int memory_ = -1;
    void* mappings_[2] = {MAP_FAILED, MAP_FAILED};
    bool ok_ = false;
};

void continue_punch(benchmark::State& state) {
    const auto bytes = static_cast<size_t>(state.range(0));
    const Sibling sibling(state.range(1) != 0);
    MinorFaults memory;
    if (!memory.ok()) return state.SkipWithError("minor faults on shared memory cannot be had");
    double refill = 0;
    for (auto _ : state) {
        const auto begin = Clock::now();
        memory.fill();
        refill += seconds_since(begin);
        const auto filled = Clock::now();
        bool ok = true;
        for (size_t at = 0; at < kStretch; at += bytes) ok = ok && memory.install(at, bytes);
        for (size_t at = 0; at < kStretch; at += bytes) ok = ok && memory.evict(at, bytes);
        state.SetIterationTime(seconds_since(filled));
        if (!ok) return state.SkipWithError("UFFDIO_CONTINUE or the punched hole failed");
    }
    report(state);
    state.counters["refill"] = refill / static_cast<double>(state.iterations()) * static_cast<double>(page_size()) / static_cast<double>(kStretch);
}

void register_all() {
    const size_t pieces[] = {page_size(), size_t{64} << 10, size_t{256} << 10, kStretch};
    for (const int64_t busy : {0, 1}) {
        const auto add = [busy](const char* name, auto function, std::span<const size_t> sizes, bool manual = false) {
            auto* const b = benchmark::RegisterBenchmark(name, function);
            b->ArgNames({"bytes", "busy"})->MinTime(0.2)->Unit(benchmark::kMicrosecond);
            if (manual)
                b->UseManualTime();
            else
                b->UseRealTime();
            for (const size_t bytes : sizes) b->Args({static_cast<int64_t>(bytes), busy});
        };
        add("move_huge", [](benchmark::State& s) { move(s, true); }, {&kStretch, 1});
        add("move_base", [](benchmark::State& s) { move(s, false); }, pieces);
        add("copy", copy, pieces);
        add("continue", continue_punch, pieces, true);
    }
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    try {
        register_all();
        benchmark::RunSpecifiedBenchmarks();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "install_bench: %s\n", e.what());
        return 1;
    }
    benchmark::Shutdown();
    return 0;
}
