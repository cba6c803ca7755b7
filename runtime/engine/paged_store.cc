#include "runtime/engine/paged_store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "pager/check.h"
#include "pager/mapping.h"
#include "pager/pager.h"
#include "pager/system.h"
#include "runtime/engine/expert_groups.h"
#include "runtime/engine/foresight.h"
#include "runtime/engine/limited_queue.h"
#include "runtime/engine/paging_shape.h"
#include "runtime/engine/plane_layout.h"
#include "runtime/engine/ring_length.h"
#include "runtime/engine/store_base.h"
#include "runtime/engine/traced_queue.h"
#include "runtime/error.h"
#include "runtime/severity.h"

namespace weir {
namespace {

// Embedding rows read at once, or pieces of them: enough for the drive to work in parallel on a prompt, little enough to
// cost no budget.
constexpr size_t kPiecesAtOnce = 64;

pager::InstallRung install_rung(const std::string& name) {
    if (name == "auto") return pager::InstallRung::kAuto;
    if (name == "move") return pager::InstallRung::kMove;
    if (name == "copy") return pager::InstallRung::kCopy;
    throw UsageError("--install " + name + ": unknown; use auto, move or copy");
}

pager::ReaderRung reader_rung(const std::string& name) {
    if (name == "auto") return pager::ReaderRung::kAuto;
    if (name == "io_uring") return pager::ReaderRung::kIoUring;
    if (name == "pread") return pager::ReaderRung::kPread;
    throw UsageError("--reader " + name + ": unknown; use auto, io_uring or pread");
}

pager::UffdSource uffd_source(const std::string& name) {
    if (name == "auto") return pager::UffdSource::kAuto;
    if (name == "user-mode-only") return pager::UffdSource::kUserModeOnly;
    if (name == "device") return pager::UffdSource::kDevice;
    if (name == "syscall") return pager::UffdSource::kSystemCall;
    throw UsageError("--uffd-source " + name + ": unknown; use auto, user-mode-only, device or syscall");
}

// A decode thread sleeps in a fault on weights that cannot be read any more: nothing can wake it with an error, so the
// process ends here, with the reason.
[[noreturn]] void end_process(const char* text) {
    static std::atomic<bool> ending{false};
    if (ending.exchange(true)) {  // the watchdog, of a pager thread that is at this very place: one reason is told
        ::sleep(5);
        ::_exit(1);
    }
    std::fprintf(stderr, "%sweir: %s\n", severity_prefix(Severity::kFatal), text);
    std::fflush(stderr);
    ::_exit(1);
}

// Experts of one step: more would be kept for long once they are done with.
constexpr size_t kMostAtOnce = 8;

// What a user should know of a run that goes on: a slow device, a fallback that was taken.
void notice(const char* text) {
    std::fprintf(stderr, "%sweir: warning: %s\n", severity_prefix(Severity::kWarning), text);
}

class PagedStore : public StoreBase {
  public:
    PagedStore(const GgufFile& file, const ModelConfig& config, const StoreOptions& options)
        : StoreBase(file, config, options) {
        const size_t page = parts_.granule();
        const bool native = gguf_.native() != nullptr;  // its experts lie in the image
        ExpertGroups experts = native ? ExpertGroups{} : gather_experts(map_, config_.n_experts, page);
        if (native) planes_ = gather_planes_for(map_, options.plans, options.frame_bytes, options.workers, page);
        const PagingShape shape = native ? shape_paging(planes_, options.frame_bytes, options.workers)
                                         : shape_paging(map_.image_bytes, longest_row_bytes(map_, true), options.frame_bytes,
                                                        options.workers, page, experts.layout);
        extent_bytes_ = shape.extent_bytes;
        n_extents_ = shape.n_extents;
        announcements_ = Announcements(n_extents_, native ? planes_.without_head : (map_.head_place + extent_bytes_ - 1) / extent_bytes_);
        frames_ = shape.frames;
        ring_ = RingLength(pager::shortest_ring(), pager::longest_ring(n_extents_));
        pager::Layout layout = native ? std::move(planes_.extents) : cut_image();
        planes_.extents.extent_bytes = extent_bytes_;
        CHECK(layout.n_extents() == n_extents_);
        extent_used_.reserve(n_extents_);
        for (size_t e = 0; e < n_extents_; ++e) {
            uint64_t used = 0;
            for (const pager::Segment& s : layout.extent(e)) used += s.bytes;
            extent_used_.push_back(used);
        }

        pager::PagerOptions o;
        o.workers = options.workers;
        o.holding = shape.holding;
        o.frames = frames_;
        o.slot_frames = shape.slot_frames;
        o.worth = std::move(planes_.worth);
        o.groups = experts.layout;
        o.gates = options.gates;
        o.install = install_rung(options.install);
        o.reader = reader_rung(options.reader);
        o.uffd = uffd_source(options.uffd_source);
        if (options.io_limit_mbps != 0) o.read_queue = limit_reads(pager::make_read_queue(o.reader), options.io_limit_mbps * 1'000'000);
        if (!options.trace_io.empty())
            o.read_queue = trace_reads(o.read_queue != nullptr ? std::move(o.read_queue) : pager::make_read_queue(o.reader), options.trace_io);
        o.on_unanswerable = end_process;
        o.on_notice = notice;
        try {
            pager_ = pager::Pager::start(parts_, std::move(layout), std::move(o));
        } catch (const std::runtime_error& e) {
            throw Error(e.what());
        }
        place_planes(planes_, &map_);
        bind_by_place(pager_->region());
        if (!native) bind_experts_to(std::move(experts));
        touched_.assign(n_extents_, Touched::kAlways);
        runs_.reserve(n_extents_);
        if (native) touch_plan();
        count_resident();
        row_slot_ = pager::align_up(longest_embedding_piece(), page) + page;
        rows_at_once_ = kPiecesAtOnce / embedding_pieces();
        row_buffer_ = pager::Mapping(kPiecesAtOnce * row_slot_, page, false, "embedding rows");
    }

