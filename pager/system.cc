#include "pager/system.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
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

uint64_t anon_huge_bytes(const void* address, size_t bytes) noexcept {
    std::FILE* file = std::fopen("/proc/self/smaps", "re");
    if (file == nullptr) return 0;
    const auto begin = reinterpret_cast<uintptr_t>(address);
    char line[512];
    bool inside = false;
    uint64_t total = 0;
    while (std::fgets(line, sizeof line, file) != nullptr) {
        unsigned long long from = 0, to = 0, kib = 0;
        if (std::sscanf(line, "%llx-%llx ", &from, &to) == 2)
            inside = from < begin + bytes && to > begin;
        else if (inside && std::sscanf(line, "AnonHugePages: %llu kB", &kib) == 1)
            total += kib << 10;
    }
    std::fclose(file);
    return total;
}

}  // namespace weir::pager
