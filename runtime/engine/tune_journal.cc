#include "runtime/engine/tune_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/error.h"
#include "runtime/model/native_format.h"

namespace weir {
namespace {

constexpr uint64_t kHeaderBytes = 64;
constexpr uint64_t kMagic = 0x314e5554'52494557;  // "WEIRTUN1"

// magic, key, layers done, checksum of the three
using Header = std::array<uint64_t, 4>;
uint64_t header_checksum(const Header& header) { return native_checksum(std::as_bytes(std::span(header).first(3))); }

}  // namespace

TuneJournal::TuneJournal(const std::string& path, uint64_t key, uint64_t stream_bytes, size_t streams,
                         uint64_t scale_bytes, bool anew)
    : path_(path), key_(key), stream_bytes_(stream_bytes), streams_(streams) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot open");
    try {
        if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK) fail("cannot lock");
            throw Error(path + ": is in use: another weir calibrate --tune is at work on it");
        }
        const off_t there = ::lseek(fd_, 0, SEEK_END);
        Header header = {};
        if (there >= static_cast<off_t>(sizeof header)) read(0, std::as_writable_bytes(std::span(header)));
        const bool whole = header[0] == kMagic && header[3] == header_checksum(header);
        if (!anew && there != 0 && !(whole && header[1] == key))
            throw UsageError(
                path + ": is of a tuning of another model, text or with other options; give --force to begin anew");
        if (!anew && whole) {
            done_ = header[2];
            return;
        }
        if (::ftruncate(fd_, 0) != 0) fail("cannot make it empty");
        const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes(stream_bytes, streams, scale_bytes)));
        if (error != 0) {
            errno = error;
            fail("cannot take " + std::to_string(bytes(stream_bytes, streams, scale_bytes) >> 20) + " MiB");
        }
        write_header();
    } catch (...) {
        ::close(fd_);
        throw;
    }
}

TuneJournal::~TuneJournal() {
    if (discard_) ::unlink(path_.c_str());
    ::close(fd_);
}

uint64_t TuneJournal::bytes(uint64_t stream_bytes, size_t streams, uint64_t scale_bytes) {
    return kHeaderBytes + 2 * streams * stream_bytes + scale_bytes;
}

uint64_t TuneJournal::state_at(size_t half, size_t stream, uint64_t at) const {
    return kHeaderBytes + (half % 2 * streams_ + stream) * stream_bytes_ + at * sizeof(float);
}

void TuneJournal::read_entering(size_t stream, uint64_t at, std::span<float> out) const {
    read(state_at(done_, stream, at), std::as_writable_bytes(out));
}
void TuneJournal::read_leaving(size_t stream, uint64_t at, std::span<float> out) const {
    read(state_at(done_ + 1, stream, at), std::as_writable_bytes(out));
}
void TuneJournal::write_leaving(size_t stream, uint64_t at, std::span<const float> in) {
    write(state_at(done_ + 1, stream, at), std::as_bytes(in));
}
void TuneJournal::write_entering(size_t stream, uint64_t at, std::span<const float> in) {
    write(state_at(done_, stream, at), std::as_bytes(in));
}
void TuneJournal::read_scales(uint64_t at, std::span<std::byte> out) const {
    read(state_at(0, 2 * streams_, 0) + at, out);
}
void TuneJournal::write_scales(uint64_t at, std::span<const std::byte> in) {
    write(state_at(0, 2 * streams_, 0) + at, in);
}

// What the header says is on the disk before the header is.
void TuneJournal::finish_layer() {
    if (::fdatasync(fd_) != 0) fail("cannot write");
    ++done_;
    write_header();
    if (::fdatasync(fd_) != 0) fail("cannot write");
}

void TuneJournal::write_header() {
    Header header = {kMagic, key_, done_, 0};
    header[3] = header_checksum(header);
    write(0, std::as_bytes(std::span(header)));
}

void TuneJournal::read(uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
        const ssize_t n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENODATA;
        if (n <= 0) fail("cannot read");
        out = out.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
}

void TuneJournal::write(uint64_t offset, std::span<const std::byte> in) {
    while (!in.empty()) {
        const ssize_t n = ::pwrite(fd_, in.data(), in.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail("cannot write");
        in = in.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
}

void TuneJournal::fail(const std::string& what) const {
    throw Error(path_ + ": " + what + ": " + std::strerror(errno));
}

}  // namespace weir