    void use_plan(const sched::Plan& wanted) override {
        if (wanted == plan()) return;
        StoreBase::use_plan(wanted);
        pager_->forget(announcements_.ordinal(0));  // of the next pass
        touch_plan();
        count_resident();
    }

    void set_deadline(std::chrono::microseconds time) override {
        if (planes_.pieces.empty() || time == time_) return;
        time_ = time;
        lead_ = {};
        if (has_deadline()) find_base();
    }

    void begin_pass(bool with_head, bool next_follows) override {
        check_unchanged();
        pass_begin_ = Clock::now();
        given_up_ = false;
        late_before_ = late_units_.load(std::memory_order_relaxed);
        stalled_before_ = pager_->stall_us();
        announcements_.begin_pass(with_head, next_follows,
                                  [this](uint64_t ordinal, size_t first, size_t count) { pager_->plan(ordinal, first, count); });
    }

    // Of experts in the image.
    void announce(uint64_t place, uint64_t bytes) noexcept override {
        if (slots_ != nullptr) return;
        for (const PlaneLayout::Piece& piece : planes_.within(place, bytes)) {
            if (!piece.read_by(plan())) continue;
            const std::span<const uint32_t> extents = planes_.extents_of(piece);
            announcements_.also(extents.front(), extents.back() - extents.front() + 1,
                                [this](uint64_t ordinal, size_t from, size_t count) { pager_->plan(ordinal, from, count); });
        }
    }

