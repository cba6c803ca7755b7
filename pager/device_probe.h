// How fast the storage under a file is, found out by reading from it as the pager does: whole frames, many in flight,
// into huge pages. What it gives is the bound that streaming is measured against and that plans are made with.
//
// Any thread; a probe blocks for as long as it measures. Frames are taken for the time of a probe and given back:
// depth * read_bytes, or all bytes where they are to be fresh. Throws std::runtime_error with one line where the file cannot be read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pager/file.h"
#include "pager/read_queue.h"

namespace weir::pager {

struct DeviceSpeed {
    double bytes_per_s = 0;
    double seconds = 0;
    uint64_t bytes = 0;         // that were read
    size_t depth = 0;           // reads in flight
    size_t read_bytes = 0;      // of one read
    bool huge_frames = false;   // the frames they landed in were huge pages, by smaps
    const char* reader = "";    // "io_uring", "pread"
};

struct DeviceProbe {
    size_t depth = 16;
    uint64_t bytes = 512u << 20;  // at most
    double seconds_limit = 1;     // no read begins after it
    uint64_t from = 0;            // offset of the first read; the end of the file is followed by its beginning
    ReaderRung reader = ReaderRung::kAuto;
    bool fresh = false;          // each read lands in memory that nothing has touched before, as in a run's first pass
    size_t busy_threads = 0;     // that compute meanwhile, as decode threads do
};

// Sequential reads of 2 MiB (of the whole file, where it is shorter). Where the file is read through the page cache, its
// pages are dropped before and behind: what is measured is the storage.
DeviceSpeed probe_device(const File& file, const DeviceProbe& probe);
inline DeviceSpeed probe_device(const File& file, size_t depth, uint64_t bytes, double seconds_limit) {
    return probe_device(file, DeviceProbe{depth, bytes, seconds_limit, 0, ReaderRung::kAuto});
}

struct DeviceLatency {
    size_t reads = 0;
    size_t read_bytes = 0;  // of one read: the granule of the file
    double p50_us = 0;
    double p99_us = 0;
};

// One read of a granule after another, at random places.
DeviceLatency probe_latency(const File& file, size_t reads, double seconds_limit);

}  // namespace weir::pager
