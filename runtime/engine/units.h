// How a walk over matrices is cut into units that workers draw tickets for. The forward pass walks so, and the probe that
// foretells its speed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace weir {

// Weights that a worker takes at a time. At 10 GB/s a unit of 128 KiB lasts 12 us, long against the 0.1 us of a ticket, and
// a tile of rows fits into one for all but the longest rows. Small matrices are cut finer, into some eight units a worker, so
// that nobody waits long for the last one.
constexpr size_t kUnitBytes = 128 << 10;
constexpr size_t kLeastUnitBytes = 4 << 10;
constexpr size_t kUnitsPerWorker = 8;
// Kernels compute rows in tiles; units are whole tiles where they can be.
constexpr size_t kRowTile = 16;

// Rows of a unit, at least 1: of a matrix with rows of row_bytes, in a group of matrices of group_bytes that `workers`
// share; a unit is no larger than `most` bytes, where a row is not.
inline size_t rows_of_unit(size_t row_bytes, size_t group_bytes, size_t workers, size_t most) {
    const size_t fair = std::max(kLeastUnitBytes, group_bytes / (kUnitsPerWorker * workers));
    const size_t rows = std::max<size_t>(1, std::min({kUnitBytes, most, fair}) / row_bytes);
    return rows < kRowTile ? rows : rows / kRowTile * kRowTile;
}

}  // namespace weir