    size_t use_experts(size_t layer, std::span<uint32_t> experts) noexcept override {
        if (slots_ == nullptr) return experts.size();
        first_group_ = static_cast<uint32_t>(layer * n_experts_);
        for (const uint32_t e : foresight_.predicted(layer)) is_foreseen_[e] = 1;
        for (const uint32_t e : experts) is_foreseen_[e] = 0;
        for (const uint32_t e : foresight_.predicted(layer)) {
            if (std::exchange(is_foreseen_[e], 0) != 0) slots_->cancel(first_group_ + e);
        }
        foresight_.chose(layer, experts);
        experts_ = experts;
        used_ = released_ = 0;
        // What is here, then what is on its way, then what is to be read.
        for (const uint32_t e : experts) {
            const uint32_t group = first_group_ + e;
            wait_rank_[e] = !slots_->resident(group) ? 2 : slots_->here(group) ? 0 : 1;
        }
        std::sort(experts.begin(), experts.end(), [this](uint32_t a, uint32_t b) {
            return wait_rank_[a] != wait_rank_[b] ? wait_rank_[a] < wait_rank_[b] : a < b;
        });
        return next_experts(experts, 0);
    }

    size_t next_experts(std::span<uint32_t> experts, size_t done) noexcept override {
        if (slots_ == nullptr) return experts.size() - done;
        for (; released_ < done; ++released_) slots_->release(first_group_ + experts[released_]);
        if (done == experts.size()) return 0;
        for (;;) {
            const uint32_t seen = slots_->news();
            while (used_ < experts.size() && slots_->use(first_group_ + experts[used_])) ++used_;
            if (used_ > done || pager_->failed()) break;
            slots_->wait_for_news(seen);
        }
        size_t here = done;  // experts [done, here) are
        for (size_t i = done; i < used_; ++i) {
            if (!slots_->here(first_group_ + experts[i])) continue;
            std::rotate(experts.begin() + static_cast<ptrdiff_t>(here), experts.begin() + static_cast<ptrdiff_t>(i),
                        experts.begin() + static_cast<ptrdiff_t>(i) + 1);
            ++here;
        }
        return std::clamp<size_t>(here - done, 1, kMostAtOnce);
    }

    // The router of a layer ahead is looked at out of turn: only where it stays.
    bool wants_predictions() const noexcept override {
        return slots_ != nullptr && resident_bytes_ >= walk_bytes().weights - walk_bytes().experts && slots_->lacks();
    }

    void predict_experts(size_t layer, std::span<const uint32_t> experts) noexcept override {
        // What several tokens foresee together needs no record: others of the batch use what one of them does not.
        const bool of_one = experts.size() <= config_.n_experts_used, of_many = experts.size() > 2 * config_.n_experts_used;
        foresight_.predict(layer, experts, of_one);
        const size_t trusted = of_many ? experts.size() : foresight_.trusted();
        for (size_t i = 0; i < std::min(trusted, experts.size()); ++i)
            (void)slots_->hint(static_cast<uint32_t>(layer * n_experts_) + experts[i]);
    }

    const std::byte* expert_rows(size_t worker, const Matrix& w, size_t row) noexcept override {
        const size_t expert = row / w.expert_rows, group = w.first_group + expert;
        const std::byte* const slot = slots_->acquire(worker, static_cast<uint32_t>(group));
        if (slot == nullptr) return nullptr;
        return slot + part_offset_[group * ExpertGroups::kMostParts + w.part] + (row - expert * w.expert_rows) * w.row_bytes;
    }

    void end_pass() override {
        announcements_.end_pass();
        uint64_t absent_experts = 0;
        if (slots_ != nullptr) {
            release_experts();
            slots_->end_token();
            absent_experts = slots_->stats().absent_bytes;
        }
        for (size_t w = 0; w < options_.workers; ++w) pager_->publish(w, announcements_.ordinal(0));
        if (late_units_.load(std::memory_order_relaxed) != late_before_) ++late_passes_;
        if (given_up_) lead_ = std::clamp(lead_ + (Clock::now() - pass_begin_ - time_) / 4, Clock::duration(0), Clock::duration(time_));
        throw_if_failed();
        check_unchanged();
        if (pager_->residency_changes() != residency_changes_) count_resident();
        const uint64_t every_pass = walk_bytes().weights - walk_bytes().experts + (config_.tied_head ? 0 : row_bytes());
        must_read_bytes_ += every_pass - std::min(every_pass, resident_bytes_) + absent_experts - absent_experts_before_;
        absent_experts_before_ = absent_experts;
        const std::chrono::duration<double, std::micro> took = Clock::now() - pass_begin_;
        if (ring_.took(static_cast<double>(pager_->stall_us() - stalled_before_) / took.count()))
            pager_->set_ring(ring_.extents());
    }

