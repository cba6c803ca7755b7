// The frames: anonymous buffers of one Extent each, that reads land in and that installing moves into the Region. The
// pool is the budget: as many frames as wanted() says hold memory, and memory goes back to the kernel only when fewer are
// wanted. Frames of a PMD's size are transparent huge pages, which move as one.
//
// States of a frame. Address space is there for `room` frames from the start:
//     fresh --populated, registered--> backed --give()--> hollow --unregistered, populated, registered--> backed
// A frame is the pool's own until it is backed, and the pager's from take() to give(). Evicting moves pages back
// into frames, so they are registered on the uffd once populated; populating a registered one would be a fault of its own.
//
// Threads of the pool's own populate frames while reads are already under way, and give memory back: neither may hold up the
// pager, which neither locks nor allocates. They are two, since populating may bound the first pass: a virtual machine whose
// host had the memory back gets it at 0.6 GB/s by one thread and at 1.2 by two (5 and 11 GB/s where it had not). take(),
// give() and want() belong to the pager thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "pager/mapping.h"
#include "pager/system.h"
#include "pager/uffd.h"

namespace weir::pager {

class FramePool {
  public:
    // Maps `room` frames and begins to populate `wanted` of them. uffd: where frames are registered, or nullptr.
    // on_progress: called on a thread of the pool's after each stretch. Throws std::runtime_error.
    FramePool(size_t room, size_t wanted, size_t frame_bytes, Uffd* uffd, std::function<void()> on_progress);
    // Stops populating and unmaps. No read may be in flight into a frame.
    ~FramePool();
    FramePool(const FramePool&) = delete;
    FramePool& operator=(const FramePool&) = delete;

    size_t room() const { return room_; }
    std::byte* frame(size_t i) const { return mapping_.base() + i * frame_bytes_; }
    bool contains(uintptr_t address) const {
        return address - reinterpret_cast<uintptr_t>(mapping_.base()) < room_ * frame_bytes_;
    }

    // A frame that was populated since; false where there is none.
    bool take(uint32_t* frame) noexcept;
    // The frame's memory goes back to the kernel. Nothing may be in flight into it, and no page of it in the Region.
    void give(uint32_t frame) noexcept;
    // How many frames should hold memory from now on. More are populated in the background; of fewer the pager gives.
    void want(size_t n) noexcept;

    // Frames that hold memory now, taken or not.
    size_t backed() const noexcept { return backed_.load(std::memory_order_acquire); }
    // 0, or the errno that keeps the pool from populating all that is wanted; want() tries again.
    int error() const noexcept { return error_.load(std::memory_order_acquire); }
    // Bytes of the frames that huge pages back at this moment, by smaps: milliseconds.
    uint64_t huge_bytes() const noexcept { return anon_huge_bytes(mapping_.base(), mapping_.bytes()); }

  private:
    // Frame numbers on their way from one thread to the other. Each frame is in one of the two belts at most, so a belt of
    // `room` places is never full.
    struct Belt {
        std::vector<uint32_t> frames;
        std::atomic<uint64_t> put{0};    // release by the one who puts
        std::atomic<uint64_t> taken{0};  // used by the one who takes alone
        void push(uint32_t frame) noexcept;
        bool pop(uint32_t* frame) noexcept;
    };
    enum State : uint8_t { kFresh, kHollow, kBeingPopulated, kBacked };

    void serve(const std::stop_token& stop);
    void take_given() noexcept;
    bool populate_stretch(std::unique_lock<std::mutex>& lock) noexcept;
    int populate(size_t first, size_t n, State* state) noexcept;
    void wake() noexcept;

    size_t room_;
    size_t frame_bytes_;
    Uffd* uffd_;
    std::function<void()> on_progress_;
    Mapping mapping_;
    Belt populated_;                   // to the pager
    Belt given_;                       // from the pager
    std::atomic<size_t> wanted_;
    std::atomic<size_t> backed_{0};
    std::atomic<int> error_{0};
    std::atomic<uint32_t> orders_{0};  // counts what the pool's threads have to look at
    std::mutex mutex_;                 // of the pool's threads, among themselves; guards what follows and their ends of the belts
    std::vector<State> states_;
    size_t being_populated_ = 0;
    size_t first_empty_ = 0;           // no frame before it is empty
    std::jthread threads_[2];
};

}  // namespace weir::pager
