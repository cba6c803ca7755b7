// The read queue alone: reads of one PMD page (2 MiB) each into huge-page frames, one after the other through the file,
// by both rungs at depths 1 to 64. What the pager can reach at best, and what plain deep-queue direct reads give.
//
//   read_queue_bench [FILE] [--benchmark_filter=io_uring]     else WEIR_BENCH_FILE, else a temporary file of 512 MiB
//
// bytes/s by the clock on the wall; `cpu` is the share of a core that the pushing thread took (the pread rung's readers
// not counted).
#include <benchmark/benchmark.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <stdexcept>

#include "bench/bench_file.h"
#include "pager/file.h"
#include "pager/mapping.h"
#include "pager/read_queue.h"
#include "pager/system.h"

namespace {

using namespace weir::pager;

constexpr uint64_t kFileBytes = uint64_t{512} << 20;

double thread_seconds() {
    struct timespec t;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

// Two events that never fire, where the pager has its uffd and its wake-up.
struct Quiet {
    int uffd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ~Quiet() {
        ::close(uffd);
        ::close(event);
    }
};

// An iteration is one read that completed, `depth` being in flight.
void reads(benchmark::State& state, const File& file, ReaderRung rung) {
    const auto depth = static_cast<size_t>(state.range(0));
    const size_t bytes = pmd_page_size();
    const uint64_t n_places = file.size() / bytes;
    const Mapping frames = weir::bench::huge_frames(depth);
    const Quiet quiet;
    const std::unique_ptr<ReadQueue> queue = make_read_queue(rung);
    if (depth > queue->capacity() || queue->start(quiet.uffd, quiet.event) != 0) {
        state.SkipWithError("the queue does not start at this depth");
        return;
    }
    uint64_t next = 0;
    const auto push = [&](uint64_t slot) {
        const uint64_t offset = next++ % n_places * bytes;
        return queue->push({slot, file.fd(), offset, frames.base() + slot * bytes, static_cast<uint32_t>(bytes)}) == 0;
    };
    ReadDone done[64];
    size_t in_flight = 0, have = 0;
    bool ok = true;
    // Waits for completions into done[0 .. have).
    const auto wait = [&] {
        const Wakeup w = queue->wait(done, -1);
        have = w.n_done;
        in_flight -= have;
        ok = ok && w.error == 0;
        for (size_t i = 0; i < have; ++i) ok = ok && done[i].result == static_cast<int32_t>(bytes);
    };
    for (size_t slot = 0; slot < depth && ok; ++slot, ++in_flight) ok = push(slot);
    const double cpu = thread_seconds();
    const auto begin = std::chrono::steady_clock::now();
    for (auto _ : state) {
        while (have == 0 && ok) wait();
        if (!ok) {
            state.SkipWithError("a read failed");
            break;
        }
        ok = push(done[--have].tag);
        ++in_flight;
    }
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    state.counters["cpu"] = (thread_seconds() - cpu) / wall;
    state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
    while (in_flight > 0 && ok) wait();
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        std::fprintf(stderr, "usage: read_queue_bench [FILE] [--benchmark_...]\n");
        return 2;
    }
    try {
        const File file = weir::bench::open_bench_file(argc > 1 ? argv[1] : nullptr, kFileBytes);
        if (file.size() < pmd_page_size()) throw std::runtime_error(file.path() + ": smaller than one read");
        for (const ReaderRung rung : {ReaderRung::kIoUring, ReaderRung::kPread}) {
            const bool uring = rung == ReaderRung::kIoUring;
            if (uring && probe_io_uring() != 0) {
                std::fprintf(stderr, "io_uring cannot be had: %s\n", std::strerror(probe_io_uring()));
                continue;
            }
            benchmark::RegisterBenchmark(uring ? "io_uring" : "pread",
                                         [&file, rung](benchmark::State& state) { reads(state, file, rung); })
                ->ArgName("depth")->RangeMultiplier(2)->Range(1, 64)->MinTime(0.8)->UseRealTime()->Unit(benchmark::kMicrosecond);
        }
        benchmark::RunSpecifiedBenchmarks();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "read_queue_bench: %s\n", e.what());
        return 1;
    }
    benchmark::Shutdown();
    return 0;
}
