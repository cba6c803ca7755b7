// What the kernel says of its memory (page sizes, read once at start by whoever builds a pager and never assumed), and its
// clock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::pager {

// The base page, in bytes: the granule of reads, of Extents and of mappings. The kernel's; or what WEIR_PAGE_SIZE in the
// environment asks for, so that a machine with 4 KiB pages lays out, budgets and reads as one with 16 or 64 KiB does.
size_t page_size() noexcept;
// What the kernel maps at least, whatever WEIR_PAGE_SIZE says: the step in which memory is touched.
size_t kernel_page_size() noexcept;
// Bytes that a wish of WEIR_PAGE_SIZE stands for ("16K", "65536"; kernel_page where there is none); 0 where it is no power
// of two from the kernel's page to 64 KiB. main refuses a bad one, page_size() ignores it.
size_t page_size_wanted(const char* wish, size_t kernel_page) noexcept;

// The huge page that one PMD maps (2 MiB on x86 and on 4 KiB ARM kernels), in bytes; the base page where the kernel has
// no transparent huge pages. root: where /sys lies; tests give a folder of their own.
size_t pmd_page_size(const char* root = "") noexcept;

// True where anonymous memory may get transparent huge pages by madvise: by the switch for all sizes and, since Linux
// 6.8, by that of the PMD's size.
bool huge_pages_allowed(const char* root = "") noexcept;

// Bytes of [address, address + bytes) that huge pages back now, by /proc/self/smaps; whole mappings count, so the range
// should be a mapping of its own. 0 where it cannot be read.
uint64_t anon_huge_bytes(const void* address, size_t bytes) noexcept;

// CLOCK_MONOTONIC.
uint64_t monotonic_ns() noexcept;

constexpr size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
constexpr size_t align_down(size_t n, size_t to) { return n / to * to; }

}  // namespace weir::pager
