// Builds GGUF headers byte by byte, right or wrong, independently of GgufWriter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace weir::test {

class RawGguf {
  public:
    template <typename T>
    requires std::is_arithmetic_v<T> RawGguf& put(T value) {
        const size_t at = bytes_.size();
        bytes_.resize(at + sizeof(T));
        std::memcpy(bytes_.data() + at, &value, sizeof(T));
        boundaries_.push_back(bytes_.size());
        return *this;
    }
    RawGguf& raw(std::string_view text) {
        const auto* from = reinterpret_cast<const std::byte*>(text.data());
        bytes_.insert(bytes_.end(), from, from + text.size());
        boundaries_.push_back(bytes_.size());
        return *this;
    }
    RawGguf& text(std::string_view text) { return put(uint64_t{text.size()}).raw(text); }

    RawGguf& start(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
        return raw("GGUF").put(version).put(n_tensors).put(n_keys);
    }
    RawGguf& key(std::string_view name, uint32_t value_type) { return text(name).put(value_type); }
    RawGguf& array(std::string_view name, uint32_t element_type, uint64_t count) {
        return key(name, 9).put(element_type).put(count);
    }
    RawGguf& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                    uint64_t offset) {
        text(name).put(static_cast<uint32_t>(dims.size()));
        for (const uint64_t dim : dims) put(dim);
        return put(type).put(offset);
    }
    // Zeros up to a multiple of `alignment`, then n zeros more.
    RawGguf& data(uint64_t n, uint64_t alignment = 32) {
        bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + n);
        return *this;
    }

    const std::vector<std::byte>& bytes() const { return bytes_; }
    // Where one field ends and the next begins.
    const std::vector<size_t>& boundaries() const { return boundaries_; }

  private:
    std::vector<std::byte> bytes_;
    std::vector<size_t> boundaries_{0};
};

}  // namespace weir::test
