#include "pager/file_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "pager/system.h"

namespace weir::pager {

FileMapping::FileMapping(FileParts files) : bytes_(align_up(files.end(), kernel_page_size())) {
    const File& first = files.parts().front();
    if (files.parts().size() == 1) {  // where the kernel likes it best
        mapping_bytes_ = bytes_;
        mapping_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, first.buffered_fd(), 0);
        if (mapping_ == MAP_FAILED) throw std::runtime_error(first.path() + ": cannot map: " + std::strerror(errno));
        base_ = static_cast<std::byte*>(mapping_);
        return;
    }
    const size_t huge = pmd_page_size();
    mapping_bytes_ = bytes_ + huge;
    mapping_ = ::mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
        throw std::runtime_error(first.path() + ": " + std::to_string(mapping_bytes_ >> 20) +
                                 " MiB of address space for the model's parts cannot be had: " + std::strerror(errno));
    }
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    base_ = static_cast<std::byte*>(mapping_) + (align_up(address, huge) - address);
    for (const File& file : files.parts()) {
        void* const at = base_ + file.begin();
        if (::mmap(at, file.size(), PROT_READ, MAP_SHARED | MAP_FIXED, file.buffered_fd(), 0) == at) continue;
        const int error = errno;
        ::munmap(mapping_, mapping_bytes_);
        throw std::runtime_error(file.path() + ": cannot map: " + std::strerror(error));
    }
}

FileMapping::~FileMapping() { ::munmap(mapping_, mapping_bytes_); }

}  // namespace weir::pager
