// The bytes of a model file, read anywhere by any thread. Throws Error that names the file and the place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/model/gguf.h"

namespace weir {

class FileInput {
  public:
    // file: of one part; must outlive this.
    explicit FileInput(const GgufFile& file);
    ~FileInput();
    FileInput(const FileInput&) = delete;
    FileInput& operator=(const FileInput&) = delete;

    void read(uint64_t offset, std::span<std::byte> out) const;

  private:
    const GgufFile& file_;
    int fd_;
};

}  // namespace weir
