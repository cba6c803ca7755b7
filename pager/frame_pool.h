// The frames: anonymous buffers of one Extent each, that reads land in and that installing moves into the Region. The
// pool is the budget: it is mapped whole, populated once and never freed while the pager lives. Frames of a PMD's size
// are transparent huge pages, which move as one.
//
// A thread of the pool's own populates the frames in order while the first reads are already under way; the pager uses
// what populated() says is there. Evicting moves pages back into the pool, so each stretch is registered on the uffd as
// soon as it is populated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

#include "pager/mapping.h"
#include "pager/system.h"
#include "pager/uffd.h"

namespace weir::pager {

class FramePool {
  public:
    // Maps n frames. Throws std::runtime_error. on_progress: called on the populating thread after each stretch.
    FramePool(size_t n_frames, size_t frame_bytes, Uffd* uffd, std::function<void()> on_progress);
    // Stops populating and unmaps. No read may be in flight into a frame.
    ~FramePool();
    FramePool(const FramePool&) = delete;
    FramePool& operator=(const FramePool&) = delete;

    size_t size() const { return n_frames_; }
    std::byte* frame(size_t i) const { return mapping_.base() + i * frame_bytes_; }
    bool contains(uintptr_t address) const {
        return address - reinterpret_cast<uintptr_t>(mapping_.base()) < n_frames_ * frame_bytes_;
    }

    // Frames [0, populated()) may be used. Release order: a frame counted here is mapped and registered.
    size_t populated() const noexcept { return populated_.load(std::memory_order_acquire); }
    // 0, or the errno with which populating ended before the last frame.
    int error() const noexcept { return error_.load(std::memory_order_acquire); }
    // Bytes of the frames that huge pages back at this moment, by smaps: milliseconds.
    uint64_t huge_bytes() const noexcept { return anon_huge_bytes(mapping_.base(), mapping_.bytes()); }

  private:
    void populate(const std::stop_token& stop);

    size_t n_frames_;
    size_t frame_bytes_;
    Uffd* uffd_;
    std::function<void()> on_progress_;
    Mapping mapping_;
    std::atomic<size_t> populated_{0};
    std::atomic<int> error_{0};
    std::jthread thread_;
};

}  // namespace weir::pager
