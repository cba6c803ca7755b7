// The parts of a model mapped for reading, each at its place in their common space of offsets. Nothing lies between them.
// Immutable; throws std::runtime_error where a part cannot be mapped.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pager/file.h"

namespace weir::pager {

class FileMapping {
  public:
    explicit FileMapping(FileParts files);
    ~FileMapping();
    FileMapping(const FileMapping&) = delete;
    FileMapping& operator=(const FileMapping&) = delete;

    // Where offset 0 is, and up to where parts go, in whole pages.
    std::byte* base() const { return base_; }
    uint64_t bytes() const { return bytes_; }

  private:
    void* mapping_ = nullptr;
    size_t mapping_bytes_ = 0;
    std::byte* base_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace weir::pager
