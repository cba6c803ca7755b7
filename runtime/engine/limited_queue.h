// A read queue that is no faster than a device of so many bytes a second: for --io-limit-mbps, which shows on a fast disk what a
// slow one would give. Reads go to the queue that it wraps at once, and land when such a device would have brought them, one
// after the other; the latency of a single read is that of the real device at least.
#pragma once

#include <cstdint>
#include <memory>

#include "pager/read_queue.h"

namespace weir {

std::unique_ptr<pager::ReadQueue> limit_reads(std::unique_ptr<pager::ReadQueue> queue, uint64_t bytes_per_s);

}  // namespace weir
