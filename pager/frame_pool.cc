#include "pager/frame_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pager/memory_nodes.h"
#include "pager/system.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace weir::pager {
namespace {

// Bytes populated between two looks at the stop flag and two steps of progress: large enough to be cheap, small enough
// that the first read does not wait (32 MiB take 3 to 8 ms).
constexpr size_t kStretch = 32u << 20;

}  // namespace

FramePool::FramePool(size_t n_frames, size_t frame_bytes, Uffd* uffd, std::function<void()> on_progress)
    : n_frames_(n_frames), frame_bytes_(frame_bytes), uffd_(uffd), on_progress_(std::move(on_progress)) {
    const size_t pmd = pmd_page_size();
    const bool huge = frame_bytes % pmd == 0;
    // A frame is a multiple of the granule of reads, which asks the same of memory.
    mapping_ = Mapping(n_frames * frame_bytes, huge ? pmd : std::min(frame_bytes, pmd), huge, "frames");
    // Advice: where it is refused, the kernel places the frames by itself.
    (void)interleave(mapping_.base(), mapping_.bytes(), nodes_for_frames(numa_nodes(), own_cpus()));
    thread_ = std::jthread([this](const std::stop_token& stop) { populate(stop); });
}

FramePool::~FramePool() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
}

void FramePool::populate(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "weir-frames");
    const size_t step = std::max<size_t>(1, kStretch / frame_bytes_);
    for (size_t done = 0; done < n_frames_ && !stop.stop_requested();) {
        const size_t n = std::min(step, n_frames_ - done);
        int error = 0;
        while (::madvise(frame(done), n * frame_bytes_, MADV_POPULATE_WRITE) != 0) {
            if (errno == EINTR || errno == EAGAIN) continue;
            error = errno;
            break;
        }
        if (error == EINVAL) {  // a kernel before 5.14: touch every page
            for (size_t at = 0; at < n * frame_bytes_; at += kernel_page_size())
                static_cast<volatile std::byte*>(frame(done))[at] = std::byte{0};
            error = 0;
        }
        if (error == 0 && uffd_ != nullptr) error = -uffd_->register_range(frame(done), n * frame_bytes_);
        if (error != 0) {
            error_.store(error, std::memory_order_release);
            on_progress_();
            return;
        }
        done += n;
        populated_.store(done, std::memory_order_release);  // acquire in populated()
        on_progress_();
    }
}

}  // namespace weir::pager
