// The pager without a model: how fast a cyclic walk over a file goes at 90, 75, 50 and 25 % of it in frames, beside plain
// deep-queue direct reads of the same file into the same kind of memory, in one run.
//
// usage: pager_walk_bench FILE [WORKERS] [PASSES]     the file's content does not matter; 1 GiB or more says something
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "pager/device_probe.h"
#include "pager/file.h"
#include "pager/pager.h"
#include "pager/residency_policy.h"
#include "pager/system.h"

namespace {

using namespace weir::pager;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

double cpu_seconds() {
    struct rusage u;
    ::getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

void walk(const File& file, uint64_t image, size_t percent, size_t workers, size_t passes, double device) {
    const size_t extent = pmd_page_size();
    const size_t n = image / extent;
    PagerOptions o;
    o.workers = workers;
    o.frames = n * percent / 100;
    o.on_unanswerable = [](const char* text) {
        std::fprintf(stderr, "%s\n", text);
        std::_Exit(1);
    };
    const ImageRange range = {0, 0, n * extent};
    auto pager = Pager::start(file, cut_layout({&range, 1}, extent), std::move(o));
    std::barrier<> gate(static_cast<ptrdiff_t>(workers));
    PagerStats warm;
    Clock::time_point begin;
    double cpu = 0, wall = 0;
    std::atomic<uint64_t> sink{0};
    std::vector<std::jthread> team;
    for (size_t w = 0; w < workers; ++w) {
        team.emplace_back([&, w] {
            for (size_t pass = 0; pass <= passes; ++pass) {
                if (w == 0) {
                    if (pass == 0) pager->plan(0, 0, n);
                    if (pass == 1) {
                        warm = pager->stats();
                        begin = Clock::now();
                        cpu = cpu_seconds();
                    }
                    if (pass < passes) pager->plan((pass + 1) * n, 0, n);
                }
                gate.arrive_and_wait();
                uint64_t sum = 0;
                for (size_t e = 0; e < n; ++e) {
                    if (!pager->acquire(w, e, e)) std::_Exit(1);
                    const auto* words = reinterpret_cast<const uint64_t*>(pager->region() + e * extent);
                    const size_t part = extent / 8 / workers;
                    for (size_t i = w * part; i < (w + 1) * part; i += 8) sum += words[i];
                    pager->publish(w, pass * n + e + 1);
                }
                sink += sum;
                gate.arrive_and_wait();
            }
            if (w == 0) {
                wall = seconds_since(begin);
                cpu = cpu_seconds() - cpu;
            }
        });
    }
    team.clear();
    const PagerStats s = pager->stats();
    const double read = static_cast<double>(s.bytes_read - warm.bytes_read);
    const double must = static_cast<double>((n - s.pinned_extents) * extent) * static_cast<double>(passes);
    std::printf("%3zu %%  %6.3f s/pass  %6.3f GB read/pass (%.3f of M - R)  %5.2f GB/s = %3.0f %% of device  faults %llu  waits %llu  cpu %.2f s  busy %llu  huge %.0f %%\n",
                percent, wall / static_cast<double>(passes), read / 1e9 / static_cast<double>(passes), must > 0 ? read / must : 0.0, read / wall / 1e9,
                100 * read / wall / device, static_cast<unsigned long long>(s.faults), static_cast<unsigned long long>(s.waits), cpu,
                static_cast<unsigned long long>(s.busy_retries),
                100.0 * static_cast<double>(pager->huge_bytes()) / static_cast<double>((s.pinned_extents + s.ring_frames) * extent));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: pager_walk_bench FILE [WORKERS] [PASSES]\n");
        return 2;
    }
    const size_t workers = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 2;
    const size_t passes = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 4;
    try {
        const File file = File::open(argv[1], IoMode::kAuto);
        const uint64_t image = align_down(file.size(), pmd_page_size());
        for (const size_t percent : {90, 75, 50, 25}) {
            double device = 0;
            for (const size_t depth : {8, 16}) device = std::max(device, probe_device(file, depth, image, 10).bytes_per_s);
            std::printf("device %.2f GB/s   ", device / 1e9);
            walk(file, image, percent, workers, passes, device);
        }
    } catch (const std::exception& e) {
        std::fprintf(stderr, "pager_walk_bench: %s\n", e.what());
        return 1;
    }
    return 0;
}
