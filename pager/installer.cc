#include "pager/installer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pager/system.h"

namespace weir::pager {
namespace {

// A page whose read has just completed is held for some 10 us until its bio is released; pauses begin there. One that is
// held for 20 ms is held by somebody else (a debugger, process_vm_readv, a leaked pin).
constexpr uint32_t kFirstBusyPauseUs = 50;
constexpr uint32_t kLastBusyPauseUs = 1000;
constexpr uint64_t kBusyPatienceNs = 20'000'000;
// Taking pages back happens inside of a decision, so it is not put off: some thousand tries are about a millisecond.
constexpr int kEvictTries = 2000;
// For memory, pauses are what reclaim takes.
constexpr uint32_t kFirstMemoryPauseUs = 500;
constexpr uint32_t kLastMemoryPauseUs = 50'000;
constexpr uint8_t kMaxCleared = 3;

// True where a page has no memory. A frame's pages are registered: the kernel's own read of an absent one would be a fault,
// which only this thread could answer.
bool lacks_pages(std::byte* from, size_t bytes) noexcept {
    unsigned char present[256];
    const size_t page = kernel_page_size();
    for (size_t at = 0; at < bytes; at += sizeof present * page) {
        const size_t length = std::min(sizeof present * page, bytes - at);
        if (::mincore(from + at, length, present) != 0) return false;  // advice: copying says what is wrong
        if (std::any_of(present, present + length / page, [](unsigned char p) { return (p & 1) == 0; })) return true;
    }
    return false;
}

}  // namespace

Installer::Installer(Uffd* uffd, size_t extent_bytes, bool copies, uint32_t patience_ms, Counters* counters)
    : uffd_(uffd),
      extent_bytes_(extent_bytes),
      copies_(copies),
      patience_ns_(uint64_t{patience_ms} * 1'000'000),
      counters_(counters) {}

Installer::Progress Installer::install(Job* job, std::byte* slot, std::byte* frame) noexcept {
    if (!copies_ && refusals_ >= kMaxRefusals) job->by_copy = true;
    for (;;) {
        const bool copy = copies_ || job->by_copy;
        if (job->by_copy && lacks_pages(frame + job->done, extent_bytes_ - job->done)) {
            (void)failed("copying it", "pages of its frame are gone");
            return drop(slot, extent_bytes_) ? Progress::kLost : Progress::kFailed;
        }
        const Outcome outcome = copy ? uffd_->copy(slot, frame, extent_bytes_, &job->done)
                                     : uffd_->move(slot, frame, extent_bytes_, &job->done);
        switch (outcome) {
            case Outcome::kDone:
                if (!copy) refusals_ = 0;
                if (job->by_copy) {
                    counters_->copied_moves.fetch_add(1, std::memory_order_relaxed);
                    if (!drop(frame, extent_bytes_)) return failed("emptying its frame", std::strerror(errno));
                }
                return Progress::kDone;
            case Outcome::kBusy:
                counters_->busy_retries.fetch_add(1, std::memory_order_relaxed);
                if (job->since_ns == 0 || copy || monotonic_ns() - job->since_ns < kBusyPatienceNs)
                    return later(job, kFirstBusyPauseUs, kLastBusyPauseUs);
                break;
            case Outcome::kNoMemory: return later(job, kFirstMemoryPauseUs, kLastMemoryPauseUs);
            case Outcome::kExists:
                if (job->cleared++ < kMaxCleared && drop(slot + job->done, extent_bytes_ - job->done)) continue;
                break;
            case Outcome::kGone: return failed(copy ? "copying it" : "moving it", "the process is ending");
            case Outcome::kFatal: break;
        }
        if (copy) return failed("copying it", std::strerror(uffd_->last_error()));
        // Moving is out of the question for this one.
        ++refusals_;
        job->by_copy = true;
        job->cleared = 0;
        job->since_ns = 0;
        counters_->move_error.store(uffd_->last_error(), std::memory_order_relaxed);
    }
}

Installer::Progress Installer::later(Job* job, uint32_t first_us, uint32_t last_us) noexcept {
    const uint64_t now = monotonic_ns();
    if (job->since_ns == 0) {
        job->since_ns = now;
        job->pause_us = 0;
    }
    if (now - job->since_ns > patience_ns_)
        return failed(copies_ || job->by_copy ? "copying it" : "moving it", std::strerror(uffd_->last_error()));
    job->pause_us = std::clamp(2 * job->pause_us, first_us, last_us);
    job->due_ns = now + uint64_t{job->pause_us} * 1000;
    return Progress::kLater;
}

Installer::Progress Installer::failed(const char* step, const char* reason) noexcept {
    failed_step_ = step;
    failed_reason_ = reason;
    return Progress::kFailed;
}

bool Installer::drop(std::byte* from, size_t bytes) noexcept { return ::madvise(from, bytes, MADV_DONTNEED) == 0; }

Installer::Eviction Installer::evict(std::byte* slot, std::byte* frame) noexcept {
    if (frame != nullptr && refusals_ < kMaxRefusals) {
        size_t done = 0;
        for (int i = 0; i < kEvictTries; ++i) {
            const Outcome outcome = uffd_->move(frame, slot, extent_bytes_, &done);
            if (outcome == Outcome::kDone) return Eviction::kKept;
            if (outcome != Outcome::kBusy) break;
            counters_->busy_retries.fetch_add(1, std::memory_order_relaxed);
        }
        ++refusals_;
        counters_->move_error.store(uffd_->last_error(), std::memory_order_relaxed);
    }
    if (frame != nullptr) counters_->hollow_frames.fetch_add(1, std::memory_order_relaxed);
    if (drop(slot, extent_bytes_)) return Eviction::kHollow;
    (void)failed("dropping its pages", std::strerror(errno));
    return Eviction::kFailed;
}

}  // namespace weir::pager
