#include "runtime/engine/file_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

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
        if (options.mode == PagingMode::kMmap)
            map_file();
        else
            load();
        bind_by_offset(base_);
    }

    ~FileStore() override {
        if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
    }

    void begin_pass(bool, bool) override { check_unchanged(); }
    void end_pass() override { check_unchanged(); }

    void embedding_rows(std::span<const int32_t> ids, float* out) override {
        for (size_t i = 0; i < ids.size(); ++i)
            scalar_->dequantize(map_.embedding->type, base_ + embedding_offset(ids[i]), out + i * config_.dim, config_.dim);
    }

    size_t extent_bytes() const override { return SIZE_MAX; }
    bool acquire(size_t, uint64_t, size_t) noexcept override { return true; }
    void release(size_t, uint64_t) noexcept override {}

    StoreStats stats() const override {
        StoreStats s;
        s.mode = options_.mode;
        s.weights_bytes = map_.weights_bytes;
        s.expert_bytes = expert_bytes();
        s.pass_bytes = pass_bytes();
        s.resident_bytes = options_.mode == PagingMode::kResident ? map_.weights_bytes : 0;
        s.frame_bytes = options_.mode == PagingMode::kResident ? mapping_bytes_ : 0;
        s.bytes_read = bytes_read_;
        s.rungs = options_.mode == PagingMode::kResident ? (file_.direct() ? "io=direct" : "io=buffered") : "";
        return s;
    }

  private:
    void map_file() {
        mapping_bytes_ = file_.size();
        mapping_ = ::mmap(nullptr, mapping_bytes_, PROT_READ, MAP_SHARED, file_.buffered_fd(), 0);
        if (mapping_ == MAP_FAILED) {
            mapping_ = nullptr;
            throw Error(file_.path() + ": cannot map: " + std::strerror(errno));
        }
        base_ = static_cast<const std::byte*>(mapping_);
        end_with_a_line_on_sigbus();
    }

    // Reads every page that holds tensor data, in large aligned reads; base_ stands for offset 0 of the file.
    void load() {
        const uint64_t begin = pager::align_down(gguf_.data_offset(), file_.granule());
        const uint64_t end = pager::align_up(file_.size(), file_.granule());
        const size_t huge = pager::pmd_page_size();
        mapping_bytes_ = pager::align_up(end - begin, huge) + huge;
        mapping_ = ::mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping_ == MAP_FAILED) {
            mapping_ = nullptr;
            throw Error(file_.path() + ": " + std::to_string(mapping_bytes_ >> 20) +
                        " MiB of memory for the weights cannot be had: " + std::strerror(errno));
        }
        const auto address = reinterpret_cast<uintptr_t>(mapping_);
        auto* const data = static_cast<std::byte*>(mapping_) + (pager::align_up(address, huge) - address);
        (void)::madvise(mapping_, mapping_bytes_, MADV_HUGEPAGE);  // advice: slower without, not wrong
        base_ = data - begin;

        const auto start = std::chrono::steady_clock::now();
        constexpr size_t kChunk = 8u << 20;
        for (uint64_t at = begin; at < file_.size();) {
            const size_t want = std::min<uint64_t>(kChunk, end - at);
            const ssize_t n = ::pread(file_.fd(), data + (at - begin), want, static_cast<off_t>(at));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                throw Error(file_.path() + ": reading at offset " + std::to_string(at) + " failed: " +
                            (n < 0 ? std::strerror(errno) : "the file ends before its expected size of " +
                                                                std::to_string(file_.size()) + " bytes"));
            }
            if (!file_.direct()) file_.drop_cache(at, static_cast<uint64_t>(n));
            at += static_cast<uint64_t>(n);
            bytes_read_ += static_cast<uint64_t>(n);
            if (options_.progress && std::chrono::steady_clock::now() - start > std::chrono::seconds(1)) {
                std::fprintf(stderr, "\rreading weights: %llu of %llu MiB ", static_cast<unsigned long long>((at - begin) >> 20),
                             static_cast<unsigned long long>((end - begin) >> 20));
                shown_ = true;
            }
        }
        if (shown_) std::fprintf(stderr, "\r%*s\r", 60, "");
    }

    void* mapping_ = nullptr;
    size_t mapping_bytes_ = 0;
    const std::byte* base_ = nullptr;
    uint64_t bytes_read_ = 0;
    bool shown_ = false;
};

}  // namespace

std::unique_ptr<WeightStore> open_file_store(const GgufFile& file, const ModelConfig& config,
                                             const StoreOptions& options) {
    return std::make_unique<FileStore>(file, config, options);
}

}  // namespace weir
