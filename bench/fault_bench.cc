// What a demand fault costs: a touch of an absent Extent of 2 MiB through the pager, with gates off and without a plan,
// beside bare reads of the same bytes into a huge-page frame that is there, in turn, in one run.
//
//   fault_bench [FILE] [COUNT]     else WEIR_BENCH_FILE, else a temporary file of 512 MiB; COUNT of each, default 1000
//
//   fault        the touch: message, read (after the eviction of an older Extent), install, wake
//   no read      the same where reads are over at once, without data: what the fault costs besides the read
//   bare pread   one pread(2) of the same bytes on the touching thread, into eight frames in turn
//   bare queue   one read through the pager's kind of read queue on the touching thread
//
// They take turns, each through the same Extents in an order of its own, so that none finds what another has just
// left in a cache of the host's.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/bench_file.h"
#include "pager/pager.h"
#include "pager/residency_policy.h"
#include "pager/system.h"

namespace {

using namespace weir::pager;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kFileBytes = uint64_t{512} << 20;
constexpr size_t kWarmUp = 16;  // turns that do not count: every frame of the ring has been used

double us_since(Clock::time_point t) { return std::chrono::duration<double, std::micro>(Clock::now() - t).count(); }

// Extents that stream, in an order of its own; round and round.
class Order {
  public:
    Order(std::vector<uint32_t> extents, unsigned seed) : extents_(std::move(extents)) {
        std::shuffle(extents_.begin(), extents_.end(), std::mt19937(seed));
    }
    uint32_t next() { return extents_[at_++ % extents_.size()]; }

  private:
    std::vector<uint32_t> extents_;
    size_t at_ = 0;
};

class BareReads {
  public:
    explicit BareReads(const File& file) : file_(file), frames_(weir::bench::huge_frames(kFrames)), queue_(make_read_queue(ReaderRung::kAuto)) {
        if (queue_->start(uffd_, event_) != 0) throw std::runtime_error("the read queue does not start");
    }
    ~BareReads() {
        queue_.reset();
        ::close(uffd_);
        ::close(event_);
    }
    void pread(uint64_t offset) {
        const size_t bytes = pmd_page_size();
        if (::pread(file_.fd(), next_frame(), bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes))
            throw std::runtime_error(file_.path() + ": a read failed");
    }
    void by_queue(uint64_t offset) {
        const auto bytes = static_cast<uint32_t>(pmd_page_size());
        if (queue_->push({0, file_.fd(), offset, next_frame(), bytes}) != 0) throw std::runtime_error("a read cannot be queued");
        ReadDone done[1];
        Wakeup w;
        while (w.n_done == 0 && w.error == 0) w = queue_->wait(done, -1);
        if (w.error != 0 || done[0].result != static_cast<int32_t>(bytes)) throw std::runtime_error(file_.path() + ": a read failed");
    }

  private:
    const File& file_;
    // As many as the pager's ring has: reading into one frame over and over is faster, as it stays in the CPU's cache.
    static constexpr size_t kFrames = 8;
    std::byte* next_frame() { return frames_.base() + turn_++ % kFrames * pmd_page_size(); }

    Mapping frames_;
    size_t turn_ = 0;
    int uffd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);   // never readable, as a uffd without faults
    int event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::unique_ptr<ReadQueue> queue_;
};

// Reads nothing: every read is complete at the next wait.
class NoReads : public ReadQueue {
  public:
    const char* name() const override { return "none"; }
    size_t capacity() const override { return queue_->capacity(); }
    int start(int uffd, int event_fd) noexcept override { return queue_->start(uffd, event_fd); }
    void watch(int uffd) noexcept override { queue_->watch(uffd); }
    int push(const Read& read) noexcept override {
        over_ = {read.tag, static_cast<int32_t>(read.bytes)};
        pending_ = true;
        return 0;
    }
    Wakeup wait(std::span<ReadDone> done, int timeout_us) noexcept override {
        Wakeup w = queue_->wait(done, pending_ ? 0 : timeout_us);
        if (pending_) done[w.n_done++] = over_;
        pending_ = false;
        return w;
    }

  private:
    std::unique_ptr<ReadQueue> queue_ = make_read_queue(ReaderRung::kAuto);
    ReadDone over_{};  // one fault at a time, one read each
    bool pending_ = false;
};

