#include "bench/bench_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "pager/system.h"

namespace weir::bench {
namespace {

using pager::File;

File make_file(uint64_t bytes) {
    std::string path = "./weir-bench-XXXXXX";
    const int fd = ::mkstemp(path.data());
    if (fd < 0) throw std::runtime_error(path + ": cannot be made here: " + std::strerror(errno) + "; name a file to read");
    std::fprintf(stderr, "writing %llu MiB to %s\n", static_cast<unsigned long long>(bytes >> 20), path.c_str());
    std::mt19937_64 random(1);  // nothing that a disk could compress or leave out
    std::vector<uint64_t> words(1 << 17);
    for (uint64_t& w : words) w = random();
    int error = 0;
    for (uint64_t at = 0; at < bytes && error == 0;) {
        words[0] = at;
        const ssize_t n = ::write(fd, words.data(), std::min<uint64_t>(words.size() * sizeof words[0], bytes - at));
        if (n < 0)
            error = errno;
        else
            at += static_cast<uint64_t>(n);
    }
    if (error == 0 && ::fsync(fd) != 0) error = errno;
    ::close(fd);
    if (error != 0) {
        ::unlink(path.c_str());
        throw std::runtime_error(path + ": cannot write: " + std::strerror(error));
    }
    try {
        File file = File::open(path, pager::IoMode::kAuto);
        ::unlink(path.c_str());
        return file;
    } catch (...) {
        ::unlink(path.c_str());
        throw;
    }
}

}  // namespace

File open_bench_file(const char* path, uint64_t bytes) {
    if (path == nullptr) path = std::getenv("WEIR_BENCH_FILE");
    File file = path != nullptr ? File::open(path, pager::IoMode::kAuto) : make_file(bytes);
    if (!file.direct()) std::fprintf(stderr, "%s: not by direct reads: %s\n", file.path().c_str(), file.why_buffered().c_str());
    file.drop_cache(0, file.size());
    return file;
}

pager::Mapping huge_frames(size_t n) {
    const size_t frame = pager::pmd_page_size();
    pager::Mapping frames(n * frame, frame, true, "frames");
    for (size_t at = 0; at < n * frame; at += pager::page_size()) frames.base()[at] = std::byte{1};
    return frames;
}

}  // namespace weir::bench