    void embedding_rows(std::span<const int32_t> ids, float* out) override {
        const size_t page = parts_.granule();
        for (size_t done = 0; done < ids.size(); done += rows_at_once_) {
            const size_t n = std::min(rows_at_once_, ids.size() - done);
            EmbeddingRow rows[kPiecesAtOnce];
            pager::SmallRead reads[kPiecesAtOnce];
            size_t n_reads = 0;
            for (size_t i = 0; i < n; ++i) {
                rows[i] = embedding_row(ids[done + i]);
                for (const EmbeddingRow::Piece& piece : rows[i].all()) {
                    const uint64_t begin = pager::align_down(piece.offset, page);
                    const uint64_t end = pager::align_up(piece.offset + piece.bytes, page);
                    reads[n_reads] = {begin, static_cast<uint32_t>(end - begin), row_buffer_.base() + n_reads * row_slot_};
                    ++n_reads;
                }
            }
            if (!pager_->read_small({reads, n_reads})) throw_if_failed();
            for (size_t i = 0, read = 0; i < n; ++i) {
                const std::byte* bytes[kernels::kPlanes] = {};
                for (size_t piece = 0; piece < rows[i].n; ++piece, ++read)
                    bytes[piece] = reads[read].into + (rows[i].pieces[piece].offset - reads[read].file_offset);
                decode_embedding(rows[i], bytes, out + (done + i) * config_.dim);
            }
        }
    }

    size_t extent_bytes() const override { return extent_bytes_; }

    bool acquire(size_t worker, uint64_t place, size_t bytes) noexcept override {
        if (planes_.pieces.empty()) return pager_->acquire(worker, place / extent_bytes_, (place + bytes - 1) / extent_bytes_);
        const sched::Plan& needed = has_deadline() ? base_ : plan();
        for (const PlaneLayout::Piece& piece : planes_.within(place, bytes)) {
            if (!piece.read_by(needed)) continue;
            for (const uint32_t e : planes_.extents_of(piece))
                if (!pager_->acquire(worker, e, e)) return false;
        }
        return true;
    }

    bool refined(size_t worker, uint64_t place, size_t bytes) noexcept override {
        if (!has_deadline()) return true;
        const Clock::time_point deadline = pass_begin_ + time_ - lead_;
        const std::span<const PlaneLayout::Piece> pieces = planes_.within(place, bytes);
        bool any = false, here = true;
        for (const PlaneLayout::Piece& piece : pieces) {
            if (!piece.read_by(plan()) || piece.read_by(base_)) continue;
            any = true;
            for (const uint32_t e : planes_.extents_of(piece)) here = here && pager_->acquire_by(worker, e, deadline);
        }
        if (any) refined_units_.fetch_add(1, std::memory_order_relaxed);
        if (!here) late_units_.fetch_add(1, std::memory_order_relaxed);
        if (worker == 0 && !given_up_ && Clock::now() >= deadline) give_up_refinement(pieces);
        return here;
    }

    void release(size_t worker, uint64_t place) noexcept override {
        if (planes_.pieces.empty()) {
            pager_->publish(worker, announcements_.ordinal(place / extent_bytes_));
            return;
        }
        const size_t next = static_cast<size_t>(planes_.within(place, 1).data() - planes_.pieces.data());
        pager_->publish(worker, announcements_.ordinal(next == planes_.done.size() ? n_extents_ : planes_.done[next]));
    }

