// The native format, `.weir`: a model's matrices as planes of nested blocks (kernels/nested.h), laid out for paging, so that
// a level of precision is read as whole runs of pages that hold nothing of another level. Everything else of the model is
// carried over from the GGUF file that it was made from.
//
// Layout. Numbers are little endian, sizes and offsets in bytes from the start of the file; u32 and u64 lie at multiples of
// their size. `page` is the flash page that runs are aligned to.
//
//   header, 64 bytes
//      0  char[4]  "WEIR"
//      4  u32      version, 2
//      8  u64      bytes of the whole file
//     16  u64      bytes of the index
//     24  u64      bytes of the GGUF file that the index is of
//     32  u32      number of kept tensors
//     36  u32      number of parts
//     40  u64      number of run checksums
//     48  u32      page, a power of two from 4 KiB to 2 MiB
//     52  u32      0
//     56  u64      checksum of everything before the data, with zero in this place
//   index          the GGUF file from its first byte to its data, as it was: metadata, tokenizer, names, shapes and types of
//                  all tensors. Its offsets are of that file and mean nothing here. Padded with zeros to a multiple of 8.
//   kept tensors   32 bytes each, by ascending offset: tensors stored whole, in a type of kernels/types.h
//      0  u32      number of the tensor in the index
//      4  u32      type that it is stored in
//      8  u64      offset, a multiple of 64
//     16  u64      bytes
//     24  u64      checksum of them
//   parts          24 bytes each, by ascending offset: matrices stored as planes, a matrix of experts one part an expert
//      0  u32      number of the tensor in the index
//      4  u32      expert; 0 where there is one part
//      8  u32      rows of a band
//     12  u32      steps of level 6 in one of level 4 (kernels/nested.h), 1 to 4
//     16  u64      offset, a multiple of the page
//   run checksums  u64 each: part after part, band after band, run after run
//   data           kept tensors (norms, biases, routers, rows that 32 does not divide, an embedding that is not the head),
//                  which a reader holds in memory but for the embedding's rows; from the next page on the parts
//
// A part is cut into bands of rows (the last may have fewer), back to back; a band is the seven runs of kRuns, each from a
// page on and filled up with zeros to the next; a run holds the planes named there, each the band's rows in order. Level 2
// reads one run of neighbours (P1 S2), level 3 one (S3 P2 P1), levels 4, 6 and 8 two (P2 P1, and from S4 on). Bands bound
// what a walk over the rows must hold at a time.
//
// Parts lie in the order of execution, so that those that a plan sets as one (q and k; v and output; gate and up; down; the
// head) are neighbours, but an expert's gate, up and down lie together. A head that is the embedding is stored once, as
// planes; its rows are gathered from them.
//
// Checksums are XXH64 with seed 0. Who reads what: GgufFile::open() header, index and tables, once; the engine's stores the
// runs of the level in use; `weir verify` everything.
//
// Readers trust nothing: see read_native().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/nested.h"
#include "kernels/types.h"

namespace weir {

constexpr uint32_t kNativeVersion = 2;
constexpr size_t kNativeHeaderBytes = 64, kKeptBytes = 32, kPartBytes = 24;
constexpr uint64_t kKeptAlignment = 64;
constexpr uint64_t kNativeGroup = 32;  // of weights: what a row in planes is a multiple of
constexpr size_t kRuns = 7;

// Planes of each run; the second is there for one run only.
struct RunPlanes {
    kernels::Plane first;
    bool two = false;
    kernels::Plane second = kernels::Plane::kS3;
};
constexpr std::array<RunPlanes, kRuns> kRunPlanes = {{{kernels::Plane::kS3},
                                                      {kernels::Plane::kP2},
                                                      {kernels::Plane::kP1},
                                                      {kernels::Plane::kS2},
                                                      {kernels::Plane::kS4, true, kernels::Plane::kP3},
                                                      {kernels::Plane::kP4a},
                                                      {kernels::Plane::kP4b}}};

struct NativeKept {
    uint32_t tensor = 0;
    kernels::Type type = kernels::Type::kF32;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
};

struct NativeRun {
    uint64_t offset = 0;
    uint64_t bytes = 0;  // without the padding behind it
};

struct NativePart {
    uint32_t tensor = 0;
    uint32_t expert = 0;
    uint64_t rows = 0;
    uint64_t cols = 0;
    uint64_t band_rows = 0;
    uint8_t fine_steps = kernels::kMostFineSteps;
    uint64_t offset = 0;
    uint64_t first_checksum = 0;

    uint64_t bands() const { return (rows + band_rows - 1) / band_rows; }
    uint64_t rows_of(uint64_t band) const { return band + 1 < bands() ? band_rows : rows - band * band_rows; }
};

// What the file says beyond its GGUF index.
struct NativeTable {
    uint64_t page = 0;
    uint64_t source_bytes = 0;
    uint64_t index_bytes = 0;
    std::vector<NativeKept> kept;
    std::vector<NativePart> parts;
    std::vector<uint64_t> checksums;
    std::vector<uint32_t> by_tensor;   // numbers of parts, sorted by tensor, then expert
    std::vector<uint32_t> first_part;  // in by_tensor, for each tensor, and one more; equal neighbours where it is kept

    // Numbers of the tensor's parts, by expert; none where it is kept.
    std::span<const uint32_t> parts_of(size_t tensor) const {
        return std::span(by_tensor).subspan(first_part[tensor], first_part[tensor + 1] - first_part[tensor]);
    }
    uint64_t checksum(const NativePart& part, uint64_t band, size_t run) const {
        return checksums[part.first_checksum + band * kRuns + run];
    }
};

// Bytes of a band of so many rows, padding included; of a whole part.
uint64_t band_bytes(uint64_t rows, uint64_t cols, uint64_t page);
uint64_t part_bytes(const NativePart& part, uint64_t page);
// Of a run without its padding.
uint64_t run_bytes(size_t run, uint64_t rows, uint64_t cols);
// Where the runs of a band lie.
std::array<NativeRun, kRuns> band_runs(const NativePart& part, uint64_t band, uint64_t page);
// Whether a level reads the run.
bool reads_run(kernels::Level level, size_t run);

// XXH64, seed 0: of bytes that come piece by piece, and at once.
class NativeChecksum {
  public:
    NativeChecksum();
    void add(std::span<const std::byte> bytes);
    uint64_t value() const;

  private:
    struct State;
    struct Free {
        void operator()(State* state) const;
    };
    std::unique_ptr<State, Free> state_;
};
uint64_t native_checksum(std::span<const std::byte> bytes);
// Of all planes, by their checksums, as 16 hex digits: what tables that were measured on a file know it by.
std::string native_fingerprint(const NativeTable& table);

// Fills in first_checksum, by_tensor and first_part; tensors' numbers must be below n_tensors. Returns how many checksums
// there are.
uint64_t index_parts(NativeTable* table, size_t n_tensors);

// The bytes before the data: header, index, tables. `index`: the GGUF's bytes before its data.
std::vector<std::byte> native_head(const NativeTable& table, std::span<const std::byte> index, uint64_t file_bytes);
uint64_t native_head_bytes(uint64_t index_bytes, size_t kept, size_t parts, uint64_t checksums);

}  // namespace weir
