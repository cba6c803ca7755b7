#include "pager/device_probe.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "pager/mapping.h"
#include "pager/system.h"

namespace weir::pager {
namespace {

using Clock = std::chrono::steady_clock;

// What an Extent has on most machines: the unit in which weights stream.
constexpr uint64_t kReadBytes = 2u << 20;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

[[noreturn]] void fail(const File& file, uint64_t offset, int error) {
    throw std::runtime_error(file.path() + ": reading at offset " + std::to_string(offset) + " failed: " +
                             (error != 0 ? std::strerror(error) : "the file ends before its expected size"));
}

// Memory that reads land in, aligned and (but for fresh ones) touched, as huge pages where there are any.
Mapping make_frames(size_t bytes, const File& file, bool fresh) {
    const size_t pmd = pmd_page_size();
    const bool huge = huge_pages_allowed() && bytes >= pmd;
    Mapping frames(align_up(bytes, huge ? pmd : file.granule()), huge ? pmd : file.granule(), huge, "probe's frames");
    for (size_t at = 0; !fresh && at < frames.bytes(); at += kernel_page_size()) frames.base()[at] = std::byte{1};
    return frames;
}

// Threads that compute and touch no memory, for as long as this lives.
class BusyThreads {
  public:
    explicit BusyThreads(size_t n) {
        for (size_t i = 0; i < n; ++i) {
            threads_.emplace_back([](const std::stop_token& stop) {
                volatile double sink = 1;
                while (!stop.stop_requested()) {
                    double x = sink;
                    for (int turn = 0; turn < 1000; ++turn) x = x * 0.999 + 0.001;
                    sink = x;
                }
            });
        }
    }

  private:
    std::vector<std::jthread> threads_;
};

// A queue with an event that nobody signals in the places of userfaultfd and wake-up.
class Reader {
  public:
    explicit Reader(ReaderRung rung) : queue_(make_read_queue(rung)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (event_ < 0) throw std::runtime_error(std::string("eventfd: ") + std::strerror(errno));
        const int error = queue_->start(event_, event_);
        if (error == 0) return;
        ::close(event_);
        throw std::runtime_error(std::string(queue_->name()) + " cannot start: " + std::strerror(-error));
    }
    ~Reader() {
        queue_.reset();
        ::close(event_);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    ReadQueue* operator->() const { return queue_.get(); }

  private:
    std::unique_ptr<ReadQueue> queue_;
    int event_;
};

}  // namespace

DeviceSpeed probe_device(const File& file, const DeviceProbe& probe) {
    if (file.size() == 0) throw std::runtime_error(file.path() + ": an empty file says nothing of its device");
    DeviceSpeed speed;
    speed.read_bytes = align_up(std::min(kReadBytes, file.size()), file.granule());
    const uint64_t places = std::max<uint64_t>(1, file.size() / speed.read_bytes);
    const uint64_t reads = std::max<uint64_t>(1, probe.bytes / speed.read_bytes);
    Mapping frames;  // outlive the queue: a read in flight lands in them
    Reader queue(probe.reader);
    speed.depth = std::clamp<size_t>(probe.depth, 1, std::min<uint64_t>(queue->capacity(), reads));
    speed.reader = queue->name();
    frames = make_frames((probe.fresh ? reads : speed.depth) * speed.read_bytes, file, probe.fresh);
    if (!probe.fresh) speed.huge_frames = anon_huge_bytes(frames.base(), frames.bytes()) >= frames.bytes();
    const BusyThreads busy(probe.busy_threads);
    if (!file.direct()) file.drop_cache(0, file.size());

    std::vector<uint64_t> offsets(speed.depth);  // of the reads in flight
    uint64_t begun = 0, finished = 0;
    const uint64_t first = probe.from / speed.read_bytes;
    const auto begin = Clock::now();
    int error = 0;
    uint64_t error_at = 0;
    const auto push = [&](size_t slot) {
        if (error != 0 || begun == reads || seconds_since(begin) > probe.seconds_limit) return;
        const uint64_t offset = (first + begun) % places * speed.read_bytes;
        offsets[slot] = offset;
        error = -queue->push({slot, file.fd(), offset, frames.base() + (probe.fresh ? begun : slot) * speed.read_bytes,
                              static_cast<uint32_t>(speed.read_bytes)});
        if (error == 0) {
            ++begun;
        } else {
            error_at = offset;
        }
    };
    for (size_t slot = 0; slot < speed.depth; ++slot) push(slot);
    std::vector<ReadDone> done(speed.depth);
    while (finished < begun) {
        const Wakeup w = queue->wait(done, -1);
        if (w.error != 0) throw std::runtime_error(std::string("waiting for reads: ") + std::strerror(-w.error));
        finished += w.n_done;
        for (size_t i = 0; i < w.n_done; ++i) {
            const uint64_t offset = offsets[done[i].tag];
            if (done[i].result <= 0) {
                error = done[i].result < 0 ? -done[i].result : EIO;
                error_at = offset;
                continue;
            }
            speed.bytes += static_cast<uint64_t>(done[i].result);
            if (!file.direct()) file.drop_cache(offset, speed.read_bytes);
            push(done[i].tag);
        }
    }
    speed.seconds = seconds_since(begin);
    if (probe.fresh) speed.huge_frames = anon_huge_bytes(frames.base(), frames.bytes()) >= speed.bytes / 2;
    if (error != 0) fail(file, error_at, error);
    speed.bytes_per_s = static_cast<double>(speed.bytes) / std::max(speed.seconds, 1e-9);
    return speed;
}

DeviceLatency probe_latency(const File& file, size_t reads, double seconds_limit) {
    DeviceLatency latency;
    latency.read_bytes = file.granule();
    const uint64_t places = std::max<uint64_t>(1, file.size() / latency.read_bytes);
    const Mapping frame = make_frames(latency.read_bytes, file, false);
    if (!file.direct()) file.drop_cache(0, file.size());
    std::mt19937_64 random(places);  // equal files are asked for equal places
    std::vector<double> took;
    took.reserve(reads);
    const auto begin = Clock::now();
    while (took.size() < std::max<size_t>(1, reads) && (took.empty() || seconds_since(begin) < seconds_limit)) {
        const uint64_t offset = random() % places * latency.read_bytes;
        const auto start = Clock::now();
        const ssize_t n = ::pread(file.fd(), frame.base(), latency.read_bytes, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail(file, offset, n < 0 ? errno : 0);
        took.push_back(1e6 * seconds_since(start));
    }
    std::sort(took.begin(), took.end());
    latency.reads = took.size();
    latency.p50_us = took[(took.size() - 1) / 2];
    latency.p99_us = took[(took.size() - 1) * 99 / 100];
    return latency;
}

}  // namespace weir::pager
