#include "pager/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "pager/system.h"

namespace weir::pager {
namespace {

// Tries one direct read of a granule at offset 0, the only test that file systems cannot get wrong: some accept the
// flag and refuse the read. Returns 0 or the errno.
int probe_direct(int fd, size_t granule) {
    void* buffer = std::aligned_alloc(granule, granule);
    if (buffer == nullptr) return ENOMEM;
    const ssize_t n = ::pread(fd, buffer, granule, 0);
    const int error = n < 0 ? errno : 0;
    std::free(buffer);
    return error;
}

int64_t mtime_ns(const struct stat& st) { return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec; }

}  // namespace

File File::open(const std::string& path, IoMode wanted) {
    File file;
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

    int error = 0;
    if (wanted != IoMode::kBuffered) {
        file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
        error = file.fd_ < 0 ? errno : probe_direct(file.fd_, file.granule_);
        file.direct_ = error == 0;
        if (!file.direct_) file.why_buffered_ = std::string("direct reads fail: ") + std::strerror(error);
    } else {
        file.why_buffered_ = "asked for";
    }
    if (wanted == IoMode::kDirect && !file.direct_)
        throw std::runtime_error(path + ": " + file.why_buffered_ + "; use --io auto");
    if (!file.direct_) {
        if (file.fd_ >= 0) ::close(file.fd_);
        file.fd_ = ::fcntl(file.buffered_fd_, F_DUPFD_CLOEXEC, 0);
        if (file.fd_ < 0) throw std::runtime_error(path + ": cannot open: " + std::strerror(errno));
    }
    return file;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      why_buffered_(std::move(other.why_buffered_)),
      size_(other.size_),
      mtime_ns_(other.mtime_ns_),
      fd_(std::exchange(other.fd_, -1)),
      buffered_fd_(std::exchange(other.buffered_fd_, -1)),
      granule_(other.granule_),
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

}  // namespace weir::pager
