// The file that a bench reads: given, or made for the run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pager/file.h"
#include "pager/mapping.h"

namespace weir::bench {

// Opens `path`; nullptr: what WEIR_BENCH_FILE names; neither: a temporary file of `bytes` in the current folder, which is
// gone when the program ends, however it ends. Whatever the page cache has of it is dropped. Throws std::runtime_error.
pager::File open_bench_file(const char* path, uint64_t bytes);

// n buffers of one PMD page each, populated: huge pages where the machine gives them.
pager::Mapping huge_frames(size_t n);

}  // namespace weir::bench
