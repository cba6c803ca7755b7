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

// A read that fails is tried again before it fails for good.
constexpr int kMaxAttempts = 3;
// Completions that one wait takes in.
constexpr size_t kLandings = 64;

}  // namespace

Flights::Flights(const File& file, const Layout& layout, std::unique_ptr<ReadQueue> queue, Counters* counters)
    : file_(file), layout_(layout), queue_(std::move(queue)), counters_(counters) {
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
        if (!push({0, file_.fd(), m.at, m.into, m.count}, Flight::kSmall, 0)) return;
    }
    small_reads_.erase(small_reads_.begin(), small_reads_.begin() + static_cast<ptrdiff_t>(taken));

    while (!issues_.empty() && !free_flights_.empty()) {
        Issue& issue = issues_.front();
        const auto segments = layout_.extent(issue.extent);
        const Segment& s = segments[issue.next_segment];
        if (!push({0, file_.fd(), s.file_offset, issue.frame + s.slot_offset, s.bytes}, Flight::kSegment, issue.extent))
            return;
        if (++issue.next_segment == segments.size()) issues_.erase(issues_.begin());
    }
}

bool Flights::push(const Read& read, Flight::Kind kind, uint32_t extent) noexcept {
    const uint32_t index = free_flights_.back();
    free_flights_.pop_back();
    const uint64_t left = read.offset < file_.size() ? file_.size() - read.offset : 0;
    Flight& f = flights_[index];
    f = {kind, 0, extent, static_cast<uint32_t>(std::min<uint64_t>(read.bytes, left)), 0, read};
    f.read.tag = index;
    const int error = queue_->push(f.read);
    if (error == 0) return true;
    f.kind = Flight::kFree;
    free_flights_.push_back(index);
    fail("%s: a read cannot be queued: %s", file_.path().c_str(), std::strerror(-error));
    return false;
}

Wakeup Flights::wait(int timeout_us, bool stopping) noexcept {
    ReadDone done[kLandings];
    landings_.clear();
    const Wakeup w = queue_->wait(done, timeout_us);
    for (size_t i = 0; i < w.n_done; ++i) land(done[i], stopping);
    return w;
}

void Flights::land(const ReadDone& done, bool stopping) noexcept {
    CHECK(done.tag < flights_.size() && flights_[done.tag].kind != Flight::kFree);
    Flight& f = flights_[done.tag];
    const bool again = goes_again(f, done.result);
    if (again && !stopping) {
        const int error = queue_->push(f.read);
        if (error == 0) return;
        fail("%s: a read cannot be queued: %s", file_.path().c_str(), std::strerror(-error));
    }
    const Flight finished = f;
    f.kind = Flight::kFree;
    free_flights_.push_back(static_cast<uint32_t>(done.tag));
    if (again || failed()) return;

    if (!file_.direct()) file_.drop_cache(finished.read.offset, finished.read.bytes);
    if (finished.kind == Flight::kSmall) {
        landings_.push_back({Landing::kSmall, 0});
    } else if (--segments_left_[finished.extent] == 0) {
        landings_.push_back({Landing::kExtent, finished.extent});
    }
}

// True where the read, or the rest of it, has to be asked for once more; its Flight then says what.
bool Flights::goes_again(Flight& f, int32_t result) noexcept {
    if (result < 0) {
        if (result == -EAGAIN || result == -EINTR || ++f.attempts < kMaxAttempts) return true;
        fail("%s: reading %u bytes at offset %llu failed: %s (after %d attempts)", file_.path().c_str(), f.read.bytes,
             static_cast<unsigned long long>(f.read.offset), std::strerror(-result), kMaxAttempts);
        return false;
    }
    counters_->bytes_read.fetch_add(static_cast<uint64_t>(result), std::memory_order_relaxed);
    counters_->reads.fetch_add(1, std::memory_order_relaxed);
    const auto got = static_cast<uint32_t>(result);
    if (f.done + got >= f.expected) return false;
    // A short read: ask for the rest, from an aligned place.
    const auto step = static_cast<uint32_t>(align_down(got, file_.granule()));
    f.done += step;
    f.read.offset += step;
    f.read.into += step;
    f.read.bytes -= step;
    if (step > 0) return true;
    fail("%s: the file ends at offset %llu, before its expected size of %llu bytes: it shrank while it was in use",
         file_.path().c_str(), static_cast<unsigned long long>(f.read.offset + got),
         static_cast<unsigned long long>(file_.size()));
    return false;
}

void Flights::fail(const char* format, ...) noexcept {
    if (failed()) return;
    va_list args;
    va_start(args, format);
    (void)std::vsnprintf(failure_, sizeof failure_, format, args);
    va_end(args);
}

}  // namespace weir::pager
