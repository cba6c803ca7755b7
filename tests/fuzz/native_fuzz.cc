// Fuzz target of the native format's reader: any bytes give an Error or consistent tables. The file's stated size and the
// checksum of the head are taken as they would have to be, so that what lies behind them is reached.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/error.h"
#include "runtime/model/config.h"
#include "runtime/model/native_format.h"
#include "tests/model/native_fixture.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}

void check(const weir::GgufFile& file) {
    const weir::NativeTable& table = *file.native();
    uint64_t end = 0;
    for (const weir::NativeKept& kept : table.kept) {
        require(kept.offset >= end && kept.bytes <= file.file_size() - kept.offset, "kept tensors ascend inside the file");
        end = kept.offset + kept.bytes;
    }
    for (const weir::NativePart& part : table.parts) {
        require(part.offset >= end && part.offset % table.page == 0, "parts ascend, on pages");
        for (const uint64_t band : {uint64_t{0}, part.bands() - 1}) {
            for (size_t r = 0; r < weir::kRuns; ++r) {
                const weir::NativeRun run = weir::band_runs(part, band, table.page)[r];
                require(run.offset >= end && run.bytes <= file.file_size() - run.offset, "runs are inside the file");
                (void)table.checksum(part, band, r);
            }
        }
        end = part.offset + weir::part_bytes(part, table.page);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto* const first = reinterpret_cast<const std::byte*>(data);
    std::vector<std::byte> bytes(first, first + size);
    uint64_t file_size = size;
    if (size >= weir::kNativeHeaderBytes) {
        std::memcpy(bytes.data(), "WEIR", 4);
        std::memcpy(&file_size, bytes.data() + 8, sizeof file_size);
        weir::test::repair_checksum(bytes);
    }
    try {
        const weir::GgufFile file = weir::GgufFile::parse(bytes, file_size, "fuzz");
        if (file.native() != nullptr) check(file);
        (void)weir::read_config(file);
    } catch (const weir::Error&) {
    }
    return 0;
}
