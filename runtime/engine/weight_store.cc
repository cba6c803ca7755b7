#include "runtime/engine/weight_store.h"

#include <stdexcept>

#include "pager/uffd.h"
#include "runtime/engine/advised_store.h"
#include "runtime/engine/file_store.h"
#include "runtime/engine/paged_store.h"
#include "runtime/error.h"

namespace weir {

Matrix::Stretch Matrix::stretch(size_t first_row, size_t n) const {
    if (bands.empty()) return {place + first_row * row_bytes, n * row_bytes};
    const Stretch &first = bands[band_of(first_row)].stretch, &last = bands[band_of(first_row + n - 1)].stretch;
    return {first.place, last.place + last.bytes - first.place};
}

const std::byte* Matrix::rows_at(size_t row) const {
    return bands.empty() ? data + row * row_bytes : bands[band_of(row)].first;
}

void Matrix::multiply(const kernels::KernelSet& kernels, kernels::Activation packed, const std::byte* weights, kernels::Level at, size_t first_row,
                      size_t n, const std::byte* x, size_t x_stride, size_t tokens, float* y, size_t y_stride) const {
    if (bands.empty()) {
        kernels.matmul(type, packed, weights, n, cols, x, x_stride, tokens, y, y_stride);
        return;
    }
    const kernels::NestedRows rows_of_band = bands[band_of(first_row)].rows.from(first_row % part_rows % band_rows, cols);
    kernels.matmul_nested(at, packed, rows_of_band, n, cols, x, x_stride, tokens, y, y_stride);
}

std::unique_ptr<WeightStore> WeightStore::open(const GgufFile& file, const ModelConfig& config,
                                               const StoreOptions& options) {
    if (!options.trace_io.empty() && options.mode != PagingMode::kUffd)
        throw UsageError("--trace-io lists the reads of --paging uffd; other modes leave them to the kernel, or read all at once");
    if (options.io_limit_mbps != 0 && options.mode != PagingMode::kUffd)
        throw UsageError("--io-limit-mbps slows the reads of --paging uffd; other modes leave them to the kernel, or read all at once");
    if (options.mode == PagingMode::kUffd) return open_paged_store(file, config, options);
    if (options.mode == PagingMode::kAdvised && file.native() != nullptr)
        throw Error(file.path() + ": --paging advised cannot page native files; use uffd, mmap or resident");
    if (options.mode == PagingMode::kAdvised) return open_advised_store(file, config, options);
    return open_file_store(file, config, options);
}

std::string fall_back(StoreOptions* options) {
    if (options->mode != PagingMode::kUffd || options->uffd_source != "auto" || options->install != "auto") return "";
    try {
        const pager::Uffd probe(pager::UffdSource::kAuto);
        return "";
    } catch (const std::runtime_error& why) {
        options->mode = PagingMode::kAdvised;
        return why.what();
    }
}

}  // namespace weir
