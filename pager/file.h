// The weight file as the pager reads it: opened for direct I/O where the file system takes it, else buffered with the
// page cache dropped behind the reads. Which of the two was taken, and why, can be asked.
//
// Immutable after open(); the descriptors may be used by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weir::pager {

enum class IoMode : uint8_t { kAuto, kDirect, kBuffered };

class File {
  public:
    // Throws std::runtime_error with one line that names the file and the reason. kDirect fails where direct reads do
    // not work; kAuto tries one and falls back.
    // begin: where its first byte lies among the parts of a model (see FileParts).
    static File open(const std::string& path, IoMode wanted, uint64_t begin = 0);

    File(File&& other) noexcept;
    File& operator=(File&&) = delete;
    ~File();

    const std::string& path() const { return path_; }
    uint64_t begin() const { return begin_; }
    uint64_t size() const { return size_; }
    bool direct() const { return direct_; }
    const std::string& why_buffered() const { return why_buffered_; }
    // For reads aligned to granule() in offset, length and memory: the last one may end past the end of the file.
    int fd() const { return fd_; }
    // For plain reads of any alignment, through the page cache.
    int buffered_fd() const { return buffered_fd_; }
    // What reads through fd() are aligned to: the base page, or more where the file system wants more.
    size_t granule() const { return granule_; }
    // What direct reads need by the file system's own word (STATX_DIOALIGN, Linux 6.1), of offsets and lengths, and of
    // memory; 0 where it does not say, and only the probe has spoken.
    size_t stated_offset_align() const { return stated_offset_align_; }
    size_t stated_memory_align() const { return stated_memory_align_; }

    // nullptr while the file is the one that was opened; else what happened: "shrank", "changed".
    const char* changed() const noexcept;

    // Drops [offset, offset + bytes) from the page cache.
    void drop_cache(uint64_t offset, uint64_t bytes) const noexcept;

  private:
    File() = default;
    std::string why_no_direct();

    std::string path_;
    std::string why_buffered_;
    uint64_t begin_ = 0;
    uint64_t size_ = 0;
    int64_t mtime_ns_ = 0;
    int fd_ = -1;
    int buffered_fd_ = -1;
    size_t granule_ = 0;
    size_t stated_offset_align_ = 0;
    size_t stated_memory_align_ = 0;
    bool direct_ = false;
};

// The files that one model lies in, in one space of offsets: of each its begin() and size(), ascending and without overlap. A
// view, as a span is; the Files must outlive it.
class FileParts {
  public:
    FileParts(const File& file) : FileParts(std::span(&file, 1)) {}  // not explicit: one file is the usual case
    FileParts(std::span<const File> parts) : parts_(parts) {}

    std::span<const File> parts() const { return parts_; }
    // That holds the offset; the last one before it where none does.
    const File& at(uint64_t offset) const noexcept;
    uint64_t end() const { return parts_.back().begin() + parts_.back().size(); }

    // Of all: whether every one is read directly, why the first other one is not, and what reads of any are aligned to.
    bool direct() const;
    const std::string& why_buffered() const;
    size_t granule() const;

    void drop_cache(uint64_t offset, uint64_t bytes) const noexcept;

  private:
    std::span<const File> parts_;
};

}  // namespace weir::pager
