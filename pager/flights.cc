#include "pager/flights.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "pager/check.h"
#include "pager/system.h"

namespace weir::pager {
namespace {

// Attempts at a read that the device fails: two as it is, the last one through the page cache.
constexpr int kMaxAttempts = 3;
// Pauses before a read that the kernel had no room for goes again: the first is about what a request in flight takes to
// end and give its room back, the last is short enough that nobody sees the difference.
constexpr uint32_t kFirstPauseUs = 200;
constexpr uint32_t kLastPauseUs = 50'000;
// Completions that one wait takes in.
constexpr size_t kLandings = 64;

// The kernel had no room for a request; nothing is wrong with what was asked.
bool is_passing(int error) { return error == EAGAIN || error == EBUSY || error == ENOMEM || error == ENOBUFS || error == EINTR; }

}  // namespace

Flights::Flights(FileParts files, const Layout& layout, std::unique_ptr<ReadQueue> queue, uint32_t patience_ms,
                 Counters* counters)
    : files_(files),
      layout_(layout),
      queue_(std::move(queue)),
      patience_ns_(uint64_t{patience_ms} * 1'000'000),
      counters_(counters) {
    segments_left_.assign(layout.n_extents(), 0);
    issues_.reserve(layout.n_extents());
    small_reads_.reserve(MessageQueue::kCapacity);
    flights_.resize(queue_->capacity());
    free_flights_.reserve(flights_.size());
    for (size_t i = flights_.size(); i-- > 0;) free_flights_.push_back(static_cast<uint32_t>(i));
    landings_.reserve(kLandings);
}

void Flights::begin(uint32_t extent, std::byte* frame, bool first) noexcept {
    segments_left_[extent] = static_cast<uint32_t>(layout_.extent(extent).size());
    issues_.insert(first ? issues_.begin() : issues_.end(), {extent, 0, frame});
}

void Flights::hurry(uint32_t extent) noexcept {
    for (auto i = issues_.begin(); i != issues_.end(); ++i) {
        if (i->extent != extent) continue;
        std::rotate(issues_.begin(), i, i + 1);
        return;
    }
}

void Flights::pump() noexcept {
    size_t taken = 0;
    while (taken < small_reads_.size() && !free_flights_.empty()) {
        const Message& m = small_reads_[taken++];
        push(Flight::kSmall, 0, m.at, m.into, m.count);
    }
    small_reads_.erase(small_reads_.begin(), small_reads_.begin() + static_cast<ptrdiff_t>(taken));

    while (!issues_.empty() && !free_flights_.empty()) {
        Issue& issue = issues_.front();
        const auto segments = layout_.extent(issue.extent);
        const Segment& s = segments[issue.next_segment];
        push(Flight::kSegment, issue.extent, s.file_offset, issue.frame + s.slot_offset, s.bytes);
        if (++issue.next_segment == segments.size()) issues_.erase(issues_.begin());
    }
}

void Flights::push(Flight::Kind kind, uint32_t extent, uint64_t offset, std::byte* into, uint32_t bytes) noexcept {
    const uint32_t index = free_flights_.back();
    free_flights_.pop_back();
    const File& file = files_.at(offset);
    const uint64_t at = offset - file.begin();
    const uint64_t left = at < file.size() ? file.size() - at : 0;
    Flight& f = flights_[index];
    f = {};
    f.kind = kind;
    f.extent = extent;
    f.expected = static_cast<uint32_t>(std::min<uint64_t>(bytes, left));
    f.file = &file;
    f.read = {index, file.fd(), at, into, bytes};
    (void)enqueue(f);
}

// Into the queue; where that has no room just now, after a pause. False where the read has failed for good.
bool Flights::enqueue(Flight& f) noexcept {
    const int error = -queue_->push(f.read);
    if (error == 0) return true;
    if (is_passing(error) && put_off(f, error)) return true;
    fail("%s: a read cannot be queued: %s", f.file->path().c_str(), std::strerror(error));
    free(f);
    return false;
}

void Flights::free(Flight& f) noexcept {
    if (f.due_ns != 0) --pausing_;
    f.kind = Flight::kFree;
    free_flights_.push_back(static_cast<uint32_t>(f.read.tag));
}

Wakeup Flights::wait(int timeout_us, bool stopping) noexcept {
    ReadDone done[kLandings];
    landings_.clear();
    if (pausing_ > 0) timeout_us = end_pauses(timeout_us, stopping);
    const Wakeup w = queue_->wait(done, timeout_us);
    for (size_t i = 0; i < w.n_done; ++i) land(done[i], stopping);
    return w;
}

// Reads whose pause is over go again. Returns the timeout for a wait that does not miss the next one.
int Flights::end_pauses(int timeout_us, bool stopping) noexcept {
    const uint64_t now = monotonic_ns();
    uint64_t next = UINT64_MAX;
    for (Flight& f : flights_) {
        if (f.kind == Flight::kFree || f.due_ns == 0) continue;
        if (stopping) {
            free(f);
        } else if (f.due_ns <= now) {
            f.due_ns = 0;
            --pausing_;
            (void)enqueue(f);
        }
        if (f.kind != Flight::kFree && f.due_ns != 0) next = std::min(next, f.due_ns);
    }
    if (stopping) return idle() ? 0 : timeout_us;
    if (next == UINT64_MAX) return timeout_us;
    const auto pause_us = static_cast<int>((next - std::min(next, now)) / 1000 + 1);
    return timeout_us < 0 ? pause_us : std::min(timeout_us, pause_us);
}

void Flights::land(const ReadDone& done, bool stopping) noexcept {
    CHECK(done.tag < flights_.size());
    Flight& f = flights_[done.tag];
    CHECK(f.kind != Flight::kFree && f.due_ns == 0);
    const bool again = goes_again(f, done.result);
    if (again && f.due_ns != 0 && !stopping) return;
    if (again && f.due_ns == 0 && !stopping) {
        (void)enqueue(f);
        return;
    }
    const Flight finished = f;
    free(f);
    if (again || failed()) return;

    if (finished.read.fd == finished.file->buffered_fd() || !finished.file->direct())
        finished.file->drop_cache(finished.read.offset - finished.done, finished.read.bytes + finished.done);
    if (finished.kind == Flight::kSmall) {
        landings_.push_back({Landing::kSmall, 0});
    } else if (--segments_left_[finished.extent] == 0) {
        landings_.push_back({Landing::kExtent, finished.extent});
    }
}

// True where the read, or the rest of it, has to be asked for once more, at once or after a pause; its Flight then says
// what and when.
bool Flights::goes_again(Flight& f, int32_t result) noexcept {
    if (result < 0) return is_passing(-result) ? put_off(f, -result) : try_again(f, -result);
    counters_->bytes_read.fetch_add(static_cast<uint64_t>(result), std::memory_order_relaxed);
    counters_->reads.fetch_add(1, std::memory_order_relaxed);
    f.pause_us = 0;
    const auto got = static_cast<uint32_t>(result);
    if (f.done + got >= f.expected) return false;
    // A short read: ask for the rest, from an aligned place.
    const auto step = static_cast<uint32_t>(align_down(got, files_.granule()));
    f.done += step;
    f.read.offset += step;
    f.read.into += step;
    f.read.bytes -= step;
    if (step > 0 || (got > 0 && ++f.attempts < kMaxAttempts)) return true;
    fail("%s: the file ends at offset %llu, before its expected size of %llu bytes: it shrank while it was in use",
         f.file->path().c_str(), static_cast<unsigned long long>(f.read.offset + got),
         static_cast<unsigned long long>(f.file->size()));
    return false;
}

bool Flights::put_off(Flight& f, int error) noexcept {
    const uint64_t now = monotonic_ns();
    if (f.pause_us == 0) f.since_ns = now;
    if (now - f.since_ns > patience_ns_) {
        fail("%s: reading %u bytes at offset %llu: %s, for %llu ms: the kernel has no room for the read", f.file->path().c_str(),
             f.read.bytes, static_cast<unsigned long long>(f.read.offset), std::strerror(error),
             static_cast<unsigned long long>((now - f.since_ns) / 1'000'000));
        return false;
    }
    f.pause_us = f.pause_us == 0 ? kFirstPauseUs : std::min(2 * f.pause_us, kLastPauseUs);
    f.due_ns = now + uint64_t{f.pause_us} * 1000;
    ++pausing_;
    counters_->read_pauses.fetch_add(1, std::memory_order_relaxed);
    return true;
}

bool Flights::try_again(Flight& f, int error) noexcept {
    if (++f.attempts >= kMaxAttempts) {
        fail("%s: reading %u bytes at offset %llu failed: %s (%d attempts, the last one through the page cache)",
             f.file->path().c_str(), f.read.bytes, static_cast<unsigned long long>(f.read.offset), std::strerror(error),
             kMaxAttempts);
        return false;
    }
    counters_->read_retries.fetch_add(1, std::memory_order_relaxed);
    if (f.attempts == kMaxAttempts - 1) {
        f.read.fd = f.file->buffered_fd();
        counters_->buffered_rereads.fetch_add(1, std::memory_order_relaxed);
    }
    return true;
}

void Flights::fail(const char* format, ...) noexcept {
    if (failed()) return;
    va_list args;
    va_start(args, format);
    (void)std::vsnprintf(failure_, sizeof failure_, format, args);
    va_end(args);
}

}  // namespace weir::pager
