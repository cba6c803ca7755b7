// The grids of the IQ formats: points that eight, or four, weights in a row are rounded to together. Facts of the
// formats, taken from the tables in the Python package `gguf` 0.19 (ggml-org, MIT). Byte j is weight j: of the IQ1 grid
// -1, 0 or 1, of the others a magnitude. Internal to kernels/.
#pragma once

#include <array>
#include <cstdint>

namespace weir::kernels {

extern const std::array<uint64_t, 256> kIq2XxsGrid;
extern const std::array<uint64_t, 512> kIq2XsGrid;
extern const std::array<uint64_t, 1024> kIq2SGrid;
extern const std::array<uint64_t, 2048> kIq1Grid;
extern const std::array<uint32_t, 256> kIq3XxsGrid;
extern const std::array<uint32_t, 512> kIq3SGrid;

}  // namespace weir::kernels
