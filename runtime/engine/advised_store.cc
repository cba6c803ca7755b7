#include "runtime/engine/advised_store.h"

#include <algorithm>
#include <memory>
#include <set>

#include "pager/advised_mapping.h"
#include "pager/residency_policy.h"
#include "pager/system.h"
#include "runtime/engine/budget.h"
#include "runtime/engine/paging_shape.h"
#include "runtime/engine/sigbus.h"
#include "runtime/engine/store_base.h"
#include "runtime/error.h"

namespace weir {
namespace {

class AdvisedStore : public StoreBase {
  public:
    AdvisedStore(const GgufFile& file, const ModelConfig& config, const StoreOptions& options)
        : StoreBase(file, config, options) {
        chunk_bytes_ = pager::choose_extent_bytes(options.frame_bytes, pager::page_size(), pager::pmd_page_size());
        pager::AdvisedOptions o;
        const std::vector<uint64_t> places = lay_out(&o.chunks);
        n_steps_ = o.chunks.size();
        announcements_ = Announcements(n_steps_, steps_without_head_);
        const std::set<uint32_t> distinct(o.chunks.begin(), o.chunks.end());
        o.chunk_bytes = chunk_bytes_;
        o.workers = options.workers;
        o.held_steps = pager::held_extents(longest_row_bytes(map_), chunk_bytes_);
        o.frames = std::min<uint64_t>(distinct.size(), options.frame_bytes / chunk_bytes_);
        o.gates = options.gates;
        frame_bytes_ = o.frames * chunk_bytes_;
        const size_t least = pager::least_advised_frames(o.held_steps);
        if (o.frames < std::min(distinct.size(), least)) {
            throw UsageError("the budget leaves " + mib(options.frame_bytes) + " for weights, and at least " +
                             mib(least * chunk_bytes_) + " are needed; raise --ram or --weights-ram");
        }
        end_with_a_line_on_sigbus();
        try {
            mapping_ = std::make_unique<pager::AdvisedMapping>(parts_, std::move(o));
        } catch (const std::runtime_error& e) {
            throw Error(e.what());
        }
        for (size_t step = 0; step < n_steps_; ++step)
            if (mapping_->kept(step)) resident_bytes_ += step_weights_[step];
        bind_by_offset(mapping_->base(), places);
        cells_ = cells_of(chunk_bytes_, places);
    }

    void begin_pass(bool with_head, bool next_follows) override {
        check_unchanged();
        announcements_.begin_pass(with_head, next_follows,
                                  [this](uint64_t ordinal, size_t first, size_t count) { mapping_->plan(ordinal, first, count); });
    }

    void end_pass() override {
        announcements_.end_pass();
        for (size_t w = 0; w < options_.workers; ++w) mapping_->publish(w, announcements_.ordinal(0));
        must_read_bytes_ += pass_bytes() - std::min(pass_bytes(), resident_bytes_);
        if (!mapping_->failed()) return;
        check_unchanged();  // says it better
        throw Error(mapping_->failure());
    }

    // By plain reads, which leave nothing behind: touching the mapping would fault in pages that no budget counts.
    void embedding_rows(std::span<const int32_t> ids, float* out) override {
        row_.resize(row_bytes());
        for (size_t i = 0; i < ids.size(); ++i) {
            const uint64_t offset = embedding_offset(ids[i]);
            read_exactly(offset, row_.data(), row_.size());
            const uint64_t begin = pager::align_down(offset, parts_.granule());
            parts_.drop_cache(begin, pager::align_up(offset + row_.size(), parts_.granule()) - begin);
            scalar_->dequantize(map_.embedding->type, row_.data(), out + i * config_.dim, config_.dim);
        }
    }

    size_t extent_bytes() const override { return chunk_bytes_; }

    bool acquire(size_t worker, uint64_t place, size_t bytes) noexcept override {
        return mapping_->acquire(worker, place / chunk_bytes_, (place + bytes - 1) / chunk_bytes_);
    }

    void release(size_t worker, uint64_t place) noexcept override {
        mapping_->publish(worker, announcements_.ordinal(place / chunk_bytes_));
    }

    void sit_out(size_t worker) noexcept override { mapping_->publish(worker, announcements_.ordinal(n_steps_)); }

    uint64_t stall_us() const noexcept override { return mapping_->stall_us(); }

    std::vector<MapCell> map_cells() const override { return cells_; }

    StoreView look() const override {
        const pager::AdvisedStats a = mapping_->stats();
        StoreView view;
        view.units = unit_letters(mapping_->look());
        view.bytes_read = a.bytes_mapped;
        view.stall_us = a.stall_us;
        view.waits = a.waits;
        view.frame_bytes = frame_bytes_;
        return view;
    }

    StoreStats stats() const override {
        const pager::AdvisedStats a = mapping_->stats();
        StoreStats s;
        s.mode = PagingMode::kAdvised;
        s.weights_bytes = walk_bytes().weights;
        s.expert_bytes = expert_bytes();
        s.pass_bytes = pass_bytes();
        s.resident_bytes = resident_bytes_;
        s.must_read_bytes = must_read_bytes_;
        s.ring_bytes = a.ring_chunks * chunk_bytes_;
        s.frame_bytes = frame_bytes_;
        s.extent_bytes = chunk_bytes_;
        s.bytes_read = a.bytes_mapped;
        s.waits = a.waits;
        s.stall_us = a.stall_us;
        s.rungs = "uffd=none install=mmap reader=madvise io=buffered";
        return s;
    }

  private:
    // Cuts the walk into steps: a step is what one matrix, or several that follow each other there too, have in one chunk of
    // the file. Returns the places of the map's tensors: a step's number times the chunk's size, and their offset in it.
    std::vector<uint64_t> lay_out(std::vector<uint32_t>* chunks) {
        std::vector<uint64_t> places;
        uint64_t end_before = 0;  // in the file, of the tensor before
        for (const PlacedTensor& placed : map_.tensors) {
            const uint64_t begin = placed.tensor->offset, end = begin + placed.tensor->bytes;
            const auto first = static_cast<uint32_t>(begin / chunk_bytes_);
            const bool follows = !chunks->empty() && chunks->back() == first && begin >= end_before;
            if (!follows) chunks->push_back(first);
            if (places.size() + 1 == map_.tensors.size()) steps_without_head_ = chunks->size() - (follows ? 0 : 1);
            places.push_back((chunks->size() - 1) * chunk_bytes_ + begin % chunk_bytes_);
            for (uint64_t c = first + uint64_t{1}; c <= (end - 1) / chunk_bytes_; ++c) chunks->push_back(static_cast<uint32_t>(c));
            step_weights_.resize(chunks->size(), 0);
            for (uint64_t at = begin, step = places.back() / chunk_bytes_; at < end; ++step) {
                const uint64_t part = std::min(end - at, chunk_bytes_ - at % chunk_bytes_);
                step_weights_[step] += part;
                at += part;
            }
            end_before = end;
        }
        return places;
    }

    size_t chunk_bytes_ = 0;
    size_t n_steps_ = 0;
    size_t steps_without_head_ = 0;
    uint64_t frame_bytes_ = 0;
    std::vector<uint64_t> step_weights_;  // bytes of the matrices
    std::unique_ptr<pager::AdvisedMapping> mapping_;
    std::vector<MapCell> cells_;
    std::vector<std::byte> row_;
    Announcements announcements_;
    uint64_t resident_bytes_ = 0;
    uint64_t must_read_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> open_advised_store(const GgufFile& file, const ModelConfig& config,
                                                const StoreOptions& options) {
    return std::make_unique<AdvisedStore>(file, config, options);
}

}  // namespace weir
