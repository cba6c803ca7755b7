// A read queue that remembers what was read: for --trace-io, which shows that bytes that a precision does not need are never
// read. Stands in the place of the queue that it wraps; the pager thread uses it like any other, and pays for one store a
// read. The list is written when the queue goes, one line a read in the order of submission: offset, bytes.
#pragma once

#include <memory>
#include <string>

#include "pager/read_queue.h"

namespace weir {

// Throws Error where the file cannot be made.
std::unique_ptr<pager::ReadQueue> trace_reads(std::unique_ptr<pager::ReadQueue> queue, const std::string& path);

}  // namespace weir
