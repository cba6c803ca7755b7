// A stretch of private anonymous address space, aligned and left out of forked children: a child that inherited it would
// share its pages, and a shared page cannot be moved (EBUSY).
#pragma once

#include <cstddef>

namespace weir::pager {

class Mapping {
  public:
    Mapping() = default;
    // Maps bytes at a multiple of alignment, not yet backed. huge: ask for transparent huge pages, or for none. `what`
    // names it in messages. Throws std::runtime_error.
    Mapping(size_t bytes, size_t alignment, bool huge, const char* what);
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    ~Mapping();

    std::byte* base() const { return base_; }
    size_t bytes() const { return bytes_; }

  private:
    void* mapping_ = nullptr;  // what was mapped, alignment included
    size_t mapping_bytes_ = 0;
    std::byte* base_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace weir::pager
