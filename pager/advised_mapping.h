// The rung without userfaultfd: the file mapped, and the kernel told in time what will be read and what will not. The
// mapping is cut into chunks of a huge page each. A fixed set of them is kept; the others stream through a ring: helper
// threads map them ahead of the slowest worker in the order of the walk (MADV_POPULATE_READ, which waits for the reads, so
// that as many are in flight as there are helpers) and take those behind away again (MADV_DONTNEED, POSIX_FADV_DONTNEED).
// MADV_RANDOM and MADV_HUGEPAGE together make a fault read its chunk and nothing around it, into one huge page where the
// file system has those: the page cache of small pages is four times slower here. What advice cannot do is insist: the
// kernel may take any page back, and a worker that meets such a page faults it in.
//
// The walk is a sequence of steps, each of which touches one chunk; a chunk that two matrices share, which are read at
// different times, has a step for each. The rooms use it as they use the Pager: plan(), acquire(), publish(), ordinals and
// Positions are those of pager.h, with steps in the place of Extents, on the same threads. Failure is data: gates return
// false, failure() has the text. A file that shrinks under a mapping makes its readers die by SIGBUS; whoever maps files
// has a handler for that.
//
// Life: workers must have left the mapping before the destructor runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pager/file.h"
#include "pager/file_mapping.h"
#include "pager/layout.h"

namespace weir::pager {

struct AdvisedOptions {
    size_t chunk_bytes = 0;        // a power of two, at least a page
    std::vector<uint32_t> chunks;  // of each step, in the order of the walk: the chunk's number in the file
    size_t workers = 1;
    size_t held_steps = 2;  // that a worker may hold at a time, as held_extents in residency_policy.h
    size_t frames = 0;      // chunks that may be in memory; at least least_advised_frames(held_steps), or all of them
    bool gates = true;      // false: acquire() lets everything through, and absences fault
};

// What the slowest worker holds, and one more that is being read.
constexpr size_t least_advised_frames(size_t held_steps) { return held_steps + 1; }

struct AdvisedStats {
    uint64_t bytes_mapped = 0;  // of chunks that were not there; /proc/self/io knows what was read
    uint64_t waits = 0;         // gate waits, all workers
    uint64_t stall_us = 0;      // the first worker's time in gates
    size_t kept_chunks = 0;
    size_t ring_chunks = 0;
};

class AdvisedMapping {
  public:
    // Throws std::runtime_error where a file cannot be mapped. `files` must outlive the mapping; each begins at a multiple of
    // chunk_bytes.
    AdvisedMapping(FileParts files, AdvisedOptions options);
    ~AdvisedMapping();
    AdvisedMapping(const AdvisedMapping&) = delete;
    AdvisedMapping& operator=(const AdvisedMapping&) = delete;

    // Where offset 0 is mapped.
    const std::byte* base() const { return mapping_.base(); }
    // True where the chunk of this step is one that stays.
    bool kept(size_t step) const { return chunks_[o_.chunks[step]].kept; }

    // Any thread: where the chunk of each step is at this moment, as far as we know; the kernel may take any page back. What is
    // being read is absent.
    std::vector<Whereabouts> look() const;

    void plan(uint64_t ordinal, size_t first, size_t count) noexcept;
    bool acquire(size_t worker, size_t first, size_t last) noexcept;
    void publish(size_t worker, uint64_t ordinal) noexcept;

    bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
    std::string failure() const;
    AdvisedStats stats() const;
    uint64_t stall_us() const noexcept;  // of stats(), alone

  private:
    enum State : uint32_t { kAbsent, kPresent, kFailed };

    struct alignas(64) Worker {
        std::atomic<uint64_t> position{0};
        std::atomic<uint64_t> waits{0};
        std::atomic<uint64_t> wait_ns{0};
    };
    struct Chunk {
        bool kept = false;
        uint32_t holders = 0;  // steps in the ring that touch it
    };
    struct Stretch {  // of the plan
        uint64_t ordinal;
        size_t first;
        size_t count;
    };
    struct InRing {
        uint64_t ordinal;
        size_t step;
        bool mapped;
    };

    void choose_kept(size_t frames);
    std::vector<uint32_t> reads_per_pass() const;
    uint64_t chunk_bytes(size_t chunk) const;

    // On the helpers.
    void serve(const std::stop_token& stop);
    bool take(uint64_t* ordinal, size_t* step);
    void drop_behind();
    bool in_memory(size_t chunk);
    int map(size_t chunk) noexcept;
    void done(uint64_t ordinal, size_t step);
    void fail(size_t chunk, int error);
    void moved(bool all) noexcept;
    uint64_t least_position() const noexcept;

    const FileParts files_;
    const AdvisedOptions o_;
    const size_t page_;  // the kernel's own, which mappings and mincore() count in
    const FileMapping mapping_;
    bool huge_ = false;  // chunks are huge pages, read by one fault each
    size_t n_kept_ = 0;
    size_t ring_ = 0;

    std::unique_ptr<std::atomic<uint32_t>[]> states_;  // per step; release by the helpers, acquire at gates
    std::vector<Worker> workers_;
    std::atomic<uint32_t> moves_{0};   // counts what may give a helper something to do: what they sleep on
    std::atomic<bool> failed_{false};  // release after the text is written
    std::string failure_;
    std::atomic<uint64_t> bytes_mapped_{0};

    std::mutex mutex_;  // of what follows: the helpers', and the leader's in plan()
    std::deque<Stretch> plan_;
    std::vector<Chunk> chunks_;
    std::deque<InRing> in_ring_;  // ascending ordinals
    size_t ring_used_ = 0;        // distinct chunks in it
    std::vector<unsigned char> core_map_;

    std::vector<std::jthread> helpers_;
};

}  // namespace weir::pager