    void sit_out(size_t worker) noexcept override { pager_->publish(worker, pager::Pager::kSitsOut); }

    void probe_faults() noexcept override { pager_->probe_faults(); }

    uint64_t set_frame_bytes(uint64_t bytes) override {
        return pager_->set_budget(bytes / extent_bytes_) * extent_bytes_;
    }

    uint64_t stall_us() const noexcept override { return pager_->stall_us(); }
    uint64_t bytes_read() const noexcept override { return pager_->bytes_read(); }

    std::vector<MapCell> map_cells() const override {
        std::vector<MapCell> cells = cells_of(extent_bytes_);
        if (!planes_.pieces.empty()) place_on_planes(&cells);
        if (slots_ == nullptr) return cells;
        size_t group = n_extents_;  // those of groups follow, layer by layer
        for (MapCell& cell : cells) {
            if (cell.module != "experts") continue;
            cell.first_unit = std::exchange(group, group + n_experts_);
            cell.units = n_experts_;
        }
        return cells;
    }

    StoreView look() const override {
        const pager::PagerStats p = pager_->stats();
        StoreView view;
        view.units = unit_letters(pager_->look());
        view.bytes_read = p.bytes_read;
        view.read_us = p.busy_us;
        view.stall_us = p.stall_us;
        view.waits = p.waits;
        view.faults = p.faults;
        view.frame_bytes = p.budget_frames * extent_bytes_;
        return view;
    }

    StoreStats stats() const override {
        const pager::PagerStats p = pager_->stats();
        StoreStats s;
        s.mode = PagingMode::kUffd;
        s.plan = plan();
        s.weights_bytes = walk_bytes().weights;
        s.expert_bytes = expert_bytes();
        s.pass_bytes = map_.expert_bytes == 0 ? touched_bytes(false) + (config_.tied_head ? 0 : row_bytes()) : pass_bytes();
        s.resident_bytes = resident_bytes();
        s.must_read_bytes = must_read_bytes_;
        s.ring_bytes = p.ring_frames * extent_bytes_;
        s.frame_bytes = p.budget_frames * extent_bytes_;
        s.budget_changes = p.budget_changes;
        s.refined_units = refined_units_.load(std::memory_order_relaxed);
        s.late_units = late_units_.load(std::memory_order_relaxed);
        s.late_passes = late_passes_.load(std::memory_order_relaxed);
        s.extent_bytes = extent_bytes_;
        s.bytes_read = p.bytes_read;
        s.faults = p.faults;
        s.waits = p.waits;
        s.stall_us = p.stall_us;
        s.pager_cpu_us = p.cpu_us;
        s.extents_in_flight = p.extents_in_flight;
        s.read_retries = p.read_retries;
        s.buffered_rereads = p.buffered_rereads;
        s.copied_moves = p.copied_moves + p.hollow_frames + p.lost_frames;
        if (slots_ != nullptr) {
            s.experts.uses = p.groups.uses;
            s.experts.here = p.groups.here;
            s.experts.foreseen = p.groups.foreseen;
            s.experts.absent_bytes = p.groups.absent_bytes;
            s.experts.predictions = foresight_.made();
            s.experts.right_predictions = foresight_.right();
            s.experts.predictions_read = p.groups.hints_read;
            s.experts.busy_us = p.groups_busy_us;
            s.experts.slots = p.groups.slots;
            s.experts.slot_bytes = slots_->slot_bytes();
            s.experts.read_amplification = read_amplification_;
            s.experts.slot_waste = slot_waste_;
        }
        s.rungs = pager_->rungs();
        return s;
    }

  private:
    using Clock = std::chrono::steady_clock;
    enum class Touched : uint8_t { kNever, kByExperts, kAlways };

