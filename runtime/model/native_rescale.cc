#include "runtime/model/native_rescale.h"

#include <algorithm>
#include <array>

#include "runtime/error.h"
#include "runtime/model/native_convert.h"
#include "runtime/model/partial_file.h"

namespace weir {
namespace {

constexpr uint64_t kPiece = 1u << 20;

bool is_new(size_t run) {
    return kRunPlanes[run].first == kernels::Plane::kS3 || kRunPlanes[run].first == kernels::Plane::kS2;
}

}  // namespace

void read_low_band(const FileInput& input, const NativeTable& table, const NativePart& part, uint64_t band,
                   LowBand* out) {
    const std::array<NativeRun, kRuns> runs = band_runs(part, band, table.page);
    const NativeRun& last = runs[kLowRuns - 1];
    out->bytes.resize(last.offset + last.bytes - runs[0].offset);
    input.read(runs[0].offset, out->bytes);
    out->rows = {};
    out->rows.fine_steps = part.fine_steps;
    for (size_t r = 0; r < kLowRuns; ++r)
        out->rows.plane[static_cast<size_t>(kRunPlanes[r].first)] =
            out->bytes.data() + (runs[r].offset - runs[0].offset);
}

void write_rescaled(const GgufFile& file, const std::string& path, const NewScales& scales,
                    const std::function<bool(uint64_t, uint64_t)>& go_on) {
    NativeTable table = *file.native();
    const FileInput input(file);
    PartialFile out(path);
    out.reserve(file.file_size());
    const auto check = [&](uint64_t done) {
        if (!go_on(done, 2 * file.file_size()))
            throw Error(path + ": stopped before the new file was whole; what was there is there");
    };
    std::vector<std::byte> piece;
    for (uint64_t at = 0; at < file.file_size(); at += piece.size()) {
        piece.resize(std::min(kPiece, file.file_size() - at));
        input.read(at, piece);
        out.write(at, piece);
        check(at);
    }
    for (size_t p = 0; p < table.parts.size(); ++p) {
        const NativePart& part = table.parts[p];
        for (uint64_t band = 0; band < part.bands(); ++band) {
            const std::array<NativeRun, kRuns> runs = band_runs(part, band, table.page);
            for (size_t run = 0; run < kRuns; ++run) {
                if (!is_new(run)) continue;
                piece.resize(runs[run].bytes);
                input.read(runs[run].offset, piece);
                scales(p, band, run, piece);
                table.checksums[part.first_checksum + band * kRuns + run] = native_checksum(piece);
                out.write(runs[run].offset, piece);
            }
        }
    }
    std::vector<std::byte> index(table.index_bytes);
    input.read(kNativeHeaderBytes, index);
    out.write(0, native_head(table, index, file.file_size()));
    out.sync();
    verify_native(GgufFile::open(out.partial_path()), [&](uint64_t done, uint64_t total) {
        check(total + done);
        return true;
    });
    out.finish(file.file_size());
}

}  // namespace weir
