// A forward reader over the start of a file that nobody vouches for: numbers are little endian, every read is
// checked against the file's size, and arithmetic on what was read goes through add(), mul() and align_up(),
// which throw instead of wrapping. Every failure is an Error "FILE: at byte N: reason".
//
// It holds a window of at most 1 MiB, so reading costs no more memory than that and reads at most that much
// further than asked. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace weir {

class ByteReader {
  public:
    // Reads up to out.size() bytes at offset and returns how many there were; throws Error where reading
    // fails.
    using ReadAt = std::function<size_t(uint64_t offset, std::span<std::byte> out)>;

    ByteReader(std::string name, uint64_t file_size, ReadAt read_at);

    uint64_t position() const { return window_offset_ + used_; }
    uint64_t remaining() const { return file_size_ - position(); }

    template <typename T>
    requires std::is_arithmetic_v<T> T number() {
        T value;
        copy(&value, sizeof(T), "a number");
        return value;
    }

    // The next n bytes as text. The caller has bounded n; it is checked against what remains before memory is
    // taken.
    std::string text(uint64_t n);

    uint64_t add(uint64_t a, uint64_t b, const char* what) const;
    uint64_t mul(uint64_t a, uint64_t b, const char* what) const;
    // a rounded up to a multiple of alignment, a power of two.
    uint64_t align_up(uint64_t a, uint64_t alignment, const char* what) const;

    // Throws where fewer than n bytes remain.
    void need(uint64_t n, const char* what) const;

    [[noreturn]] void fail(const std::string& reason) const { fail_at(position(), reason); }
    [[noreturn]] void fail_at(uint64_t offset, const std::string& reason) const;

  private:
    void copy(void* out, size_t n, const char* what);
    void refill();

    std::string name_;
    uint64_t file_size_;
    ReadAt read_at_;
    std::vector<std::byte> window_;  // [0, filled_) holds the file from window_offset_ on
    uint64_t window_offset_ = 0;
    size_t filled_ = 0;
    size_t used_ = 0;
};

}  // namespace weir
