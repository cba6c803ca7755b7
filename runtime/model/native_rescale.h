// New scales for a native file: those of levels 2 and 3, which no other level reads. Codes, the scales of levels 4 to
// 8, and everything that is kept stay as they are, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/nested.h"
#include "runtime/model/file_input.h"
#include "runtime/model/gguf.h"
#include "runtime/model/native_format.h"

namespace weir {

// What levels 2 and 3 read of a band: its first four runs, one behind the other.
constexpr size_t kLowRuns = 4;
struct LowBand {
    std::vector<std::byte> bytes;
    kernels::NestedRows rows;  // into bytes; the other planes are not there
};
void read_low_band(const FileInput& input, const NativeTable& table, const NativePart& part, uint64_t band,
                   LowBand* out);

// Asked for each part, band and run, of S3 and S2 (see kRunPlanes): fills in the scales where there are new ones.
using NewScales = std::function<void(size_t part, uint64_t band, size_t run, std::span<std::byte> scales)>;

// Copies the file with new scales to `path`, which may be the file itself: what is there is replaced in one step, after
// the new file was written, synced and held against its checksums (verify_native()). Throws Error, which leaves what
// was there. go_on: as convert_to_native().
void write_rescaled(const GgufFile& file, const std::string& path, const NewScales& scales,
                    const std::function<bool(uint64_t done, uint64_t total)>& go_on);

}  // namespace weir
