#include "tests/pager/live.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "pager/system.h"
#include "pager/uffd.h"

namespace weir::test {

std::string why_no_uffd() {
    try {
        pager::Uffd probe(pager::UffdSource::kAuto);
        return "";
    } catch (const std::runtime_error& e) {
        return e.what();
    }
}

PatternFile::PatternFile(uint64_t bytes) : bytes_(bytes) {
    // Beside the build, which lies on a disk: direct reads on a tmpfs prove nothing.
    const char* folder = std::getenv("WEIR_TEST_DIR");
    path_ = std::string(folder != nullptr ? folder : ".") + "/weir-pattern-XXXXXX";
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) throw std::runtime_error("mkstemp " + path_);
    std::vector<uint64_t> words(1 << 16);
    for (uint64_t at = 0; at < bytes;) {
        for (size_t i = 0; i < words.size(); ++i) words[i] = word(at + i * 8);
        const size_t n = std::min<uint64_t>(words.size() * 8, bytes - at);
        if (::write(fd, words.data(), n) != static_cast<ssize_t>(n)) throw std::runtime_error("write " + path_);
        at += n;
    }
    ::fsync(fd);
    ::close(fd);
}

PatternFile::~PatternFile() { ::unlink(path_.c_str()); }

std::vector<pager::ImageRange> shuffled_ranges(uint64_t file_bytes, uint64_t chunk) {
    std::vector<pager::ImageRange> ranges;
    uint64_t place = 0;
    for (const uint64_t parity : {0, 1}) {
        for (uint64_t i = parity; i * chunk < file_bytes; i += 2) {
            const uint64_t bytes = std::min<uint64_t>(chunk, pager::align_up(file_bytes - i * chunk, pager::page_size()));
            ranges.push_back({place, i * chunk, bytes});
            place += bytes;
        }
    }
    return ranges;
}

bool image_is_right(const std::byte* base, const std::vector<pager::ImageRange>& ranges, uint64_t begin, uint64_t end,
                    uint64_t file_bytes) {
    for (const pager::ImageRange& r : ranges) {
        const uint64_t from = std::max(begin, r.place);
        const uint64_t to = std::min(end, r.place + r.bytes);
        for (uint64_t at = from; at < to; at += 8) {
            const uint64_t offset = r.file_offset + (at - r.place);
            if (offset + 8 > file_bytes) break;
            uint64_t value;
            std::memcpy(&value, base + at, 8);
            if (value != PatternFile::word(offset)) return false;
        }
    }
    return true;
}

}  // namespace weir::test
