#include "pager/pager_loop.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "pager/check.h"
#include "pager/system.h"

namespace weir::pager {
namespace {

// Extents being read at once. Eight of 2 MiB fill a drive's queue (16 MiB in flight); twice that bridges the time until
// the pager has seen a completion and pushed the next read.
constexpr size_t kMaxReading = 16;
// A plan is one pass; the leader is at most one pass ahead.
constexpr size_t kMaxPlanItems = 16;
// A page of a frame can be held for a moment after its read completed (its bio is not yet released).
constexpr int kBusyRetryUs = 50;
constexpr int kMaxBusyEvictions = 100'000;

uint64_t now_ns() {
    struct timespec t;
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

void add(std::atomic<uint64_t>& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }

}  // namespace

PagerLoop::PagerLoop(const File& file, Layout layout, PagerOptions options, PagerShared* shared,
                     std::function<void()> kick)
    : file_(file),
      layout_(std::move(layout)),
      shared_(shared),
      on_unanswerable_(std::move(options.on_unanswerable)),
      uffd_(options.uffd) {
    const size_t n = layout_.n_extents();
    if (options.install == InstallRung::kMove && !uffd_.has_move())
        throw std::runtime_error("--install move: this kernel has no UFFDIO_MOVE (it came with Linux 6.8); use --install copy");
    copies_ = options.install == InstallRung::kCopy || !uffd_.has_move();
    residency_ = choose_residency(n, options.frames, options.workers, copies_, options.held_extents);

    const size_t pmd = pmd_page_size();
    const bool huge = layout_.extent_bytes % pmd == 0;
    const size_t n_frames = copies_ ? residency_.staging : residency_.n_pinned + residency_.ring;
    region_ = Mapping(n * layout_.extent_bytes, huge ? pmd : page_size(), huge, "Region");
    const int error = uffd_.register_range(region_.base(), region_.bytes());
    if (error != 0)
        throw std::runtime_error(std::string("registering the Region with userfaultfd: ") + std::strerror(-error));
    pool_ = std::make_unique<FramePool>(n_frames, layout_.extent_bytes, copies_ ? nullptr : &uffd_, std::move(kick));
    flights_ = std::make_unique<Flights>(
        file_, layout_, options.read_queue ? std::move(options.read_queue) : make_read_queue(options.reader),
        &shared_->counters);

    frame_of_.assign(n, kNoFrame);
    demanded_.assign(n, 0);
    faulted_.assign(n, 0);
    fault_since_ns_.assign(n, 0);
    free_frames_.reserve(n_frames);
    ring_cap_ = residency_.ring - residency_.staging;
    ring_.reserve(ring_cap_ + 1);
    plan_.reserve(kMaxPlanItems);
    demands_.reserve(n);
    retries_.reserve(n);
}

std::string PagerLoop::rungs() const {
    std::string text = std::string("uffd=") + uffd_.source_name() + " install=" + (copies_ ? "copy" : "move") +
                       " reader=" + flights_->reader_name() + " io=" + (file_.direct() ? "direct" : "buffered");
    if (!file_.direct()) text += " (" + file_.why_buffered() + ")";
    return text;
}

void PagerLoop::run() noexcept {
    ::pthread_setname_np(::pthread_self(), "weir-pager");
    const int error = flights_->start(uffd_.fd(), shared_->event_fd);
    if (error != 0) {
        fail("%s cannot start: %s", flights_->reader_name(), std::strerror(-error));
        shared_->started.store(error, std::memory_order_release);
        shared_->started.notify_all();
        return;
    }
    shared_->started.store(1, std::memory_order_release);
    shared_->started.notify_all();

    for (;;) {
        seen_mail_ = shared_->mail.load(std::memory_order_seq_cst);
        starved_ = false;
        take_messages();
        take_wants();
        const bool stopping = shared_->stop.load(std::memory_order_acquire);
        if (stopping && flights_->idle()) return;
        if (!stopping && !shared_->failed.load(std::memory_order_relaxed)) {
            if (pool_->error() != 0) fail("memory for the frames cannot be had: %s", std::strerror(pool_->error()));
            retry_installs();
            serve_demands();
            prefetch();
            flights_->pump();
            if (flights_->failed()) fail("%s", flights_->failure());
        }
        int timeout_us = retries_.empty() || stopping ? -1 : kBusyRetryUs;
        shared_->wake_at.store(wake_position(), std::memory_order_seq_cst);
        shared_->sleeping.store(true, std::memory_order_seq_cst);
        if (shared_->mail.load(std::memory_order_seq_cst) != seen_mail_ ||
            least_position() >= shared_->wake_at.load(std::memory_order_relaxed)) {
            timeout_us = 0;
        }
        const size_t reading = reading_;
        const uint64_t since = now_ns();
        const Wakeup w = flights_->wait(timeout_us, stopping);
        shared_->sleeping.store(false, std::memory_order_seq_cst);
        if (reading > 0) {
            const uint64_t waited = now_ns() - since;
            add(shared_->counters.busy_ns, waited);
            add(shared_->counters.extent_ns, waited * reading);
        }
        if (w.error != 0) {
            fail("waiting for reads: %s", std::strerror(-w.error));
            on_unanswerable_(shared_->failure_text);  // nothing can be served without the queue
        }
        take_landings();
        if (w.fault) take_faults();
    }
}

// ---- inputs of a turn ----

void PagerLoop::take_messages() noexcept {
    Message m;
    while (flights_->takes_small() && shared_->messages.pop(&m)) {
        if (m.kind == Message::kSmallRead) {
            flights_->begin_small(m);
        } else if (plan_.size() == kMaxPlanItems) {
            add(shared_->counters.lost_plans, 1);
        } else {
            plan_.push_back({m.at, m.first, m.count});
        }
    }
}

void PagerLoop::take_wants() noexcept {
    for (WorkerSlot& worker : shared_->workers) {
        const uint32_t wanted = worker.wanted.exchange(0, std::memory_order_acq_rel);
        if (wanted != 0) demand(wanted - 1, false);
    }
}

void PagerLoop::take_faults() noexcept {
    uintptr_t address;
    const auto begin = reinterpret_cast<uintptr_t>(region_.base());
    while (uffd_.next_fault(&address)) {
        add(shared_->counters.faults, 1);
        CHECK(!pool_->contains(address));  // a frame that has moved out was touched: our own fault
        CHECK(address - begin < layout_.n_extents() * layout_.extent_bytes);
        demand(static_cast<uint32_t>((address - begin) / layout_.extent_bytes), true);
    }
}

void PagerLoop::take_landings() noexcept {
    if (flights_->failed()) fail("%s", flights_->failure());
    for (const Flights::Landing& landing : flights_->landings()) {
        if (shared_->failed.load(std::memory_order_relaxed)) return;
        if (landing.kind == Flights::Landing::kExtent) {
            install(landing.extent);
        } else {
            shared_->small_done.fetch_add(1, std::memory_order_release);  // acquire in read_small()
            shared_->small_done.notify_all();
        }
    }
}

void PagerLoop::demand(uint32_t extent, bool faulted) noexcept {
    const ExtentState s = state(extent);
    if (s == kPresent) {  // it came in between
        if (faulted) uffd_.wake(slot(extent), layout_.extent_bytes);
        return;
    }
    if (faulted && faulted_[extent] == 0) {
        faulted_[extent] = 1;
        fault_since_ns_[extent] = now_ns();
    }
    if (shared_->failed.load(std::memory_order_relaxed)) {
        if (faulted) on_unanswerable_(shared_->failure_text);
        return;
    }
    if (s == kReading) {
        flights_->hurry(extent);
        return;
    }
    if (demanded_[extent] != 0) return;
    demanded_[extent] = 1;
    demands_.push_back(extent);
}

// ---- decisions ----

void PagerLoop::serve_demands() noexcept {
    size_t kept = 0;
    for (const uint32_t extent : demands_) {
        if (state(extent) == kAbsent && !begin_read(extent, next_use(extent), true)) {
            starved_ = true;
            demands_[kept++] = extent;
        } else {
            demanded_[extent] = 0;
        }
    }
    demands_.resize(kept);
}

// Walks the plan from the cursor and begins reads until the ring, the frames or the read limit stop it.
void PagerLoop::prefetch() noexcept {
    const uint64_t least = least_position();
    while (!plan_.empty() && plan_.front().end() <= least) plan_.erase(plan_.begin());
    cursor_ = std::max(cursor_, least);
    for (const PlanItem& item : plan_) {
        if (item.end() <= cursor_) continue;
        cursor_ = std::max(cursor_, item.ordinal);
        for (; cursor_ < item.end(); ++cursor_) {
            const auto extent = static_cast<uint32_t>(item.first + (cursor_ - item.ordinal));
            if (state(extent) == kAbsent) {
                if (reading_ >= kMaxReading) return;
                if (!begin_read(extent, cursor_, false)) {
                    starved_ = true;
                    return;
                }
            } else if (!residency_.pinned[extent]) {  // still here from the pass before, or demanded: it is of use again
                for (Resident& r : ring_)
                    if (r.extent == extent) r.ordinal = std::max(r.ordinal, cursor_);
            }
        }
    }
}

bool PagerLoop::begin_read(uint32_t extent, uint64_t ordinal, bool demanded) noexcept {
    if (!residency_.pinned[extent] && !make_room(ordinal, demanded)) return false;
    uint32_t frame;
    if (!free_frames_.empty()) {
        frame = free_frames_.back();
        free_frames_.pop_back();
    } else if (next_fresh_ < pool_->populated()) {
        frame = static_cast<uint32_t>(next_fresh_++);
    } else {
        return false;  // still being populated, or (by copy) all staging frames hold reads
    }
    frame_of_[extent] = frame;
    if (!residency_.pinned[extent]) ring_.push_back({extent, ordinal});
    ++reading_;
    ++frames_in_use_;
    if (frames_in_use_ > shared_->counters.peak_frames.load(std::memory_order_relaxed))
        shared_->counters.peak_frames.store(frames_in_use_, std::memory_order_relaxed);
    set_state(extent, kReading);
    flights_->begin(extent, pool_->frame(frame), demanded);
    return true;
}

// A place in the ring for a streamed Extent. Prefetch leaves one for demands; a demand may take the place of what would
// be used last.
bool PagerLoop::make_room(uint64_t ordinal, bool demanded) noexcept {
    const size_t limit = demanded || ring_cap_ < 2 ? ring_cap_ : ring_cap_ - 1;
    while (ring_.size() >= limit) {
        if (evict_consumed()) continue;
        if (!demanded || !drop_farthest(ordinal)) return false;
    }
    return true;
}

bool PagerLoop::evict_consumed() noexcept {
    const uint64_t least = least_position();
    size_t oldest = ring_.size();
    for (size_t i = 0; i < ring_.size(); ++i) {
        if (ring_[i].ordinal >= least || state(ring_[i].extent) != kPresent) continue;
        if (oldest == ring_.size() || ring_[i].ordinal < ring_[oldest].ordinal) oldest = i;
    }
    if (oldest == ring_.size()) return false;
    const uint32_t extent = ring_[oldest].extent;
    ring_.erase(ring_.begin() + static_cast<ptrdiff_t>(oldest));
    evict(extent);
    return true;
}

// Gives up the present Extent whose use is farthest away, no nearer than `than`. Extents that nobody planned all count as
// used now: among equals the one that came first goes, so that workers without a plan always get on.
bool PagerLoop::drop_farthest(uint64_t than) noexcept {
    size_t farthest = ring_.size();
    for (size_t i = 0; i < ring_.size(); ++i) {
        if (ring_[i].ordinal < than || state(ring_[i].extent) != kPresent) continue;
        if (farthest == ring_.size() || ring_[i].ordinal > ring_[farthest].ordinal) farthest = i;
    }
    if (farthest == ring_.size()) return false;
    const Resident dropped = ring_[farthest];
    ring_.erase(ring_.begin() + static_cast<ptrdiff_t>(farthest));
    evict(dropped.extent);
    cursor_ = std::min(cursor_, dropped.ordinal);
    add(shared_->counters.dropped, 1);
    return true;
}

// When the plan says the Extent is touched next; without a plan for it, now.
uint64_t PagerLoop::next_use(uint32_t extent) const noexcept {
    const uint64_t least = least_position();
    for (const PlanItem& item : plan_) {
        if (extent < item.first || extent - item.first >= item.count) continue;
        const uint64_t ordinal = item.ordinal + (extent - item.first);
        if (ordinal >= least) return ordinal;
    }
    return least;
}

uint64_t PagerLoop::least_position() const noexcept {
    uint64_t least = UINT64_MAX;
    for (const WorkerSlot& worker : shared_->workers)
        least = std::min(least, worker.position.load(std::memory_order_seq_cst));
    return least;
}

// The Position at which the next streamed Extent is behind everybody; never where nobody waits for a frame.
uint64_t PagerLoop::wake_position() const noexcept {
    if (!starved_) return UINT64_MAX;
    const uint64_t least = least_position();
    uint64_t at = UINT64_MAX;
    for (const Resident& r : ring_)
        if (r.ordinal >= least && state(r.extent) == kPresent) at = std::min(at, r.ordinal + 1);
    return at;
}

// ---- what becomes of an Extent ----

void PagerLoop::install(uint32_t extent) noexcept {
    const uint32_t frame = frame_of_[extent];
    std::byte* const from = pool_->frame(frame);
    const Outcome outcome = copies_ ? uffd_.copy(slot(extent), from, layout_.extent_bytes)
                                    : uffd_.move(slot(extent), from, layout_.extent_bytes);
    if (outcome == Outcome::kBusy) {
        add(shared_->counters.busy_retries, 1);
        retries_.push_back(extent);
        return;
    }
    --reading_;
    if (outcome != Outcome::kDone) {
        fail("installing Extent %u by %s failed: %s", extent, copies_ ? "copy" : "move",
             outcome == Outcome::kGone ? "the process is ending" : std::strerror(uffd_.last_error()));
        return;
    }
    if (copies_) {
        free_frames_.push_back(frame);
        frame_of_[extent] = kNoFrame;
    }
    if (faulted_[extent] != 0) {
        faulted_[extent] = 0;
        add(shared_->counters.fault_ns, now_ns() - fault_since_ns_[extent]);
    }
    add(shared_->counters.installs, 1);
    set_state(extent, kPresent);
}

void PagerLoop::retry_installs() noexcept {
    const size_t n = retries_.size();
    for (size_t i = 0; i < n; ++i) install(retries_[i]);  // appends those that are still held
    retries_.erase(retries_.begin(), retries_.begin() + static_cast<ptrdiff_t>(n));
}

void PagerLoop::evict(uint32_t extent) noexcept {
    // Absent before the pages go: a worker that looks now asks for it instead of walking into a fault.
    set_state(extent, kAbsent);
    --frames_in_use_;
    add(shared_->counters.evictions, 1);
    if (copies_) {
        if (::madvise(slot(extent), layout_.extent_bytes, MADV_DONTNEED) != 0)
            fail("evicting Extent %u: madvise: %s", extent, std::strerror(errno));
        return;
    }
    const uint32_t frame = frame_of_[extent];
    Outcome outcome = Outcome::kBusy;
    for (int i = 0; outcome == Outcome::kBusy && i < kMaxBusyEvictions; ++i) {
        if (i > 0) add(shared_->counters.busy_retries, 1);
        outcome = uffd_.move(pool_->frame(frame), slot(extent), layout_.extent_bytes);
    }
    if (outcome != Outcome::kDone) {
        fail("evicting Extent %u by move failed: %s", extent,
             outcome == Outcome::kFatal ? std::strerror(uffd_.last_error()) : "its pages stay in use");
        return;
    }
    frame_of_[extent] = kNoFrame;
    free_frames_.push_back(frame);
}

void PagerLoop::set_state(uint32_t extent, ExtentState state) noexcept {
    std::atomic<uint32_t>& word = shared_->states[extent];
    word.store(next_word(word.load(std::memory_order_relaxed), state), std::memory_order_release);  // acquire at gates
    word.notify_all();
}

void PagerLoop::fail(const char* format, ...) noexcept {
    if (shared_->failed.load(std::memory_order_relaxed)) return;  // the first reason is the one that counts
    va_list args;
    va_start(args, format);
    (void)std::vsnprintf(shared_->failure_text, sizeof shared_->failure_text, format, args);
    va_end(args);
    shared_->failed.store(true, std::memory_order_release);
    bool sleeper = false;
    for (uint32_t e = 0; e < layout_.n_extents(); ++e) {
        if (state(e) != kPresent) set_state(e, kFailed);
        sleeper |= faulted_[e] != 0;
    }
    shared_->small_done.fetch_or(kSmallReadsFailed, std::memory_order_release);
    shared_->small_done.notify_all();
    if (sleeper) on_unanswerable_(shared_->failure_text);
}

}  // namespace weir::pager
