// What the kernel keeps of a file and how far it reads ahead: what decides how an mmap fares, and what a comparison has to
// hold still. For the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weir {

// Writes the file out and drops it from the page cache. Returns the bytes of it that stayed there, by mincore(); nothing
// where the kernel tells only the file's owner. Throws Error where the file cannot be opened.
std::optional<uint64_t> drop_page_cache(const std::string& path);

// Read-ahead of the block device that a file lies on. Set for as long as the object lives, restored by the destructor.
class ReadAhead {
  public:
    explicit ReadAhead(const std::string& path);
    ~ReadAhead();
    ReadAhead(const ReadAhead&) = delete;
    ReadAhead& operator=(const ReadAhead&) = delete;

    // In KiB, as it is now; nothing where the file lies on no block device that the kernel shows.
    std::optional<uint64_t> kib() const;
    // "" where it is set, else why it stays as it is.
    std::string set(uint64_t kib);

  private:
    std::string file_;  // empty: none
    std::optional<uint64_t> before_;
};

}  // namespace weir
