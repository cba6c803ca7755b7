#include "runtime/model/byte_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/error.h"

namespace weir {

static_assert(std::endian::native == std::endian::little, "numbers are copied from the file as they are");

namespace {

// The window begins small, which is enough for files without a vocabulary, and grows with every refill: a
// header with 32,000 tokens (0.7 MB) comes with four reads, the largest seen (10 MB) with thirteen.
constexpr size_t kFirstWindowBytes = size_t{16} << 10;
constexpr size_t kMaxWindowBytes = size_t{1} << 20;

}  // namespace

ByteReader::ByteReader(std::string name, uint64_t file_size, ReadAt read_at)
    : name_(std::move(name)), file_size_(file_size), read_at_(std::move(read_at)) {}

void ByteReader::fail_at(uint64_t offset, const std::string& reason) const {
    throw Error(name_ + ": at byte " + std::to_string(offset) + ": " + reason);
}

void ByteReader::need(uint64_t n, const char* what) const {
    if (n <= remaining()) return;
    fail(std::string("the file ends inside ") + what + ": " + std::to_string(n) + " bytes needed, " +
         std::to_string(remaining()) + " left; the file is truncated or damaged");
}

void ByteReader::refill() {
    window_offset_ += used_;
    used_ = 0;
    filled_ = 0;
    const size_t size = window_.empty() ? kFirstWindowBytes : std::min(window_.size() * 4, kMaxWindowBytes);
    if (size != window_.size()) window_ = std::vector<std::byte>(size);
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(size, file_size_ - window_offset_));
    filled_ = read_at_(window_offset_, std::span(window_).first(wanted));
    if (filled_ == 0)
        fail("the file has become shorter than the " + std::to_string(file_size_) + " bytes it had");
}

void ByteReader::copy(void* out, size_t n, const char* what) {
    need(n, what);
    auto* to = static_cast<std::byte*>(out);
    while (n > 0) {
        if (used_ == filled_) refill();
        const size_t step = std::min(n, filled_ - used_);
        std::memcpy(to, window_.data() + used_, step);
        used_ += step;
        to += step;
        n -= step;
    }
}

std::string ByteReader::text(uint64_t n) {
    need(n, "a string");
    std::string out(static_cast<size_t>(n), '\0');
    copy(out.data(), out.size(), "a string");
    return out;
}

uint64_t ByteReader::add(uint64_t a, uint64_t b, const char* what) const {
    uint64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) fail(std::string(what) + " is larger than any file");
    return sum;
}

uint64_t ByteReader::mul(uint64_t a, uint64_t b, const char* what) const {
    uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) fail(std::string(what) + " is larger than any file");
    return product;
}

uint64_t ByteReader::align_up(uint64_t a, uint64_t alignment, const char* what) const {
    return add(a, alignment - 1, what) & ~(alignment - 1);
}

}  // namespace weir
