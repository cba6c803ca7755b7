// Live userfaultfd tests: skipped where the kernel does not allow one, failed there when the build requires them
// (-Duffd_tests=required).
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pager/layout.h"

namespace weir::test {

// "" where userfaultfd can be had, else why not.
std::string why_no_uffd();

// A file in a temporary folder whose every eight bytes say where they are; removed at the end.
class PatternFile {
  public:
    explicit PatternFile(uint64_t bytes);
    ~PatternFile();
    const std::string& path() const { return path_; }
    uint64_t bytes() const { return bytes_; }
    static uint64_t word(uint64_t offset) { return (offset + 1) * 0x9e3779b97f4a7c15u; }

  private:
    std::string path_;
    uint64_t bytes_;
};

// Ranges that visit the file out of order: chunks of `chunk` bytes, the even ones first and then the odd ones.
std::vector<pager::ImageRange> shuffled_ranges(uint64_t file_bytes, uint64_t chunk);

// Compares the image at `base` with what the ranges say; stops at `limit` bytes. True where every word is right.
bool image_is_right(const std::byte* base, const std::vector<pager::ImageRange>& ranges, uint64_t begin, uint64_t end,
                    uint64_t file_bytes);

}  // namespace weir::test

#ifdef WEIR_UFFD_REQUIRED
#define WEIR_NEEDS_UFFD() ASSERT_EQ(weir::test::why_no_uffd(), "") << "live userfaultfd tests are required"
#else
#define WEIR_NEEDS_UFFD() \
    if (!weir::test::why_no_uffd().empty()) GTEST_SKIP() << weir::test::why_no_uffd()
#endif
