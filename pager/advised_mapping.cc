#include "pager/advised_mapping.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "pager/check.h"
#include "pager/system.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace weir::pager {
namespace {

// Reads in flight and what is being consumed, as in the Pager's ring: 8 chunks, or 1 % of a large model.
constexpr size_t kLeastRing = 8;
constexpr size_t kRingShare = 100;
// Reads in flight.
constexpr size_t kHelpers = 4;

uint64_t ns_since(std::chrono::steady_clock::time_point begin) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace

AdvisedMapping::AdvisedMapping(FileParts files, AdvisedOptions options)
    : files_(files),
      o_(std::move(options)),
      page_(kernel_page_size()),
      mapping_(files),
      huge_(o_.chunk_bytes == pmd_page_size() && o_.chunk_bytes > page_),
      states_(std::make_unique<std::atomic<uint32_t>[]>(o_.chunks.size())),
      workers_(o_.workers),
      chunks_(mapping_.bytes() / o_.chunk_bytes + 1),
      core_map_(o_.chunk_bytes / page_ + 1) {
    choose_kept(o_.frames);
    // Advice, all three: without it more is read than is counted, or in smaller pieces.
    for (const File& file : files.parts()) {
        CHECK(file.begin() % o_.chunk_bytes == 0);
        std::byte* const begin = mapping_.base() + file.begin();
        (void)::madvise(begin, file.size(), MADV_RANDOM);
        (void)::posix_fadvise(file.buffered_fd(), 0, 0, POSIX_FADV_RANDOM);
        if (huge_) (void)::madvise(begin, file.size(), MADV_HUGEPAGE);
    }
    for (size_t i = 0; i < kHelpers; ++i) helpers_.emplace_back([this](const std::stop_token& stop) { serve(stop); });
}

AdvisedMapping::~AdvisedMapping() {
    for (std::jthread& helper : helpers_) helper.request_stop();
    moved(true);
    helpers_.clear();
}

// How often each chunk is read in a pass if it streams: once for each visit, but for those that find it in the ring still.
std::vector<uint32_t> AdvisedMapping::reads_per_pass() const {
    const size_t near = std::max<size_t>(1, ring_);
    std::vector<uint32_t> reads(chunks_.size(), 0);
    std::vector<size_t> last(chunks_.size(), SIZE_MAX);
    for (size_t step = 0; step < o_.chunks.size(); ++step) {
        const uint32_t c = o_.chunks[step];
        CHECK(c < chunks_.size());
        if (last[c] == SIZE_MAX || step - last[c] > near) ++reads[c];
        last[c] = step;
    }
    return reads;
}

// Kept are, first of all, the chunks that would be read more than once a pass, and then others spread evenly over the
// walk, as in the Pager: reads and compute overlap all the time. (A prefix, which is what people keep by hand, leaves the
// device idle while it is computed.)
void AdvisedMapping::choose_kept(size_t frames) {
    std::vector<uint32_t> order;  // each chunk of the walk once
    std::vector<bool> seen(chunks_.size());
    for (const uint32_t c : o_.chunks) {
        CHECK(c < chunks_.size());
        if (!seen[c]) order.push_back(c);
        seen[c] = true;
    }
    n_kept_ = order.size();
    if (frames < order.size()) {
        const size_t least = least_advised_frames(o_.held_steps);
        CHECK(frames >= least);
        ring_ = std::clamp(std::max(kLeastRing, order.size() / kRingShare), least, std::max(least, frames / 2));
        n_kept_ = frames - ring_;
    }
    const std::vector<uint32_t> reads = reads_per_pass();
    std::vector<uint32_t> often, once;
    for (const uint32_t c : order) (reads[c] > 1 ? often : once).push_back(c);
    const auto keep_evenly = [this](const std::vector<uint32_t>& from, size_t n) {
        for (size_t i = 0; i < from.size(); ++i)
            chunks_[from[i]].kept = (i + 1) * n / from.size() != i * n / from.size();
    };
    const size_t of_often = std::min(often.size(), n_kept_);
    keep_evenly(often, of_often);
    keep_evenly(once, n_kept_ - of_often);
}

uint64_t AdvisedMapping::chunk_bytes(size_t chunk) const {
    const uint64_t offset = chunk * o_.chunk_bytes;
    const File& file = files_.at(offset);
    return std::min<uint64_t>(o_.chunk_bytes, align_up(file.size(), page_) - (offset - file.begin()));
}

void AdvisedMapping::moved(bool all) noexcept {
    moves_.fetch_add(1, std::memory_order_release);  // acquire in serve()
    if (all) {
        moves_.notify_all();
    } else {
        moves_.notify_one();
    }
}

void AdvisedMapping::plan(uint64_t ordinal, size_t first, size_t count) noexcept {
    {
        const std::lock_guard lock(mutex_);
        plan_.push_back({ordinal, first, count});
    }
    moved(false);
}

bool AdvisedMapping::acquire(size_t worker, size_t first, size_t last) noexcept {
    if (!o_.gates) return !failed();
    for (size_t step = first; step <= last; ++step) {
        uint32_t state = states_[step].load(std::memory_order_acquire);
        if (state == kAbsent) {
            Worker& w = workers_[worker];
            w.waits.fetch_add(1, std::memory_order_relaxed);
            const auto begin = std::chrono::steady_clock::now();
            states_[step].wait(kAbsent, std::memory_order_acquire);
            state = states_[step].load(std::memory_order_acquire);
            w.wait_ns.fetch_add(ns_since(begin), std::memory_order_relaxed);
        }
        if (state == kFailed) return false;
    }
    return true;
}

void AdvisedMapping::publish(size_t worker, uint64_t ordinal) noexcept {
    std::atomic<uint64_t>& position = workers_[worker].position;
    if (position.load(std::memory_order_relaxed) >= ordinal) return;
    position.store(ordinal, std::memory_order_release);  // acquire in least_position(): what was read was read before
    moved(false);
}

std::vector<Whereabouts> AdvisedMapping::look() const {
    std::vector<Whereabouts> found(o_.chunks.size(), Whereabouts::kAbsent);
    for (size_t step = 0; step < found.size(); ++step) {
        if (states_[step].load(std::memory_order_relaxed) != kPresent) continue;
        found[step] = kept(step) ? Whereabouts::kStays : Whereabouts::kPassing;
    }
    return found;
}

std::string AdvisedMapping::failure() const { return failed() ? failure_ : ""; }

uint64_t AdvisedMapping::stall_us() const noexcept { return workers_[0].wait_ns.load(std::memory_order_relaxed) / 1000; }

AdvisedStats AdvisedMapping::stats() const {
    AdvisedStats s;
    s.bytes_mapped = bytes_mapped_.load(std::memory_order_relaxed);
    for (const Worker& w : workers_) s.waits += w.waits.load(std::memory_order_relaxed);
    s.stall_us = stall_us();
    s.kept_chunks = n_kept_;
    s.ring_chunks = ring_;
    return s;
}

void AdvisedMapping::serve(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "weir-advise");
    while (!stop.stop_requested() && !failed()) {
        const uint32_t seen = moves_.load(std::memory_order_acquire);
        uint64_t ordinal = 0;
        size_t step = 0;
        if (!take(&ordinal, &step)) {
            if (!stop.stop_requested() && !failed()) moves_.wait(seen, std::memory_order_acquire);
            continue;
        }
        moved(false);  // there may be work for one more
        if (const int error = map(o_.chunks[step]); error != 0) {
            fail(o_.chunks[step], error);
            return;
        }
        done(ordinal, step);
    }
}

