#include "runtime/model/native_convert.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "kernels/kernels.h"
#include "kernels/nested_learn.h"
#include "kernels/quantize_weights.h"
#include "runtime/error.h"
#include "runtime/model/file_input.h"
#include "runtime/model/native_format.h"
#include "runtime/model/partial_file.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

constexpr uint64_t kSmallPage = 4u << 10, kLargePage = 16u << 10;
constexpr uint64_t kLargeModel = uint64_t{1} << 30;
constexpr uint64_t kLeastBand = 64u << 10, kMostBand = 4u << 20;
constexpr uint64_t kRowTile = 16;  // of the kernels
constexpr uint64_t kLearnedRows = 32;  // that are rounded together

uint64_t align_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

uint64_t stored_row(uint64_t cols) { return band_bytes(1, cols, 1); }

// Rows for which every run ends with a page, so that nothing is lost to padding.
uint64_t rows_without_padding(uint64_t cols, uint64_t page) {
    uint64_t rows = kRowTile;
    for (size_t run = 0; run < kRuns; ++run) rows = std::lcm(rows, page / std::gcd(page, run_bytes(run, 1, cols)));
    return rows;
}

uint64_t band_rows_for(uint64_t rows, uint64_t cols, uint64_t page, uint64_t most_bytes) {
    const uint64_t fit = std::max<uint64_t>(1, most_bytes / stored_row(cols));
    if (rows <= fit) return rows;
    const uint64_t tight = rows_without_padding(cols, page);
    const uint64_t step = tight <= fit ? tight : kRowTile;
    const uint64_t bands = (rows + fit - 1) / fit;
    const uint64_t even = align_up((rows + bands - 1) / bands, step);
    return std::min(rows, even <= fit ? even : std::max(step, fit / step * step));
}

// Decides what becomes of each tensor, in the order of the file.
class Planner {
  public:
    Planner(const GgufFile& source, const ModelConfig& config, const ConvertOptions& options) : source_(source), config_(config) {
        collect();
        uint64_t stored = 0;
        for (const NativePart& part : table_.parts) stored += part.rows * stored_row(part.cols);
        table_.page = options.page != 0 ? options.page : stored < kLargeModel ? kSmallPage : kLargePage;
        const uint64_t band = options.band_bytes != 0 ? options.band_bytes : std::clamp(stored / 64, kLeastBand, kMostBand);
        for (NativePart& part : table_.parts) {
            part.band_rows = band_rows_for(part.rows, part.cols, table_.page, band);
            result_.weights += part.rows * part.cols;
        }
        table_.source_bytes = source.file_size();
        table_.index_bytes = source.data_offset();
        table_.checksums.resize(index_parts(&table_, source.tensors().size()));
        place();
    }

    NativeTable& table() { return table_; }
    Conversion& result() { return result_; }

  private:
    uint32_t number_of(const GgufTensor& tensor) const { return static_cast<uint32_t>(&tensor - source_.tensors().data()); }

    void add_parts(const std::string& name, uint64_t expert) {
        const GgufTensor& tensor = source_.tensor(name);
        NativePart part;
        part.tensor = number_of(tensor);
        part.expert = static_cast<uint32_t>(expert);
        part.rows = tensor.dims[1];
        part.cols = tensor.dims[0];
        table_.parts.push_back(part);
        in_planes_[part.tensor] = true;
    }

    bool divides(const std::string& name) {
        if (source_.tensor(name).dims[0] % kNativeGroup == 0) return true;
        ++result_.kept_matrices;
        return false;
    }