    // Of a native file: which Extents hold what the plan in force reads. Those that hold something besides experts are touched
    // by every pass, whatever the routers choose.
    void touch_plan() {
        std::fill(touched_.begin(), touched_.end(), Touched::kNever);
        for (const PlaneLayout::Piece& piece : planes_.pieces) {
            if (!piece.read_by(plan())) continue;
            for (const uint32_t e : planes_.extents_of(piece))
                touched_[e] = std::max(touched_[e], piece.experts ? Touched::kByExperts : Touched::kAlways);
        }
        runs_.clear();
        for (size_t e = 0; e < n_extents_; ++e)
            if (touched_[e] == Touched::kAlways) add_to_runs(e, &runs_);
        announcements_.set_runs(runs_);
        if (has_deadline()) find_base();
    }

    // What of the plan in force must have come whatever the deadline.
    void find_base() {
        base_ = sched::capped_plan(plan(), static_cast<int>(kBaseLevel));
        std::vector<bool> by_base(n_extents_);
        for (const PlaneLayout::Piece& piece : planes_.pieces)
            if (!piece.experts && piece.read_by(base_))
                for (const uint32_t e : planes_.extents_of(piece)) by_base[e] = true;
        base_runs_.clear();
        for (size_t e = 0; e < n_extents_; ++e)
            if (by_base[e]) add_to_runs(e, &base_runs_);
    }

    static void add_to_runs(size_t extent, std::vector<Announcements::Run>* runs) {
        if (runs->empty() || runs->back().first + runs->back().count != extent) runs->push_back({extent, 0});
        ++runs->back().count;
    }

    bool has_deadline() const { return time_.count() != 0; }

    // The leader, past the deadline, at these pieces: of what the walk has not come to, only what every level needs is read ahead,
    // and then the next pass.
    void give_up_refinement(std::span<const PlaneLayout::Piece> at) noexcept {
        given_up_ = true;
        size_t from = 0;
        for (const PlaneLayout::Piece& piece : at)
            for (const uint32_t e : planes_.extents_of(piece)) from = std::max<size_t>(from, e + size_t{1});
        pager_->forget(announcements_.ordinal(from));
        announcements_.announce_anew(from, base_runs_, [this](uint64_t ordinal, size_t first, size_t count) { pager_->plan(ordinal, first, count); });
    }

    pager::Layout cut_image() const {
        std::vector<pager::ImageRange> ranges;
        for (const PlacedRange& r : map_.ranges) ranges.push_back({r.place, r.file_offset, r.bytes});
        return pager::cut_layout(ranges, extent_bytes_);
    }

    void bind_experts_to(ExpertGroups&& experts) {
        slots_ = pager_->slots();
        n_experts_ = experts.n_experts;
        part_offset_ = std::move(experts.part_offset);
        wait_rank_.resize(n_experts_);
        is_foreseen_.resize(n_experts_);
        foresight_ = Foresight(config_.n_layers, n_experts_, n_experts_);
        uint64_t read = 0;
        for (const pager::Segment& s : experts.layout.slots.segments) read += s.bytes;
        if (slots_ != nullptr) {
            const auto bytes = static_cast<double>(experts.slice_bytes);
            const auto all = static_cast<double>(experts.layout.slots.n_extents() * experts.layout.slots.extent_bytes);
            read_amplification_ = static_cast<double>(read) / bytes;
            slot_waste_ = 1 - bytes / all;
        }
        for (size_t i = 0; i < map_.tensors.size(); ++i) {
            const ExpertGroups::Part& part = experts.parts[i];
            if (part.part == ExpertGroups::kMostParts) continue;
            bind_experts(map_.tensors[i].tensor->name, n_experts_, static_cast<uint32_t>(part.layer * n_experts_), part.part);
        }
    }

