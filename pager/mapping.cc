#include "pager/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "pager/system.h"

namespace weir::pager {

Mapping::Mapping(size_t bytes, size_t alignment, bool huge, const char* what)
    : mapping_bytes_(bytes + alignment), bytes_(bytes) {
    void* const mapping =
        ::mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        throw std::runtime_error(std::to_string(mapping_bytes_ >> 20) + " MiB of address space for the " + what +
                                 " cannot be had: " + std::strerror(errno));
    }
    if (::madvise(mapping, mapping_bytes_, MADV_DONTFORK) != 0) {
        const int error = errno;
        ::munmap(mapping, mapping_bytes_);
        throw std::runtime_error(std::string("madvise(MADV_DONTFORK) on the ") + what + ": " + std::strerror(error));
    }
    (void)::madvise(mapping, mapping_bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // advice: EINVAL without THP
    mapping_ = mapping;
    const auto address = reinterpret_cast<uintptr_t>(mapping);
    base_ = static_cast<std::byte*>(mapping) + (align_up(address, alignment) - address);
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapping_bytes_, other.mapping_bytes_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Mapping::~Mapping() {
    if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

}  // namespace weir::pager
