#include "pager/system.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace weir::pager {
namespace {

// The largest base page that a kernel of today has (ARM).
constexpr size_t kLargestPage = 64u << 10;
constexpr const char* kThp = "/sys/kernel/mm/transparent_hugepage";

// Reads a small file of sysfs into text; an empty string where it is not there.
__attribute__((format(printf, 3, 4))) void read_small(char* text, size_t size, const char* format, ...) {
    char path[512];
    va_list args;
    va_start(args, format);
    const int length = std::vsnprintf(path, sizeof path, format, args);
    va_end(args);
    text[0] = 0;
    if (length < 0 || static_cast<size_t>(length) >= sizeof path) return;
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const ssize_t n = ::read(fd, text, size - 1);
    ::close(fd);
    text[n > 0 ? n : 0] = 0;
}

}  // namespace

size_t kernel_page_size() noexcept {
    static const size_t size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

size_t page_size_wanted(const char* wish, size_t kernel_page) noexcept {
    if (wish == nullptr || *wish == 0) return kernel_page;
    char* end = nullptr;
    const unsigned long long number = std::strtoull(wish, &end, 10);
    if (*wish < '0' || *wish > '9' || number > kLargestPage) return 0;
    const bool kib = *end == 'K' || *end == 'k';
    const size_t bytes = static_cast<size_t>(number) << (kib ? 10 : 0);
    if (end[kib ? 1 : 0] != 0 || bytes < kernel_page || bytes > kLargestPage || (bytes & (bytes - 1)) != 0) return 0;
    return bytes;
}

size_t page_size() noexcept {
    static const size_t size = [] {
        const size_t wanted = page_size_wanted(std::getenv("WEIR_PAGE_SIZE"), kernel_page_size());
        return wanted != 0 ? wanted : kernel_page_size();
    }();
    return size;
}

size_t pmd_page_size(const char* root) noexcept {
    char text[64];
    read_small(text, sizeof text, "%s%s/hpage_pmd_size", root, kThp);
    const unsigned long long size = std::strtoull(text, nullptr, 10);
    return size >= page_size() ? static_cast<size_t>(size) : page_size();
}

bool huge_pages_allowed(const char* root) noexcept {
    char text[128];
    read_small(text, sizeof text, "%s%s/hugepages-%zukB/enabled", root, kThp, pmd_page_size(root) >> 10);
    if (text[0] != 0 && std::strstr(text, "[inherit]") == nullptr) return std::strstr(text, "[never]") == nullptr;
    read_small(text, sizeof text, "%s%s/enabled", root, kThp);
    return text[0] != 0 && std::strstr(text, "[never]") == nullptr;
}

uint64_t monotonic_ns() noexcept {
    struct timespec t;
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
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