    // Of a native file: the Extents from the first to the last that hold something of a cell, which are all its own where one
    // plan may be in force; with several there are others between them.
    void place_on_planes(std::vector<MapCell>* cells) const {
        for (MapCell& cell : *cells) cell.units = 0;
        MapCell* cell = &cells->front();
        for (const PlaneLayout::Piece& piece : planes_.pieces) {
            const PlacedTensor& placed = map_.tensors[piece.tensor];
            const auto holds = [&placed](const MapCell& c) {
                return c.layer == placed.layer && (c.module == "experts") == placed.experts && (placed.experts || c.shard == placed.shard);
            };
            if (!holds(*cell)) cell = &*std::find_if(cells->begin(), cells->end(), holds);
            for (const uint32_t e : planes_.extents_of(piece)) {
                const size_t first = cell->units == 0 ? e : std::min<size_t>(cell->first_unit, e);
                const size_t end = std::max<size_t>(cell->units == 0 ? 0 : cell->first_unit + cell->units, e + size_t{1});
                cell->first_unit = first;
                cell->units = end - first;
            }
        }
    }

    // What was in use when a pass was given up.
    void release_experts() {
        for (; released_ < used_; ++released_) slots_->release(first_group_ + experts_[released_]);
    }

    void throw_if_failed() const {
        if (pager_->failed()) throw Error(pager_->failure());
    }

    void count_resident() {
        residency_changes_ = pager_->residency_changes();
        resident_bytes_ = resident_bytes();
    }

    uint64_t resident_bytes() const { return touched_bytes(true); }

    // Bytes of Extents that the plan in force touches, all or those that stay.
    uint64_t touched_bytes(bool pinned) const {
        uint64_t bytes = 0;
        for (size_t e = 0; e < n_extents_; ++e)
            if (touched_[e] != Touched::kNever && (!pinned || pager_->pinned(e))) bytes += extent_used_[e];
        return bytes;
    }

    size_t extent_bytes_ = 0;
    size_t frames_ = 0;
    size_t n_extents_ = 0;
    std::vector<uint64_t> extent_used_;
    PlaneLayout planes_;                    // of a native file; else empty
    std::vector<Touched> touched_;          // by passes at the plan in force
    std::vector<Announcements::Run> runs_;  // of those that every pass touches; room for the most
    std::unique_ptr<pager::Pager> pager_;
    pager::Mapping row_buffer_;
    size_t row_slot_ = 0;  // for a piece
    size_t rows_at_once_ = 0;
    Announcements announcements_;

    // Experts
    pager::GroupSlots* slots_ = nullptr;  // the pager's; nullptr where the model has none
    size_t n_experts_ = 0;
    std::vector<uint32_t> part_offset_;   // see ExpertGroups
    Foresight foresight_{0, 0, 0};
    std::vector<uint8_t> is_foreseen_;    // per expert of a layer
    std::vector<uint8_t> wait_rank_;      // per expert of a layer
    uint32_t first_group_ = 0;            // of the layer under way
    std::span<const uint32_t> experts_;   // of it: [released_, used_) are in use
    size_t used_ = 0;
    size_t released_ = 0;
    uint64_t absent_experts_before_ = 0;  // at the end of the last pass
    double read_amplification_ = 0;
    double slot_waste_ = 0;

    // Deadlines
    std::chrono::microseconds time_{0};             // of a pass; 0: none
    sched::Plan base_;                              // the plan in force without what may come late
    std::vector<Announcements::Run> base_runs_;     // of Extents that it reads
    bool given_up_ = false;                         // in this pass; the leader's
    Clock::duration lead_{0};                       // so much earlier, for the rest of the pass to end in time: as passes have shown
    std::atomic<uint64_t> refined_units_{0}, late_units_{0};
    uint64_t late_before_ = 0;                      // when the pass began
    std::atomic<uint64_t> late_passes_{0};

    RingLength ring_;
    Clock::time_point pass_begin_{};
    uint64_t stalled_before_ = 0;
    uint64_t must_read_bytes_ = 0;
    uint64_t residency_changes_ = 0;  // of the pager, when resident_bytes_ was counted
    uint64_t resident_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> open_paged_store(const GgufFile& file, const ModelConfig& config,
                                              const StoreOptions& options) {
    return std::make_unique<PagedStore>(file, config, options);
}

}  // namespace weir
