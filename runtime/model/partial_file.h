// A file that is whole or not there: written as PATH.partial, which becomes PATH at the end, or goes with the object.
//
// One owner; write() may be called by several threads at once, of different bytes. Throws Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weir {

class PartialFile {
  public:
    // Error where PATH is there and no regular file, or PATH.partial cannot be made; one that a killed run left is replaced.
    explicit PartialFile(const std::string& path);
    ~PartialFile();
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;

    // Takes the room now, where the file system can, rather than missing it later. Error where there is too little.
    void reserve(uint64_t bytes);
    void write(uint64_t offset, std::span<const std::byte> bytes);
    // Returns when what was written is on the disk.
    void sync();
    const std::string& partial_path() const { return partial_; }
    // Sets the size and gives the file its name, in the place of one that may be there.
    void finish(uint64_t bytes);

  private:
    int create() const;
    [[noreturn]] void fail(const std::string& what, int error) const;

    std::string path_;
    std::string partial_;
    int fd_ = -1;
};

}  // namespace weir
