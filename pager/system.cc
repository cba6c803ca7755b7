#include "pager/system.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace weir::pager {
namespace {

// Reads a small sysfs file into text; an empty string where it is not there.
void read_small(const char* path, char* text, size_t size) {
    text[0] = 0;
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const ssize_t n = ::read(fd, text, size - 1);
    ::close(fd);
    text[n > 0 ? n : 0] = 0;
}

}  // namespace

size_t page_size() noexcept {
    static const size_t size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

size_t pmd_page_size() noexcept {
    char text[64];
    read_small("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", text, sizeof text);
    const unsigned long long size = std::strtoull(text, nullptr, 10);
    return size >= page_size() ? static_cast<size_t>(size) : page_size();
}

bool huge_pages_allowed() noexcept {
    char text[64];
    read_small("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    return text[0] != 0 && std::strstr(text, "[never]") == nullptr;
}

}  // namespace weir::pager
