// The reads under way: Extents and small reads that wait for a place in the queue, reads in flight, the rest of short
// ones, another try for failed ones. What has landed, and what failed for good, is handed to the loop as data.
//
// What a failed read comes to. An error of the device: read again, then once through the page cache (another path through
// the kernel, and dropped behind), then it has failed for good. The kernel has no room for it (EAGAIN, ENOMEM): again
// after a pause that grows, until the patience is spent. The file ends early: failed for good.
//
// Owned by the pager's loop and called by its thread alone. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pager/file.h"
#include "pager/layout.h"
#include "pager/message_queue.h"
#include "pager/pager_shared.h"
#include "pager/read_queue.h"

namespace weir::pager {

class Flights {
  public:
    struct Landing {
        enum Kind : uint8_t { kExtent, kSmall } kind;  // every segment of `extent` is in its frame; one small read is done
        uint32_t extent;
    };

    // files and layout must outlive it. patience_ms: for reads that the kernel puts off.
    Flights(FileParts files, const Layout& layout, std::unique_ptr<ReadQueue> queue, uint32_t patience_ms,
            Counters* counters);

    const char* reader_name() const { return queue_->name(); }
    // Prepares the queue on the pager thread. 0 or -errno.
    int start(int uffd, int event_fd) noexcept { return queue_->start(uffd, event_fd); }
    void watch(int uffd) noexcept { queue_->watch(uffd); }

    // The segments of an absent Extent are to be read into `frame`, before all others where `first` says so.
    void begin(uint32_t extent, std::byte* frame, bool first) noexcept;
    // An Extent that was begun is wanted now: what of it still waits for a place goes next.
    void hurry(uint32_t extent) noexcept;
    bool takes_small() const noexcept { return small_reads_.size() < small_reads_.capacity(); }
    void begin_small(const Message& read) noexcept { small_reads_.push_back(read); }

    // Puts what waits into the queue, as far as it has places. Small reads are first.
    void pump() noexcept;
    // Submits, blocks (see ReadQueue::wait) and takes in what came back; landings() is what has landed by that.
    // stopping: nothing goes again, so that idle() comes true.
    Wakeup wait(int timeout_us, bool stopping) noexcept;
    std::span<const Landing> landings() const noexcept { return landings_; }

    // No read is in flight: no frame is written to any more.
    bool idle() const noexcept { return under_way() == 0; }
    // Reads in flight, and those that pause before another try.
    size_t under_way() const noexcept { return flights_.size() - free_flights_.size(); }

    // A read failed for good; failure() says which and why. The first reason is the one that counts.
    bool failed() const noexcept { return failure_[0] != 0; }
    const char* failure() const noexcept { return failure_; }

  private:
    struct Flight {  // one read in flight
        enum Kind : uint8_t { kFree, kSegment, kSmall } kind = kFree;
        uint8_t attempts = 0;   // that the device failed
        uint32_t extent = 0;
        uint32_t expected = 0;  // bytes that the file has here
        uint32_t done = 0;
        uint32_t pause_us = 0;  // the last pause; 0 where the kernel has not put it off
        uint64_t due_ns = 0;    // pausing until then; 0: in flight
        uint64_t since_ns = 0;  // put off first
        const File* file = nullptr;
        Read read{};            // offset: from the file's own start
    };
    struct Issue {  // an Extent whose segments are being pushed
        uint32_t extent;
        uint32_t next_segment;
        std::byte* frame;
    };

    void push(Flight::Kind kind, uint32_t extent, uint64_t offset, std::byte* into, uint32_t bytes) noexcept;
    bool enqueue(Flight& flight) noexcept;
    void land(const ReadDone& done, bool stopping) noexcept;
    bool goes_again(Flight& flight, int32_t result) noexcept;
    bool put_off(Flight& flight, int error) noexcept;
    bool try_again(Flight& flight, int error) noexcept;
    void free(Flight& flight) noexcept;
    int end_pauses(int timeout_us, bool stopping) noexcept;
    void fail(const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

    const FileParts files_;
    const Layout& layout_;
    std::unique_ptr<ReadQueue> queue_;
    const uint64_t patience_ns_;
    Counters* const counters_;

    std::vector<uint32_t> segments_left_;  // per Extent: of the read under way
    std::vector<Issue> issues_;            // demands first
    std::vector<Message> small_reads_;     // waiting for a flight
    std::vector<Flight> flights_;
    std::vector<uint32_t> free_flights_;
    size_t pausing_ = 0;                   // flights with a due_ns
    std::vector<Landing> landings_;
    char failure_[512] = {};
};

}  // namespace weir::pager