uint64_t AdvisedMapping::least_position() const noexcept {
    uint64_t least = UINT64_MAX;
    for (const Worker& w : workers_) least = std::min(least, w.position.load(std::memory_order_acquire));
    return least;
}

// The next step of the plan that there is something to do for and room.
bool AdvisedMapping::take(uint64_t* ordinal, size_t* step) {
    const std::lock_guard lock(mutex_);
    drop_behind();
    while (!plan_.empty()) {
        Stretch& next = plan_.front();
        if (next.count == 0) {
            plan_.pop_front();
            continue;
        }
        *step = next.first;
        *ordinal = next.ordinal;
        const uint32_t c = o_.chunks[*step];
        Chunk& chunk = chunks_[c];
        const bool present = states_[*step].load(std::memory_order_relaxed) != kAbsent;
        if (!chunk.kept) {
            // Present: still here from the pass before, which was a short one; it goes before it comes again.
            if (present || (chunk.holders == 0 && ring_used_ >= ring_)) return false;
            if (chunk.holders++ == 0) ++ring_used_;
            in_ring_.push_back({*ordinal, *step, false});
        }
        ++next.first;
        ++next.ordinal;
        --next.count;
        // The kernel may have taken a kept page back: mapped again here, it costs no fault later.
        if (chunk.kept && present && in_memory(c)) continue;
        return true;
    }
    return false;
}

