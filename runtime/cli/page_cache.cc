#include "runtime/cli/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "runtime/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// Pages that the kernel is still writing, or holds in a batch of one CPU, leave at a later try.
constexpr int kTries = 10;
constexpr useconds_t kBetweenTries_us = 50'000;

// mincore() shows others' pages to who owns the file or may write it; to anybody else all pages look present.
bool may_look(int fd, const struct stat& st) {
    if (::geteuid() == 0 || st.st_uid == ::geteuid()) return true;
    return ::faccessat(fd, "", W_OK, AT_EMPTY_PATH | AT_EACCESS) == 0;
}

uint64_t cached_bytes(int fd, uint64_t size) {
    if (size == 0) return 0;
    void* const mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) return 0;
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> present((size + page - 1) / page);
    const bool known = ::mincore(mapping, size, present.data()) == 0;
    ::munmap(mapping, size);
    if (!known) return 0;
    return page * static_cast<uint64_t>(std::count_if(present.begin(), present.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

}  // namespace

std::optional<uint64_t> drop_page_cache(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st = {};
    if (fd < 0 || ::fstat(fd, &st) != 0) {
        const int error = errno;
        if (fd >= 0) ::close(fd);
        throw Error(path + ": cannot open: " + std::strerror(error));
    }
    std::optional<uint64_t> left;
    for (int i = 0; i < kTries; ++i) {
        if (i > 0) ::usleep(kBetweenTries_us);
        (void)::fsync(fd);  // only clean pages leave
        (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (!may_look(fd, st)) break;
        left = cached_bytes(fd, static_cast<uint64_t>(st.st_size));
        if (*left == 0) break;
    }
    ::close(fd);
    return left;
}

ReadAhead::ReadAhead(const std::string& path) {
    struct stat st = {};
    if (::stat(path.c_str(), &st) != 0) return;
    std::error_code gone;
    const fs::path device = fs::canonical(
        "/sys/dev/block/" + std::to_string(major(st.st_dev)) + ":" + std::to_string(minor(st.st_dev)), gone);
    if (gone) return;
    for (const fs::path& folder : {device, device.parent_path()}) {  // a partition's queue is its disk's
        const fs::path file = folder / "queue/read_ahead_kb";
        if (!fs::exists(file)) continue;
        file_ = file.string();
        return;
    }
}

ReadAhead::~ReadAhead() {
    if (before_) std::ofstream(file_) << *before_;
}

std::optional<uint64_t> ReadAhead::kib() const {
    if (file_.empty()) return std::nullopt;
    std::ifstream file(file_);
    uint64_t kib = 0;
    return file >> kib ? std::optional(kib) : std::nullopt;
}

std::string ReadAhead::set(uint64_t kib) {
    const std::optional<uint64_t> now = this->kib();
    if (!now) return "the model lies on no block device whose read-ahead can be read";
    if (*now == kib) return "";
    std::ofstream file(file_);
    if (!file || !(file << kib).flush()) return file_ + " cannot be written: " + std::strerror(errno);
    if (!before_) before_ = now;
    return this->kib() == kib ? "" : file_ + " does not take " + std::to_string(kib);
}

}  // namespace weir
