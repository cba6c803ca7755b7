#include "pager/frame_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pager/check.h"
#include "pager/memory_nodes.h"
#include "pager/system.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace weir::pager {
namespace {

// Bytes populated between two looks at orders and two steps of progress: large enough to be cheap, small enough that neither
// the first read waits nor whoever wants the address space's lock, which populating holds (3.5 ms at 0.6 GB/s).
constexpr size_t kStretch = 2u << 20;

}  // namespace

void FramePool::Belt::push(uint32_t frame) noexcept {
    const uint64_t at = put.load(std::memory_order_relaxed);
    frames[at % frames.size()] = frame;
    put.store(at + 1, std::memory_order_release);  // acquire in pop()
}

bool FramePool::Belt::pop(uint32_t* frame) noexcept {
    const uint64_t at = taken.load(std::memory_order_relaxed);
    if (at == put.load(std::memory_order_acquire)) return false;
    *frame = frames[at % frames.size()];
    taken.store(at + 1, std::memory_order_relaxed);
    return true;
}

FramePool::FramePool(size_t room, size_t wanted, size_t frame_bytes, Uffd* uffd, std::function<void()> on_progress)
    : room_(room), frame_bytes_(frame_bytes), uffd_(uffd), on_progress_(std::move(on_progress)), wanted_(wanted) {
    CHECK(wanted <= room);
    const size_t pmd = pmd_page_size();
    const bool huge = frame_bytes % pmd == 0;
    // A frame is a multiple of the granule of reads, which asks the same of memory.
    mapping_ = Mapping(room * frame_bytes, huge ? pmd : std::min(frame_bytes, pmd), huge, "frames");
    // Advice: where it is refused, the kernel places the frames by itself.
    (void)interleave(mapping_.base(), mapping_.bytes(), nodes_for_frames(numa_nodes(), own_cpus()));
    populated_.frames.resize(room);
    given_.frames.resize(room);
    states_.assign(room, kFresh);
    for (std::jthread& thread : threads_) thread = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

FramePool::~FramePool() {
    for (std::jthread& thread : threads_) thread.request_stop();
    wake();
    for (std::jthread& thread : threads_) thread.join();
}

bool FramePool::take(uint32_t* frame) noexcept { return populated_.pop(frame); }

void FramePool::give(uint32_t frame) noexcept {
    given_.push(frame);
    wake();
}

void FramePool::want(size_t n) noexcept {
    CHECK(n <= room_);
    wanted_.store(n, std::memory_order_relaxed);
    error_.store(0, std::memory_order_relaxed);
    wake();
}

void FramePool::wake() noexcept {
    orders_.fetch_add(1, std::memory_order_release);  // acquire in serve()
    orders_.notify_all();
}

void FramePool::serve(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "weir-frames");
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
        const uint32_t seen = orders_.load(std::memory_order_acquire);
        take_given();  // first: what is given back may be what a limit waits for
        if (populate_stretch(lock)) {
            on_progress_();
            continue;
        }
        lock.unlock();
        orders_.wait(seen, std::memory_order_acquire);
        lock.lock();
    }
}

void FramePool::take_given() noexcept {
    uint32_t given;
    while (given_.pop(&given)) {
        // Fails only for a range that is not mapped, and this one is.
        (void)::madvise(frame(given), frame_bytes_, MADV_DONTNEED);
        states_[given] = uffd_ != nullptr ? kHollow : kFresh;
        first_empty_ = std::min<size_t>(first_empty_, given);
        backed_.fetch_sub(1, std::memory_order_release);
    }
}

// True where something was done, or has failed just now. Lets go of the lock meanwhile.
bool FramePool::populate_stretch(std::unique_lock<std::mutex>& lock) noexcept {
    const size_t taken = backed_.load(std::memory_order_relaxed) + being_populated_;
    const size_t wanted = wanted_.load(std::memory_order_relaxed);
    if (taken >= wanted || error_.load(std::memory_order_relaxed) != 0) return false;
    while (first_empty_ < room_ && states_[first_empty_] >= kBeingPopulated) ++first_empty_;
    const size_t first = first_empty_;
    const size_t limit = std::min({wanted - taken, std::max<size_t>(1, kStretch / frame_bytes_), room_ - first});
    State state = states_[first];
    size_t n = 0;
    for (; n < limit && states_[first + n] == state; ++n) states_[first + n] = kBeingPopulated;
    being_populated_ += n;
    lock.unlock();
    const int error = populate(first, n, &state);
    lock.lock();
    being_populated_ -= n;
    for (size_t i = 0; i < n; ++i) states_[first + i] = state;
    if (error != 0) {
        first_empty_ = std::min(first_empty_, first);
        error_.store(error, std::memory_order_release);
        return true;
    }
    backed_.fetch_add(n, std::memory_order_release);
    for (size_t i = 0; i < n; ++i) populated_.push(static_cast<uint32_t>(first + i));
    return true;
}

// Gives memory to frames, all of one state, and says the state that they are in then. 0 or the errno; what memory a part of
// them got is given back then.
int FramePool::populate(size_t first, size_t n, State* state) noexcept {
    std::byte* const begin = frame(first);
    const size_t bytes = n * frame_bytes_;
    if (*state == kHollow) {
        const int error = -uffd_->unregister_range(begin, bytes);
        if (error != 0) return error;  // still registered, hence still hollow
    }
    int error = 0;
    while (::madvise(begin, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        error = errno;
        break;
    }
    if (error == EINVAL) {  // a kernel before 5.14: touch every page
        for (size_t at = 0; at < bytes; at += kernel_page_size()) static_cast<volatile std::byte*>(begin)[at] = std::byte{0};
        error = 0;
    }
    if (error == 0 && uffd_ != nullptr) error = -uffd_->register_range(begin, bytes);
    *state = error == 0 ? kBacked : kFresh;
    if (error != 0) (void)::madvise(begin, bytes, MADV_DONTNEED);
    return error;
}

}  // namespace weir::pager
