#include "runtime/engine/file_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>

#include "pager/file_mapping.h"
#include "pager/system.h"
#include "runtime/engine/sigbus.h"
#include "runtime/engine/store_base.h"
#include "runtime/error.h"

namespace weir {
namespace {

class FileStore : public StoreBase {
  public:
    FileStore(const GgufFile& file, const ModelConfig& config, const StoreOptions& options)
        : StoreBase(file, config, options) {
        if (options.mode == PagingMode::kMmap) {
            map_files();
            bind_by_offset(base_);
        } else if (gguf_.native() != nullptr) {
            load_level();
            bind_by_place(base_);
        } else {
            load();
            bind_by_offset(base_);
        }
    }

    ~FileStore() override {
        if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
    }

    void begin_pass(bool, bool) override { check_unchanged(); }
    void end_pass() override { check_unchanged(); }

    void embedding_rows(std::span<const int32_t> ids, float* out) override {
        for (size_t i = 0; i < ids.size(); ++i) {
            // Of a native file: what the level does not read is not in memory, and rows want the highest.
            if (gguf_.native() != nullptr) read_embedding(ids[i], out + i * config_.dim);
            else scalar_->dequantize(map_.embedding->type, base_ + embedding_offset(ids[i]), out + i * config_.dim, config_.dim);
        }
    }

    size_t extent_bytes() const override { return SIZE_MAX; }
    bool acquire(size_t, uint64_t, size_t) noexcept override { return true; }
    void release(size_t, uint64_t) noexcept override {}

    std::vector<MapCell> map_cells() const override { return cells_of(0); }

    StoreView look() const override {
        StoreView view;
        view.units.assign(n_cells_, options_.mode == PagingMode::kResident ? 'R' : 'k');
        view.bytes_read = bytes_read_;
        return view;
    }

    StoreStats stats() const override {
        StoreStats s;
        s.mode = options_.mode;
        s.plan = plan();
        s.weights_bytes = walk_bytes().weights;
        s.expert_bytes = expert_bytes();
        s.pass_bytes = pass_bytes();
        s.resident_bytes = options_.mode == PagingMode::kResident ? walk_bytes().weights : 0;
        s.frame_bytes = options_.mode == PagingMode::kResident ? gguf_.file_size() : 0;
        s.bytes_read = bytes_read_;
        s.rungs = options_.mode == PagingMode::kResident ? (parts_.direct() ? "io=direct" : "io=buffered") : "";
        return s;
    }

  private:
    void map_files() {
        try {
            mapped_ = std::make_unique<pager::FileMapping>(parts_);
        } catch (const std::runtime_error& e) {
            throw Error(e.what());
        }
        base_ = mapped_->base();
        end_with_a_line_on_sigbus();
    }

    // Reads every page that holds tensor data, in large aligned reads; base_ stands for offset 0.
    void load() {
        const size_t granule = parts_.granule();
        const uint64_t begin = pager::align_down(gguf_.parts().front().data_offset, granule);
        std::byte* const data = take_memory(parts_.end() - begin);
        base_ = data - begin;
        for (size_t i = 0; i < files_.size(); ++i) {
            const uint64_t from = pager::align_down(gguf_.parts()[i].data_offset, granule);
            read_pages(files_[i], from, pager::align_up(files_[i].size(), granule), data + (files_[i].begin() + from - begin),
                       gguf_.file_size());
        }
        end_progress();
    }

    // Reads the walk's image alone; base_ is its first byte.
    void load_level() {
        std::byte* const data = take_memory(map_.image_bytes);
        base_ = data;
        for (const PlacedRange& range : map_.ranges)
            read_pages(files_.front(), range.file_offset, range.file_offset + range.bytes, data + range.place, map_.image_bytes);
        end_progress();
    }

    std::byte* take_memory(uint64_t bytes) {
        const size_t huge = pager::pmd_page_size();
        mapping_bytes_ = pager::align_up(bytes, huge) + huge;
        mapping_ = ::mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping_ == MAP_FAILED) {
            mapping_ = nullptr;
            throw Error(gguf_.path() + ": " + std::to_string(mapping_bytes_ >> 20) +
                        " MiB of memory for the weights cannot be had: " + std::strerror(errno));
        }
        (void)::madvise(mapping_, mapping_bytes_, MADV_HUGEPAGE);  // advice: slower without, not wrong
        const auto address = reinterpret_cast<uintptr_t>(mapping_);
        return static_cast<std::byte*>(mapping_) + (pager::align_up(address, huge) - address);
    }

    // [from, end) of a file, which is aligned for direct reads and may end past the file's end. whole: of all that is read.
    void read_pages(const pager::File& file, uint64_t from, uint64_t end, std::byte* to, uint64_t whole) {
        constexpr size_t kChunk = 8u << 20;
        for (uint64_t at = from; at < std::min<uint64_t>(end, file.size());) {
            const size_t want = std::min<uint64_t>(kChunk, end - at);
            const ssize_t n = ::pread(file.fd(), to + (at - from), want, static_cast<off_t>(at));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                throw Error(file.path() + ": reading at offset " + std::to_string(at) + " failed: " +
                            (n < 0 ? std::strerror(errno) : "the file ends before its expected size of " +
                                                                std::to_string(file.size()) + " bytes"));
            }
            if (!file.direct()) file.drop_cache(at, static_cast<uint64_t>(n));
            at += static_cast<uint64_t>(n);
            bytes_read_ += static_cast<uint64_t>(n);
            if (options_.on_progress) options_.on_progress(bytes_read_, whole);
            if (options_.progress && std::chrono::steady_clock::now() - start_ > std::chrono::seconds(1)) {
                std::fprintf(stderr, "\rreading weights: %llu of %llu MiB ", static_cast<unsigned long long>(bytes_read_ >> 20),
                             static_cast<unsigned long long>(whole >> 20));
                shown_ = true;
            }
        }
    }

    void end_progress() {
        if (shown_) std::fprintf(stderr, "\r%*s\r", 60, "");
    }

    std::unique_ptr<pager::FileMapping> mapped_;  // of mode mmap
    void* mapping_ = nullptr;
    size_t mapping_bytes_ = 0;
    const std::byte* base_ = nullptr;
    uint64_t bytes_read_ = 0;  // while it was opened
    const size_t n_cells_ = cells_of(0).size();
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    bool shown_ = false;
};

}  // namespace

std::unique_ptr<WeightStore> open_file_store(const GgufFile& file, const ModelConfig& config,
                                             const StoreOptions& options) {
    return std::make_unique<FileStore>(file, config, options);
}

}  // namespace weir
