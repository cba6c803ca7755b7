// What the kernel says of its memory: page sizes. Read once at start by whoever builds a pager; never assumed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::pager {

// The base page, in bytes.
size_t page_size() noexcept;

// The huge page that one PMD maps (2 MiB on x86 and on 4 KiB ARM kernels), in bytes; the base page where the kernel has
// no transparent huge pages.
size_t pmd_page_size() noexcept;

// True where anonymous memory may get transparent huge pages by madvise.
bool huge_pages_allowed() noexcept;

// Bytes of [address, address + bytes) that huge pages back now, by /proc/self/smaps; whole mappings count, so the range
// should be a mapping of its own. 0 where it cannot be read.
uint64_t anon_huge_bytes(const void* address, size_t bytes) noexcept;

constexpr size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
constexpr size_t align_down(size_t n, size_t to) { return n / to * to; }

}  // namespace weir::pager