    void collect() {
        in_planes_.assign(source_.tensors().size(), false);
        const std::vector<LayerTensor> layer = layer_tensors(config_);
        for (size_t l = 0; l < config_.n_layers; ++l) {
            std::vector<std::string> experts;
            for (const LayerTensor& t : layer) {
                const std::string name = layer_tensor_name(l, t.name);
                // A router decides for whole experts: it stays exact.
                if (!t.is_matrix() || name.ends_with("ffn_gate_inp.weight") || !divides(name)) continue;
                if (t.experts != 0) experts.push_back(name);
                else add_parts(name, 0);
            }
            for (size_t e = 0; e < config_.n_experts; ++e)
                for (const std::string& name : experts) add_parts(name, e);
        }
        const std::string head = config_.tied_head ? "token_embd.weight" : "output.weight";
        if (divides(head)) add_parts(head, 0);
        for (const GgufTensor& tensor : source_.tensors()) {
            if (in_planes_[number_of(tensor)]) continue;
            NativeKept kept;
            kept.tensor = number_of(tensor);
            kept.type = tensor.type;
            // Rows of an embedding are read at the highest level, and that is 8 bits.
            const bool wide = kernels::traits(tensor.type).block_elements == 1 && tensor.dims[0] % kNativeGroup == 0;
            if (tensor.name == "token_embd.weight" && wide) kept.type = kernels::Type::kQ8_0;
            kept.bytes = kernels::row_bytes(kept.type, tensor.dims[0]) * tensor.rows();
            table_.kept.push_back(kept);
        }
    }

    void place() {
        uint64_t at = native_head_bytes(table_.index_bytes, table_.kept.size(), table_.parts.size(), table_.checksums.size());
        for (NativeKept& kept : table_.kept) {
            kept.offset = align_up(at, kKeptAlignment);
            at = kept.offset + kept.bytes;
            result_.kept_bytes += kept.bytes;
        }
        at = align_up(at, table_.page);
        for (NativePart& part : table_.parts) {
            part.offset = at;
            at += part_bytes(part, table_.page);
        }
        result_.plane_bytes = table_.parts.empty() ? 0 : at - table_.parts.front().offset;
        result_.file_bytes = at;
    }

    const GgufFile& source_;
    const ModelConfig& config_;
    NativeTable table_;
    Conversion result_;
    std::vector<bool> in_planes_;
};

// Rows of one tensor as floats, checked.
class Rows {
  public:
    Rows(const GgufFile& source, const FileInput& input, const kernels::KernelSet& kernels) : source_(source), input_(input), kernels_(kernels) {}

    std::span<const float> read(const GgufTensor& tensor, uint64_t row) {
        const uint64_t bytes = kernels::row_bytes(tensor.type, tensor.dims[0]);
        raw_.resize(bytes);
        floats_.resize(tensor.dims[0]);
        input_.read(tensor.offset + row * bytes, raw_);
        kernels_.dequantize(tensor.type, raw_.data(), floats_.data(), floats_.size());
        for (const float value : floats_) {
            if (!std::isfinite(value)) fail(tensor, row, "has a weight that is no finite number");
        }
        return floats_;
    }

    [[noreturn]] void fail(const GgufTensor& tensor, uint64_t row, const std::string& why) const {
        throw Error(source_.path() + ": tensor " + quoted(tensor.name) + ", row " + std::to_string(row) + ", " + why);
    }

  private:
    const GgufFile& source_;
    const FileInput& input_;
    const kernels::KernelSet& kernels_;
    std::vector<std::byte> raw_;
    std::vector<float> floats_;
};

struct BandTask {
    NativePart* part;
    uint64_t band;
};

class Converter {
  public:
    Converter(const GgufFile& source, NativeTable& table, PartialFile& out, const ConvertOptions& options,
              const std::function<bool(uint64_t, uint64_t)>& go_on)
        : source_(source), input_(source), table_(table), out_(out), feedback_(options.feedback), learn_for_(options.learn_for), go_on_(go_on), kernels_(*kernels::select_kernels(nullptr)) {
        for (NativePart& part : table.parts) {
            for (uint64_t b = 0; b < part.bands(); ++b) tasks_.push_back({&part, b});
            total_ += part_bytes(part, table.page);
        }
    }