std::unique_ptr<Pager> start_pager(const File& file, bool reads) {
    const size_t extent = pmd_page_size();
    const size_t n = file.size() / extent;
    PagerOptions o;
    o.workers = 1;
    o.frames = std::min<size_t>(n / 4, 64);
    o.gates = false;
    o.on_unanswerable = [](const char* text) {
        std::fprintf(stderr, "%s\n", text);
        std::_Exit(1);
    };
    if (!reads) o.read_queue = std::make_unique<NoReads>();
    const ImageRange range = {0, 0, n * extent};
    return Pager::start(file, cut_layout({&range, 1}, extent), std::move(o));
}

double percentile(std::vector<double>* us, double p) {
    std::sort(us->begin(), us->end());
    return (*us)[std::min(us->size() - 1, static_cast<size_t>(p * static_cast<double>(us->size())))];
}

void run(const File& file, size_t count) {
    const size_t extent = pmd_page_size();
    const size_t n = file.size() / extent;
    if (n < 64) throw std::runtime_error(file.path() + ": at least 64 huge pages are needed, 128 MiB on most machines");
    const auto pager = start_pager(file, true), no_reads = start_pager(file, false);
    BareReads bare(file);

    std::vector<uint32_t> streamed;
    for (uint32_t e = 0; e < n; ++e)
        if (!pager->pinned(e)) streamed.push_back(e);
    constexpr size_t kArms = 4;
    std::array<Order, kArms> orders = {Order(streamed, 1), Order(streamed, 2), Order(streamed, 3), Order(streamed, 4)};
    std::array<std::vector<double>, kArms> us;
    const auto turn = [&](size_t arm, uint64_t ordinal) {
        const uint64_t at = orders[arm].next() * extent;
        Pager& toucher = arm == 0 ? *pager : *no_reads;
        const auto begin = Clock::now();
        switch (arm) {
            case 0:
            case 1: (void)*static_cast<const volatile std::byte*>(toucher.region() + at); break;
            case 2: bare.pread(at); break;
            default: bare.by_queue(at);
        }
        us[arm].push_back(us_since(begin));
        if (arm < 2) toucher.publish(0, ordinal + 1);  // what was touched may go
    };
    for (size_t i = 0; i < kWarmUp + count; ++i) {
        for (size_t arm = 0; arm < kArms; ++arm) turn((arm + i) % kArms, i);
        if (i + 1 == kWarmUp)
            for (auto& list : us) list.clear();
    }
    const PagerStats s = pager->stats();
    std::printf("%s, %zu Extents of %zu KiB, %zu of them streamed, %zu turns\n%s\n", file.path().c_str(), n, extent >> 10,
                streamed.size(), count, pager->rungs().c_str());
    // Each touch met an absent Extent. Faults may be more: a thread that is woken too early faults again.
    if (s.installs != kWarmUp + count || s.faults < s.installs)
        throw std::runtime_error("not every touch was a fault: " + std::to_string(s.installs) + " installs by " +
                                 std::to_string(s.faults) + " faults for " + std::to_string(kWarmUp + count) + " touches");
    const double p50 = percentile(&us[2], 0.5), p99 = percentile(&us[2], 0.99);
    static constexpr const char* kNames[] = {"fault", "no read", "bare pread", "bare queue"};
    std::printf("%-12s %9s %9s %9s   ratio to bare pread: p50, p99\n", "", "min us", "p50 us", "p99 us");
    for (size_t arm = 0; arm < kArms; ++arm) {
        const double mine50 = percentile(&us[arm], 0.5), mine99 = percentile(&us[arm], 0.99);
        std::printf("%-12s %9.0f %9.0f %9.0f   %.2f  %.2f\n", kNames[arm], us[arm].front(), mine50, mine99, mine50 / p50, mine99 / p99);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const char* const path = argc > 1 ? argv[1] : nullptr;
    const size_t count = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1000;
    if (argc > 3 || count == 0 || (path != nullptr && path[0] == '-')) {
        std::fprintf(stderr, "usage: fault_bench [FILE] [COUNT]\n");
        return 2;
    }
    try {
        const File file = weir::bench::open_bench_file(path, kFileBytes);
        run(file, count);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "fault_bench: %s\n", e.what());
        return 1;
    }
    return 0;
}
