#include "runtime/model/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/error.h"
#include "runtime/model/printable.h"

namespace weir {

PartialFile::PartialFile(const std::string& path) : path_(path), partial_(path + ".partial") {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
        throw Error(path + ": is no regular file; name another");
    }
    fd_ = create();
    if (fd_ < 0 && errno == EEXIST && ::unlink(partial_.c_str()) == 0) fd_ = create();  // of a run that was killed
    if (fd_ < 0) fail("cannot create", errno);
}

PartialFile::~PartialFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(partial_.c_str());
}

void PartialFile::reserve(uint64_t bytes) {
    struct statvfs disk {};
    if (::fstatvfs(fd_, &disk) == 0) {
        const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
        if (free < bytes) {
            throw Error(path_ + ": no room: " + std::to_string(bytes >> 20) + " MiB are needed, " +
                        std::to_string(free >> 20) + " MiB are free");
        }
    }
    // Where the file system can, the room is taken now rather than missed later. It need not be able to.
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) fail("cannot take the room", errno);
}

void PartialFile::write(uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail("cannot write", errno);
        bytes = bytes.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
}

void PartialFile::sync() {
    if (::fdatasync(fd_) != 0) fail("cannot write", errno);
}

void PartialFile::finish(uint64_t bytes) {
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("cannot set the size", errno);
    if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("cannot rename to " + quoted(path_), errno);
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) == 0) return;
    const int error = errno;
    ::unlink(path_.c_str());
    throw Error(path_ + ": cannot write: " + std::strerror(error));
}

int PartialFile::create() const { return ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); }

void PartialFile::fail(const std::string& what, int error) const {
    throw Error(partial_ + ": " + what + ": " + std::strerror(error));
}

}  // namespace weir