    void keep() {
        Rows rows(source_, input_, kernels_);
        for (NativeKept& kept : table_.kept) {
            const GgufTensor& tensor = source_.tensors()[kept.tensor];
            const size_t row = kernels::row_bytes(kept.type, tensor.dims[0]);
            std::vector<std::byte> bytes(row);
            NativeChecksum checksum;
            for (uint64_t r = 0; r < tensor.rows(); ++r) {
                if (kept.type == tensor.type) input_.read(tensor.offset + r * row, bytes);
                else kernels::quantize_weights(kept.type, rows.read(tensor, r).data(), bytes.data(), tensor.dims[0]);
                checksum.add(bytes);
                out_.write(kept.offset + r * row, bytes);
            }
            kept.checksum = checksum.value();
        }
    }

    void run(size_t threads) {
        std::vector<std::jthread> team;
        for (size_t i = 1; i < threads; ++i) team.emplace_back([this] { work(); });
        work();
        team.clear();
        if (error_) std::rethrow_exception(error_);
    }

  private:
    void work() {
        try {
            Rows rows(source_, input_, kernels_);
            std::vector<std::byte> band;
            for (size_t i = next_++; i < tasks_.size() && !stop_; i = next_++) convert(tasks_[i], rows, band);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!error_) error_ = std::current_exception();
            stop_ = true;
        }
    }

    // Of a part's inputs; how its blocks come out is written down with it.
    std::shared_ptr<const kernels::Feedback> feedback_of(NativePart& part) {
        if (!feedback_) return nullptr;
        const std::lock_guard lock(feedback_mutex_);
        std::shared_ptr<const kernels::Feedback> feedback = feedback_(source_.tensors()[part.tensor].name);
        part.fine_steps = feedback->fine_steps;
        return feedback;
    }

    bool round_rows(std::vector<float>& weights, size_t rows, size_t cols, const kernels::Feedback* feedback, std::vector<kernels::NestedBlock>& out) const {
        if (feedback != nullptr) return kernels::learn_nested(kernels_, weights.data(), rows, cols, *feedback, learn_for_, out.data());
        for (size_t b = 0; b * 256 < cols; ++b)
            if (!kernels::fit_nested(weights.data() + b * 256, std::min<size_t>(256, cols - b * 256), &out[b])) return false;
        return true;
    }

    void convert(const BandTask& task, Rows& source, std::vector<std::byte>& band) {
        NativePart& part = *task.part;
        const uint64_t n_rows = part.rows_of(task.band);
        const std::array<NativeRun, kRuns> runs = band_runs(part, task.band, table_.page);
        band.assign(band_bytes(n_rows, part.cols, table_.page), std::byte{0});
        std::byte* planes[kernels::kPlanes];
        for (size_t r = 0; r < kRuns; ++r) {
            const RunPlanes& in = kRunPlanes[r];
            std::byte* const at = band.data() + (runs[r].offset - runs[0].offset);
            planes[static_cast<size_t>(in.first)] = at;
            if (in.two) planes[static_cast<size_t>(in.second)] = at + n_rows * kernels::plane_row_bytes(in.first, part.cols);
        }
        const GgufTensor& tensor = source_.tensors()[part.tensor];
        const uint64_t first = part.expert * part.rows + task.band * part.band_rows;
        const std::shared_ptr<const kernels::Feedback> feedback = feedback_of(part);
        const size_t supers = (part.cols + 255) / 256;
        const uint64_t step = feedback != nullptr ? kLearnedRows : 1;
        std::vector<kernels::NestedBlock> blocks(step * supers);
        std::vector<float> weights(step * part.cols);
        for (uint64_t at = 0; at < n_rows; at += step) {
            const uint64_t n = std::min(step, n_rows - at);
            for (uint64_t r = 0; r < n; ++r) std::ranges::copy(source.read(tensor, first + at + r), weights.begin() + static_cast<ptrdiff_t>(r * part.cols));
            if (!round_rows(weights, n, part.cols, feedback.get(), blocks))
                source.fail(tensor, first + at, "or one of the " + std::to_string(n - 1) + " after it, has weights too large for scales in half precision");
            for (uint64_t r = 0; r < n; ++r) {
                for (size_t b = 0; b < supers; ++b) kernels::pack_nested(blocks[r * supers + b], b, part.cols, planes);
                for (size_t p = 0; p < kernels::kPlanes; ++p)
                    planes[p] += kernels::plane_row_bytes(static_cast<kernels::Plane>(p), part.cols);
            }
        }
        for (size_t r = 0; r < kRuns; ++r) {
            const auto bytes = std::span(band).subspan(runs[r].offset - runs[0].offset, runs[r].bytes);
            table_.checksums[part.first_checksum + task.band * kRuns + r] = native_checksum(bytes);
        }
        out_.write(runs[0].offset, band);
        const std::lock_guard lock(mutex_);
        done_ += band.size();
        if (!go_on_(done_, total_)) throw Error(source_.path() + ": conversion stopped; nothing is left of it");
    }

    const GgufFile& source_;
    const FileInput input_;
    NativeTable& table_;
    PartialFile& out_;
    const decltype(ConvertOptions::feedback)& feedback_;
    const kernels::LearnFor learn_for_;
    std::mutex feedback_mutex_;
    const std::function<bool(uint64_t, uint64_t)>& go_on_;
    const kernels::KernelSet& kernels_;
    std::vector<BandTask> tasks_;
    std::atomic<size_t> next_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::exception_ptr error_;
    uint64_t done_ = 0, total_ = 0;
};

}  // namespace

