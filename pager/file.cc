#include "pager/file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "pager/system.h"

namespace weir::pager {
namespace {

// The largest alignment that is tried: beyond it, reads of an Extent's pieces would mostly fetch what they do not need.
constexpr size_t kLargestGranule = 64u << 10;

// Reads that have to work: one granule at the file's beginning and one that begins at an odd granule, the only test that
// file systems cannot get wrong: some accept the flag and refuse the read. Returns 0 or the errno.
int probe_direct(int fd, size_t granule, uint64_t file_size) {
    void* buffer = std::aligned_alloc(granule, granule);
    if (buffer == nullptr) return ENOMEM;
    int error = 0;
    for (const uint64_t offset : {uint64_t{0}, uint64_t{granule}}) {
        if (error != 0 || (offset > 0 && offset >= file_size)) continue;
        ssize_t n;
        do {
            n = ::pread(fd, buffer, granule, static_cast<off_t>(offset));
        } while (n < 0 && errno == EINTR);
        if (n < 0) error = errno;
    }
    std::free(buffer);
    return error;
}

// "tmpfs", where a file lies in memory: some kernels take O_DIRECT there, but there is nothing to go around.
const char* memory_file_system(int fd) {
    struct statfs fs;
    if (::fstatfs(fd, &fs) != 0) return nullptr;
    if (fs.f_type == TMPFS_MAGIC) return "tmpfs";
    return fs.f_type == RAMFS_MAGIC ? "ramfs" : nullptr;
}

int64_t mtime_ns(const struct stat& st) { return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec; }

}  // namespace

File File::open(const std::string& path, IoMode wanted, uint64_t begin) {
    File file;
    file.begin_ = begin;
    file.path_ = path;
    // O_NONBLOCK: opening a FIFO must not wait for a writer; it means nothing for a regular file.
    file.buffered_fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.buffered_fd_ < 0) throw std::runtime_error(path + ": cannot open: " + std::strerror(errno));
    struct stat st;
    if (::fstat(file.buffered_fd_, &st) != 0) throw std::runtime_error(path + ": cannot stat: " + std::strerror(errno));
    if (!S_ISREG(st.st_mode)) throw std::runtime_error(path + ": not a regular file");
    file.size_ = static_cast<uint64_t>(st.st_size);
    file.mtime_ns_ = mtime_ns(st);
    file.granule_ = page_size();

    const char* const memory = wanted == IoMode::kAuto ? memory_file_system(file.buffered_fd_) : nullptr;
    if (wanted == IoMode::kBuffered) {
        file.why_buffered_ = "asked for";
    } else if (memory != nullptr) {
        file.why_buffered_ = std::string(memory) + " holds the file in memory";
    } else {
        file.why_buffered_ = file.why_no_direct();
        file.direct_ = file.why_buffered_.empty();
    }
    if (wanted == IoMode::kDirect && !file.direct_)
        throw std::runtime_error(path + ": " + file.why_buffered_ + "; use --io auto");
    if (!file.direct_) {
        file.granule_ = page_size();
        if (file.fd_ >= 0) ::close(file.fd_);
        file.fd_ = ::fcntl(file.buffered_fd_, F_DUPFD_CLOEXEC, 0);
        if (file.fd_ < 0) throw std::runtime_error(path + ": cannot open: " + std::strerror(errno));
    }
    return file;
}

// Opens fd_ for direct reads and finds their granule: what the file system states, at least a page, and larger where a
// probe at that is refused as badly aligned. Returns "" or what stands in the way.
std::string File::why_no_direct() {
    struct statx stated;
    if (::statx(buffered_fd_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stated) == 0 && (stated.stx_mask & STATX_DIOALIGN) != 0) {
        if (stated.stx_dio_offset_align == 0) return "the file system takes no direct reads of this file";
        stated_offset_align_ = stated.stx_dio_offset_align;
        stated_memory_align_ = stated.stx_dio_mem_align;
        granule_ = std::max({granule_, stated_offset_align_, stated_memory_align_});
    }
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    int error = fd_ < 0 ? errno : 0;
    if (fd_ >= 0) error = probe_direct(fd_, granule_, size_);
    while (fd_ >= 0 && error == EINVAL && granule_ < kLargestGranule) {
        granule_ *= 2;
        error = probe_direct(fd_, granule_, size_);
    }
    return error == 0 ? "" : std::string("direct reads fail: ") + std::strerror(error);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      why_buffered_(std::move(other.why_buffered_)),
      begin_(other.begin_),
      size_(other.size_),
      mtime_ns_(other.mtime_ns_),
      fd_(std::exchange(other.fd_, -1)),
      buffered_fd_(std::exchange(other.buffered_fd_, -1)),
      granule_(other.granule_),
      stated_offset_align_(other.stated_offset_align_),
      stated_memory_align_(other.stated_memory_align_),
      direct_(other.direct_) {}

File::~File() {
    if (fd_ >= 0) ::close(fd_);
    if (buffered_fd_ >= 0) ::close(buffered_fd_);
}

const char* File::changed() const noexcept {
    struct stat st;
    if (::fstat(buffered_fd_, &st) != 0) return "can no longer be examined";
    if (static_cast<uint64_t>(st.st_size) < size_) return "shrank";
    if (static_cast<uint64_t>(st.st_size) != size_ || mtime_ns(st) != mtime_ns_) return "changed";
    return nullptr;
}

void File::drop_cache(uint64_t offset, uint64_t bytes) const noexcept {
    // Advice: a failure costs page cache, not correctness.
    (void)::posix_fadvise(buffered_fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

const File& FileParts::at(uint64_t offset) const noexcept {
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), offset,
                                        [](uint64_t at, const File& file) { return at < file.begin(); });
    return after == parts_.begin() ? parts_.front() : *std::prev(after);
}

bool FileParts::direct() const { return std::all_of(parts_.begin(), parts_.end(), [](const File& f) { return f.direct(); }); }

const std::string& FileParts::why_buffered() const {
    const auto found = std::find_if(parts_.begin(), parts_.end(), [](const File& f) { return !f.direct(); });
    return (found == parts_.end() ? parts_.front() : *found).why_buffered();
}

size_t FileParts::granule() const {
    size_t largest = 0;
    for (const File& file : parts_) largest = std::max(largest, file.granule());
    return largest;
}

void FileParts::drop_cache(uint64_t offset, uint64_t bytes) const noexcept {
    const File& file = at(offset);
    file.drop_cache(offset - file.begin(), bytes);
}

}  // namespace weir::pager
