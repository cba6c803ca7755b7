#include "runtime/model/native_format.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <numeric>

namespace weir {
namespace {

uint64_t align_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

class Out {
  public:
    explicit Out(size_t bytes) { bytes_.reserve(bytes); }
    template <class T>
    void number(T value) {
        const auto* const raw = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), raw, raw + sizeof value);
    }
    void copy(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    void pad(uint64_t to) { bytes_.resize(align_up(bytes_.size(), to)); }
    std::vector<std::byte> take() { return std::move(bytes_); }

  private:
    std::vector<std::byte> bytes_;
};

}  // namespace

uint64_t run_bytes(size_t run, uint64_t rows, uint64_t cols) {
    const RunPlanes& planes = kRunPlanes[run];
    uint64_t row = kernels::plane_row_bytes(planes.first, cols);
    if (planes.two) row += kernels::plane_row_bytes(planes.second, cols);
    return rows * row;
}

uint64_t band_bytes(uint64_t rows, uint64_t cols, uint64_t page) {
    uint64_t bytes = 0;
    for (size_t run = 0; run < kRuns; ++run) bytes += align_up(run_bytes(run, rows, cols), page);
    return bytes;
}

uint64_t part_bytes(const NativePart& part, uint64_t page) {
    const uint64_t last = part.bands() - 1;
    return last * band_bytes(part.band_rows, part.cols, page) + band_bytes(part.rows_of(last), part.cols, page);
}

std::array<NativeRun, kRuns> band_runs(const NativePart& part, uint64_t band, uint64_t page) {
    std::array<NativeRun, kRuns> runs;
    uint64_t offset = part.offset + band * band_bytes(part.band_rows, part.cols, page);
    for (size_t run = 0; run < kRuns; ++run) {
        runs[run] = {offset, run_bytes(run, part.rows_of(band), part.cols)};
        offset += align_up(runs[run].bytes, page);
    }
    return runs;
}

bool reads_run(kernels::Level level, size_t run) { return kernels::reads_plane(level, kRunPlanes[run].first); }

struct NativeChecksum::State {
    XXH64_state_t* xxh = ::XXH64_createState();
};

void NativeChecksum::Free::operator()(State* state) const {
    ::XXH64_freeState(state->xxh);
    delete state;
}

NativeChecksum::NativeChecksum() : state_(new State) {
    if (state_->xxh == nullptr || ::XXH64_reset(state_->xxh, 0) != XXH_OK) throw std::bad_alloc();
}
void NativeChecksum::add(std::span<const std::byte> bytes) { ::XXH64_update(state_->xxh, bytes.data(), bytes.size()); }
uint64_t NativeChecksum::value() const { return ::XXH64_digest(state_->xxh); }

uint64_t native_checksum(std::span<const std::byte> bytes) { return ::XXH64(bytes.data(), bytes.size(), 0); }

std::string native_fingerprint(const NativeTable& table) {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(native_checksum(std::as_bytes(std::span(table.checksums)))));
    return hex;
}

uint64_t index_parts(NativeTable* table, size_t n_tensors) {
    uint64_t checksums = 0;
    for (NativePart& part : table->parts) {
        part.first_checksum = checksums;
        checksums += part.bands() * kRuns;
    }
    std::vector<uint32_t>& order = table->by_tensor;
    order.resize(table->parts.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        const NativePart &x = table->parts[a], &y = table->parts[b];
        return x.tensor != y.tensor ? x.tensor < y.tensor : x.expert < y.expert;
    });
    table->first_part.assign(n_tensors + 1, 0);
    for (const NativePart& part : table->parts) ++table->first_part[part.tensor + 1];
    for (size_t t = 0; t < n_tensors; ++t) table->first_part[t + 1] += table->first_part[t];
    return checksums;
}

uint64_t native_head_bytes(uint64_t index_bytes, size_t kept, size_t parts, uint64_t checksums) {
    return kNativeHeaderBytes + align_up(index_bytes, 8) + kept * kKeptBytes + parts * kPartBytes + checksums * 8;
}

std::vector<std::byte> native_head(const NativeTable& table, std::span<const std::byte> index, uint64_t file_bytes) {
    Out out(native_head_bytes(index.size(), table.kept.size(), table.parts.size(), table.checksums.size()));
    for (const char c : {'W', 'E', 'I', 'R'}) out.number(c);
    out.number(kNativeVersion);
    out.number(file_bytes);
    out.number(uint64_t{index.size()});
    out.number(table.source_bytes);
    out.number(static_cast<uint32_t>(table.kept.size()));
    out.number(static_cast<uint32_t>(table.parts.size()));
    out.number(uint64_t{table.checksums.size()});
    out.number(static_cast<uint32_t>(table.page));
    out.number(uint32_t{0});
    out.number(uint64_t{0});
    out.copy(index);
    out.pad(8);
    for (const NativeKept& kept : table.kept) {
        out.number(kept.tensor);
        out.number(static_cast<uint32_t>(kept.type));
        out.number(kept.offset);
        out.number(kept.bytes);
        out.number(kept.checksum);
    }
    for (const NativePart& part : table.parts) {
        out.number(part.tensor);
        out.number(part.expert);
        out.number(static_cast<uint32_t>(part.band_rows));
        out.number(uint32_t{part.fine_steps});
        out.number(part.offset);
    }
    for (const uint64_t checksum : table.checksums) out.number(checksum);
    std::vector<std::byte> head = out.take();
    const uint64_t checksum = native_checksum(head);
    std::memcpy(head.data() + kNativeHeaderBytes - sizeof checksum, &checksum, sizeof checksum);
    return head;
}

}  // namespace weir