void AdvisedMapping::drop_behind() {
    const uint64_t position = least_position();
    while (!in_ring_.empty() && in_ring_.front().mapped && in_ring_.front().ordinal < position) {
        const size_t step = in_ring_.front().step;
        const size_t c = o_.chunks[step];
        in_ring_.pop_front();
        states_[step].store(kAbsent, std::memory_order_release);
        if (--chunks_[c].holders > 0) continue;
        --ring_used_;
        const uint64_t offset = c * o_.chunk_bytes;
        (void)::madvise(mapping_.base() + offset, chunk_bytes(c), MADV_DONTNEED);  // a failure costs memory, not correctness
        files_.drop_cache(offset, chunk_bytes(c));
    }
}

void AdvisedMapping::done(uint64_t ordinal, size_t step) {
    {
        // A step that no worker waits for may be behind already: the state changes before it can be dropped.
        const std::lock_guard lock(mutex_);
        const auto it = std::lower_bound(in_ring_.begin(), in_ring_.end(), ordinal,
                                         [](const InRing& in, uint64_t o) { return in.ordinal < o; });
        if (it != in_ring_.end() && it->ordinal == ordinal) it->mapped = true;
        bytes_mapped_.fetch_add(chunk_bytes(o_.chunks[step]), std::memory_order_relaxed);
        if (failed()) return;
        states_[step].store(kPresent, std::memory_order_release);
    }
    states_[step].notify_all();
}

bool AdvisedMapping::in_memory(size_t chunk) {
    const uint64_t bytes = chunk_bytes(chunk);
    if (::mincore(mapping_.base() + chunk * o_.chunk_bytes, bytes, core_map_.data()) != 0) return true;  // faults will tell
    return std::all_of(core_map_.begin(), core_map_.begin() + static_cast<ptrdiff_t>((bytes + page_ - 1) / page_),
                       [](unsigned char page) { return (page & 1) != 0; });
}

int AdvisedMapping::map(size_t chunk) noexcept {
    std::byte* const begin = mapping_.base() + chunk * o_.chunk_bytes;
    const uint64_t bytes = chunk_bytes(chunk);
    if (!huge_) {
        // Small pages would be faulted in one by one: their reads are queued together first.
        const File& file = files_.at(chunk * o_.chunk_bytes);
        (void)::posix_fadvise(file.buffered_fd(), static_cast<off_t>(chunk * o_.chunk_bytes - file.begin()),
                              static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
    }
    while (::madvise(begin, bytes, MADV_POPULATE_READ) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        if (errno != EINVAL) return errno;
        // A kernel before 5.14: touch every page.
        for (uint64_t at = 0; at < bytes; at += page_) (void)*static_cast<const volatile std::byte*>(begin + at);
        return 0;
    }
    return 0;
}

void AdvisedMapping::fail(size_t chunk, int error) {
    {
        const std::lock_guard lock(mutex_);
        if (failed()) return;
        // EFAULT is what a touch would have got a SIGBUS for.
        const File& file = files_.at(chunk * o_.chunk_bytes);
        failure_ = file.path() + ": reading " + std::to_string(chunk_bytes(chunk)) + " bytes at offset " +
                   std::to_string(chunk * o_.chunk_bytes - file.begin()) + " through the mapping failed: " +
                   (error == EFAULT ? "the file ends before, or its device failed" : std::strerror(error));
        failed_.store(true, std::memory_order_release);
    }
    for (size_t step = 0; step < o_.chunks.size(); ++step) {
        states_[step].store(kFailed, std::memory_order_release);
        states_[step].notify_all();
    }
    moved(true);
}

}  // namespace weir::pager