Conversion convert_to_native(const GgufFile& source, const ModelConfig& config, const std::string& path, const ConvertOptions& options,
                             const std::function<bool(uint64_t, uint64_t)>& go_on) {
    if (source.native() != nullptr) throw Error(source.path() + ": is in the native format already; convert the GGUF file that it was made from");
    if (source.parts().size() > 1)
        throw Error(source.path() + ": is a model split into " + std::to_string(source.parts().size()) +
                    " files, which cannot be converted; merge them into one file first");
    Planner plan(source, config, options);
    NativeTable& table = plan.table();
    PartialFile out(path);
    out.reserve(plan.result().file_bytes);
    Converter converter(source, table, out, options, go_on);
    converter.keep();
    converter.run(std::max<size_t>(1, options.threads));
    std::vector<std::byte> index(table.index_bytes);
    FileInput(source).read(0, index);
    out.write(0, native_head(table, index, plan.result().file_bytes));
    out.finish(plan.result().file_bytes);
    return plan.result();
}

void verify_native(const GgufFile& file, const std::function<bool(uint64_t, uint64_t)>& go_on) {
    const NativeTable* const table = file.native();
    if (table == nullptr) throw Error(file.path() + ": is plain GGUF, which has no checksums; only native files can be verified");
    const FileInput input(file);
    uint64_t done = 0;
    std::vector<std::byte> bytes(1u << 20);
    const auto check = [&](uint64_t offset, uint64_t size, uint64_t checksum, const std::string& what) {
        NativeChecksum sum;
        for (uint64_t at = 0; at < size; at += bytes.size()) {
            const auto piece = std::span(bytes).first(std::min<uint64_t>(bytes.size(), size - at));
            input.read(offset + at, piece);
            sum.add(piece);
        }
        if (sum.value() != checksum)
            throw Error(file.path() + ": at byte " + std::to_string(offset) + ": " + what + ", " + std::to_string(size) +
                        " bytes, does not have its checksum: the file is damaged, fetch or make it anew");
        done += size;
        if (!go_on(done, file.file_size())) throw Error(file.path() + ": verification stopped");
    };
    for (const NativeKept& kept : table->kept) check(kept.offset, kept.bytes, kept.checksum, "tensor " + quoted(file.tensors()[kept.tensor].name));
    for (const NativePart& part : table->parts) {
        for (uint64_t b = 0; b < part.bands(); ++b) {
            const auto runs = band_runs(part, b, table->page);
            for (size_t r = 0; r < kRuns; ++r) {
                check(runs[r].offset, runs[r].bytes, table->checksum(part, b, r),
                      "tensor " + quoted(file.tensors()[part.tensor].name) + ", rows from " + std::to_string(part.expert * part.rows + b * part.band_rows) +
                          " on, plane " + kernels::plane_name(kRunPlanes[r].first));
            }
        }
    }
}

}  // namespace weir
