#include "runtime/model/file_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/error.h"

namespace weir {

FileInput::FileInput(const GgufFile& file) : file_(file), fd_(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw Error(file.path() + ": cannot open: " + std::strerror(errno));
}

FileInput::~FileInput() { ::close(fd_); }

void FileInput::read(uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
        const ssize_t n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            throw Error(file_.path() + ": at byte " + std::to_string(offset) + ": cannot read: " +
                        (n < 0 ? std::strerror(errno) : "the file ends before its size when it was opened"));
        }
        out = out.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
}

}  // namespace weir
