#include "runtime/engine/store_base.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pager/system.h"
#include "runtime/error.h"

namespace weir {
namespace {

pager::IoMode io_mode(const std::string& name) {
    if (name == "auto") return pager::IoMode::kAuto;
    if (name == "direct") return pager::IoMode::kDirect;
    if (name == "buffered") return pager::IoMode::kBuffered;
    throw UsageError("--io " + name + ": unknown; use auto, direct or buffered");
}

std::vector<pager::File> open_files(const GgufFile& model, const std::string& io) {
    const pager::IoMode mode = io_mode(io);
    std::vector<pager::File> files;
    try {
        for (const GgufPart& part : model.parts()) files.push_back(pager::File::open(part.path, mode, part.begin));
    } catch (const std::runtime_error& e) {
        throw Error(e.what());
    }
    return files;
}

}  // namespace

const char* paging_mode_name(PagingMode mode) {
    switch (mode) {
        case PagingMode::kUffd: return "uffd";
        case PagingMode::kAdvised: return "advised";
        case PagingMode::kMmap: return "mmap";
        case PagingMode::kResident: return "resident";
    }
    return "?";
}

StoreBase::StoreBase(const GgufFile& file, const ModelConfig& config, const StoreOptions& options)
    : gguf_(file),
      config_(config),
      options_(options),
      files_(open_files(file, options.io)),
      parts_(files_),
      map_(build_model_map(file, config, parts_.granule(), options.mode == PagingMode::kUffd && file.native() == nullptr,
                           options.plans)),
      scalar_(kernels::select_kernels("scalar")),
      embedding_row_bytes_(embedding_part() != nullptr ? kernels::level_row_bytes(kernels::Level::k8, map_.embedding->dims[0])
                                                       : kernels::row_bytes(map_.embedding->type, map_.embedding->dims[0])) {
    for (size_t i = 0; i < files_.size(); ++i) {
        if (files_[i].size() != file.parts()[i].bytes) throw Error(files_[i].path() + ": the file changed while it was opened");
    }
    if (file.native() != nullptr) plan_ = options.plans.empty() ? sched::uniform_plan(config.n_layers, 8) : options.plans.front();
    walk_bytes_ = plan_bytes(map_, plan_);
}

void StoreBase::bind(const std::byte* base, bool by_place, std::span<const uint64_t> places) {
    base_ = base;
    by_place_ = by_place;
    for (size_t i = 0; i < map_.tensors.size(); ++i) {
        const PlacedTensor& placed = map_.tensors[i];
        const GgufTensor& t = *placed.tensor;
        if (placed.part != nullptr) {
            bind_part(placed);
            continue;
        }
        Matrix m;
        m.name = t.name;
        m.type = t.type;
        m.rows = t.rows();
        m.cols = t.dims[0];
        m.row_bytes = kernels::row_bytes(t.type, t.dims[0]);
        m.data = base + (by_place ? placed.at : t.offset);
        m.place = places.empty() ? placed.place : places[i];
        matrices_.emplace(t.name, std::move(m));
    }
}

void StoreBase::bind_experts(const std::string& name, size_t n_experts, uint32_t first_group, uint32_t part) {
    Matrix& m = matrices_.at(name);
    m.data = nullptr;
    m.expert_rows = m.rows / n_experts;
    m.first_group = first_group;
    m.part = part;
}

const std::byte* StoreBase::run_at(const PlacedTensor& placed, uint64_t band, size_t run) const {
    if (by_place_) return base_ + placed.bands[band].run_at[run];
    return base_ + band_runs(*placed.part, band, gguf_.native()->page)[run].offset;
}

// Parts of a matrix come by expert, one after the other.
void StoreBase::bind_part(const PlacedTensor& placed) {
    const GgufTensor& t = *placed.tensor;
    const NativePart& part = *placed.part;
    Matrix& m = matrices_[t.name];
    if (m.bands.empty()) {
        m.name = t.name;
        m.type = t.type;
        m.rows = t.rows();
        m.cols = t.dims[0];
        m.place = placed.place;
        m.band_rows = part.band_rows;
        m.part_rows = part.rows;
    }
    const size_t first_band = m.bands.size();
    for (uint64_t b = 0; b < part.bands(); ++b) {
        Matrix::Band band;
        band.rows.fine_steps = part.fine_steps;
        for (size_t r = 0; r < kRuns; ++r) {
            if (!placed.has_run(r)) continue;
            const RunPlanes& planes = kRunPlanes[r];
            const std::byte* const at = run_at(placed, b, r);
            band.rows.plane[static_cast<size_t>(planes.first)] = at;
            if (planes.two)
                band.rows.plane[static_cast<size_t>(planes.second)] = at + part.rows_of(b) * kernels::plane_row_bytes(planes.first, part.cols);
        }
        m.bands.push_back(band);
    }
    set_level(&m, first_band, placed, static_cast<kernels::Level>(plan_.levels[placed.shard]));
}

void StoreBase::set_level(Matrix* m, size_t first_band, const PlacedTensor& placed, kernels::Level level) const {
    m->level = level;
    m->row_bytes = kernels::level_row_bytes(level, m->cols);
    for (uint64_t b = 0; b < placed.part->bands(); ++b) {
        const PlacedTensor::Stretch read = placed.stretch(b, level);
        m->bands[first_band + b].stretch = {read.place, read.bytes};
        m->bands[first_band + b].first = run_at(placed, b, read.first_run);
    }
}

void StoreBase::use_plan(const sched::Plan& plan) {
    if (plan == plan_) return;
    if (plan_.levels.size() != plan.levels.size()) throw Error(gguf_.path() + ": a plan of another model");
    for (const PlacedTensor& placed : map_.tensors) {
        for (size_t r = 0; placed.part != nullptr && r < kRuns; ++r)
            if (reads_run(plan, placed.shard, r) && !placed.has_run(r))
                throw Error(gguf_.path() + ": level " + std::to_string(plan.levels[placed.shard]) + " of " + placed.tensor->name + " was not opened");
    }
    size_t first_band = 0;
    for (const PlacedTensor& placed : map_.tensors) {
        if (placed.part == nullptr) continue;
        Matrix& m = matrices_.at(placed.tensor->name);
        if (placed.part->expert == 0) first_band = 0;
        if (plan.levels[placed.shard] != plan_.levels[placed.shard] && plan.levels[placed.shard] != sched::kNotRead)
            set_level(&m, first_band, placed, static_cast<kernels::Level>(plan.levels[placed.shard]));
        first_band += placed.part->bands();
    }
    std::copy(plan.levels.begin(), plan.levels.end(), plan_.levels.begin());
    walk_bytes_ = plan_bytes(map_, plan_);
}

uint64_t StoreBase::copy_rows(const std::string& name, std::span<const int32_t> rows, kernels::Level level,
                              const std::array<std::byte*, kernels::kPlanes>& to) {
    const NativeTable* const native = gguf_.native();
    const GgufTensor& tensor = gguf_.tensor(name);
    const auto parts = native != nullptr ? native->parts_of(static_cast<size_t>(&tensor - gguf_.tensors().data())) : std::span<const uint32_t>{};
    if (parts.size() != 1) throw Error(gguf_.path() + ": the rows of " + name + " are not in planes");
    const NativePart& part = native->parts[parts.front()];
    uint64_t read = 0;
    for (size_t i = 0, n = 0; i < rows.size(); i += n) {  // rows in a row, within a band, at a time
        const auto row = static_cast<uint64_t>(rows[i]);
        if (rows[i] < 0 || row >= part.rows) throw Error(gguf_.path() + ": " + name + " has no row " + std::to_string(rows[i]));
        const uint64_t band = row / part.band_rows, in_band = row % part.band_rows;
        for (n = 1; i + n < rows.size() && in_band + n < part.rows_of(band) && rows[i + n] == rows[i] + static_cast<int32_t>(n);) ++n;
        const auto copy_plane = [&](kernels::Plane plane, uint64_t at) {
            const uint64_t row_bytes = kernels::plane_row_bytes(plane, part.cols), begin = at + in_band * row_bytes, bytes = n * row_bytes;
            if (!kernels::reads_plane(level, plane)) return;
            read_exactly(begin, to[static_cast<size_t>(plane)] + i * row_bytes, bytes);
            read += pager::align_up(begin + bytes, parts_.granule()) - pager::align_down(begin, parts_.granule());
        };
        const std::array<NativeRun, kRuns> runs = band_runs(part, band, native->page);
        for (size_t r = 0; r < kRuns; ++r) {
            const RunPlanes& planes = kRunPlanes[r];
            copy_plane(planes.first, runs[r].offset);
            if (planes.two) copy_plane(planes.second, runs[r].offset + part.rows_of(band) * kernels::plane_row_bytes(planes.first, part.cols));
        }
    }
    return read;
}

void StoreBase::bind_by_place(const std::byte* image) { bind(image, true, {}); }
void StoreBase::bind_by_offset(const std::byte* file_image, std::span<const uint64_t> places) {
    bind(file_image, false, places);
}

const Matrix& StoreBase::matrix(const std::string& name) const {
    const auto it = matrices_.find(name);
    if (it == matrices_.end()) throw Error(gguf_.path() + ": no matrix " + name);
    return it->second;
}

std::vector<float> StoreBase::vector(const std::string& name) const {
    const GgufTensor& t = gguf_.tensor(name);
    std::vector<std::byte> raw(t.bytes);
    read_exactly(t.offset, raw.data(), raw.size());
    const size_t n = t.dims[0] * t.rows();
    std::vector<float> out(n);
    scalar_->dequantize(t.type, raw.data(), out.data(), n);
    return out;
}

void StoreBase::check_unchanged() const {
    for (const pager::File& file : files_) {
        if (const char* what = file.changed())
            throw Error(file.path() + ": the file " + what + " while it was in use; start again with a file that stays as it is");
    }
}

void StoreBase::read_exactly(uint64_t offset, void* out, size_t bytes) const {
    const pager::File& file = parts_.at(offset);
    offset -= file.begin();
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = ::pread(file.buffered_fd(), static_cast<std::byte*>(out) + done, bytes - done,
                                  static_cast<off_t>(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            throw Error(file.path() + ": reading " + std::to_string(bytes - done) + " bytes at offset " +
                        std::to_string(offset + done) + " failed: " +
                        (n < 0 ? std::strerror(errno) : "the file ends before"));
        }
        done += static_cast<size_t>(n);
    }
}

void StoreBase::check_token(int32_t id) const {
    if (id < 0 || static_cast<uint64_t>(id) >= map_.embedding->rows())
        throw Error("token " + std::to_string(id) + " is outside the vocabulary of " +
                    std::to_string(map_.embedding->rows()));
}

uint64_t StoreBase::embedding_offset(int32_t id) const {
    check_token(id);
    return map_.embedding->offset + static_cast<uint64_t>(id) * embedding_row_bytes_;
}

const NativePart* StoreBase::embedding_part() const {
    if (gguf_.native() == nullptr) return nullptr;
    const auto parts = gguf_.native()->parts_of(static_cast<size_t>(map_.embedding - gguf_.tensors().data()));
    return parts.empty() ? nullptr : &gguf_.native()->parts[parts.front()];
}

StoreBase::EmbeddingRow StoreBase::embedding_row(int32_t id) const {
    EmbeddingRow row;
    const NativePart* const part = embedding_part();
    if (part == nullptr) {
        row.pieces[row.n++] = {embedding_offset(id), embedding_row_bytes_, kernels::Plane::kP1};
        return row;
    }
    check_token(id);
    row.fine_steps = part->fine_steps;
    const uint64_t band = static_cast<uint64_t>(id) / part->band_rows, in_band = static_cast<uint64_t>(id) % part->band_rows;
    const std::array<NativeRun, kRuns> runs = band_runs(*part, band, gguf_.native()->page);
    for (size_t r = 0; r < kRuns; ++r) {
        if (!reads_run(kernels::Level::k8, r)) continue;
        const RunPlanes& planes = kRunPlanes[r];
        const uint64_t bytes = kernels::plane_row_bytes(planes.first, part->cols);
        row.pieces[row.n++] = {runs[r].offset + in_band * bytes, bytes, planes.first};
        if (!planes.two) continue;
        const uint64_t second = kernels::plane_row_bytes(planes.second, part->cols);
        row.pieces[row.n++] = {runs[r].offset + part->rows_of(band) * bytes + in_band * second, second, planes.second};
    }
    return row;
}

size_t StoreBase::embedding_pieces() const { return embedding_row(0).n; }

uint64_t StoreBase::longest_embedding_piece() const {
    uint64_t longest = 0;
    const EmbeddingRow row = embedding_row(0);
    for (const EmbeddingRow::Piece& piece : row.all()) longest = std::max(longest, piece.bytes);
    return longest;
}

void StoreBase::decode_embedding(const EmbeddingRow& row, const std::byte* const* bytes, float* out) const {
    if (embedding_part() == nullptr) {
        scalar_->dequantize(map_.embedding->type, bytes[0], out, config_.dim);
        return;
    }
    kernels::NestedRows rows;
    rows.fine_steps = row.fine_steps;
    for (size_t i = 0; i < row.n; ++i) rows.plane[static_cast<size_t>(row.pieces[i].plane)] = bytes[i];
    scalar_->dequantize_nested(kernels::Level::k8, rows, out, config_.dim);
}

void StoreBase::read_embedding(int32_t id, float* out) {
    const EmbeddingRow row = embedding_row(id);
    row_.resize(embedding_row_bytes_);
    const std::byte* bytes[kernels::kPlanes] = {};
    size_t used = 0;
    for (size_t i = 0; i < row.n; ++i) {
        read_exactly(row.pieces[i].offset, row_.data() + used, row.pieces[i].bytes);
        bytes[i] = row_.data() + used;
        used += row.pieces[i].bytes;
    }
    decode_embedding(row, bytes, out);
}

std::vector<MapCell> StoreBase::cells_of(uint64_t unit_bytes, std::span<const uint64_t> places) const {
    std::vector<MapCell> cells;
    const GgufTensor* counted = nullptr;  // parts of a native file share their tensor
    for (size_t i = 0; i < map_.tensors.size(); ++i) {
        const PlacedTensor& placed = map_.tensors[i];
        const bool head = placed.layer == config_.n_layers;
        const sched::Module module = module_of(placed.tensor->name);
        const std::string_view name = head ? "head" : placed.experts ? "experts" : sched::kModuleNames[static_cast<size_t>(module)];
        const uint64_t place = places.empty() ? placed.place : places[i];
        const auto same = std::find_if(cells.rbegin(), cells.rend(), [&](const MapCell& c) { return c.layer == placed.layer && c.module == name; });
        const size_t at = same == cells.rend() ? cells.size() : static_cast<size_t>(cells.rend() - same) - 1;
        if (at == cells.size()) {
            const size_t shard = head ? sched::head_of(config_.n_layers) : sched::shard_of(placed.layer, module);
            cells.push_back({placed.layer, name, shard, unit_bytes == 0 ? cells.size() : place / unit_bytes, 1, 0, 0});
        }
        MapCell& cell = cells[at];
        if (unit_bytes != 0) cell.units = std::max(cell.units, (place + placed.bytes - 1) / unit_bytes + 1 - cell.first_unit);
        if (placed.tensor == counted) continue;
        counted = placed.tensor;
        cell.weights += placed.tensor->rows() * placed.tensor->dims[0];
        cell.bytes += placed.tensor->bytes;
    }
    return cells;
}

std::string unit_letters(std::span<const pager::Whereabouts> units) {
    std::string letters;
    letters.reserve(units.size());
    for (const pager::Whereabouts where : units) letters += ".rsR"[static_cast<size_t>(where)];
    return letters;
}

uint64_t StoreBase::expert_bytes() const {
    return walk_bytes_.experts == 0 ? 0 : walk_bytes_.experts / (config_.n_layers * config_.n_experts);
}

uint64_t StoreBase::pass_bytes() const {
    const uint64_t idle = walk_bytes_.experts == 0
                              ? 0
                              : walk_bytes_.experts / config_.n_experts * (config_.n_experts - config_.n_experts_used);
    return walk_bytes_.weights - idle + (config_.tied_head ? 0 : embedding_row_bytes_);
}

}  // namespace weir
