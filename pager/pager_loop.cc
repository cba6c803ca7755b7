#include "pager/pager_loop.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "pager/check.h"
#include "pager/system.h"

namespace weir::pager {
namespace {

// Extents being read at once. Eight of 2 MiB fill a drive's queue (16 MiB in flight); twice that bridges the time until
// the pager has seen a completion and pushed the next read.
constexpr size_t kMaxReading = 16;
// A pass is one item, and the leader is at most one pass ahead. With experts it is an item for each stretch between them,
// and three for each expert that a router chose in the layers that are not behind: 200 for 50 layers and 16 experts.
constexpr size_t kMaxPlanItems = 4 << 10;
// The kernel refuses to wake only for a bad range; an error that passes is somebody's filter on system calls.
constexpr int kMaxWakes = 3;
// Frames in a row that may lose pages between read and install. Nothing that we know of takes them; it has been seen. Where
// moving does it, the frames that the installer gave up moving with are lost, and those that were held at that time.
constexpr unsigned kMaxLosses = Installer::kMaxRefusals + kMaxReading;
// Frames that may be wanted beyond one per Extent: staging, where install copies.
constexpr size_t kSpareFrames = 16;

Layout with_groups(const Layout& extents, const Layout& groups) {
    Layout all = extents;
    const auto before = static_cast<uint32_t>(all.segments.size());
    all.segments.insert(all.segments.end(), groups.segments.begin(), groups.segments.end());
    for (size_t g = 1; g <= groups.n_extents(); ++g) all.first_segment.push_back(before + groups.first_segment[g]);
    return all;
}

void add(std::atomic<uint64_t>& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }

}  // namespace

PagerLoop::PagerLoop(FileParts files, Layout layout, PagerOptions options, PagerShared* shared,
                     std::function<void()> kick)
    : files_(files),
      layout_(std::move(layout)),
      reads_(with_groups(layout_, options.groups.slots)),
      holding_(options.holding),
      shared_(shared),
      on_unanswerable_(std::move(options.on_unanswerable)),
      uffd_(options.uffd, std::move(options.ioctl_call)) {
    const size_t n = layout_.n_extents();
    CHECK(layout_.slots.empty() || layout_.slots.size() == n);
    extent_in_.resize(layout_.slots.size(), UINT32_MAX);
    for (uint32_t e = 0; e < extent_in_.size(); ++e) {
        CHECK(layout_.slots[e] < n && extent_in_[layout_.slots[e]] == UINT32_MAX);
        extent_in_[layout_.slots[e]] = e;
    }
    CHECK(layout_.closes.empty() || layout_.closes.size() == n);
    for (size_t e = 0; e < n; ++e)
        longest_use_ = std::max<uint64_t>(longest_use_, layout_.closes_at(e) - std::min(layout_.closes_at(e), e));
    if (options.install == InstallRung::kMove && !uffd_.has_move())
        throw std::runtime_error("--install move: this kernel has no UFFDIO_MOVE (it came with Linux 6.8); use --install copy");
    const bool copies = options.install == InstallRung::kCopy || !uffd_.has_move();
    CHECK(options.worth.empty() || options.worth.size() == n);
    residency_ = choose_residency(n, options.frames, {options.workers, copies, options.holding, SIZE_MAX, options.worth});

    const size_t pmd = pmd_page_size();
    const bool huge = layout_.extent_bytes % pmd == 0;
    region_ = Mapping(n * layout_.extent_bytes, huge ? pmd : page_size(), huge, "Region");
    const int error = uffd_.register_range(region_.base(), region_.bytes());
    if (error != 0)
        throw std::runtime_error(std::string("registering the Region with userfaultfd: ") + std::strerror(-error));
    probe_page_ = Mapping(page_size(), page_size(), false, "probe's page");
    probe_bytes_.resize(probe_page_.bytes());
    const int probe_error = uffd_.register_range(probe_page_.base(), probe_page_.bytes());
    if (probe_error != 0)
        throw std::runtime_error(std::string("registering a page with userfaultfd: ") + std::strerror(-probe_error));
    installer_ = std::make_unique<Installer>(&uffd_, layout_.extent_bytes, copies, options.patience.no_memory_ms,
                                             &shared_->counters);
    pool_ = std::make_unique<FramePool>(n + kSpareFrames, pool_frames(), layout_.extent_bytes, copies ? nullptr : &uffd_,
                                        std::move(kick));
    flights_ = std::make_unique<Flights>(
        files_, reads_, options.read_queue ? std::move(options.read_queue) : make_read_queue(options.reader),
        options.patience.no_memory_ms, &shared_->counters);

    frame_of_.assign(n, kNoFrame);
    demanded_.assign(n, 0);
    faulted_.assign(n, 0);
    fault_since_ns_.assign(n, 0);
    free_frames_.reserve(pool_->room());
    ring_cap_ = residency_.ring - residency_.staging;
    ring_.reserve(n + 1);
    plan_.reserve(kMaxPlanItems);
    demands_.reserve(n);
    retries_.reserve(2 * n);
}

std::string PagerLoop::rungs() const {
    std::string text = std::string("uffd=") + uffd_.source_name() + " install=" + (installer_->copies() ? "copy" : "move") +
                       " reader=" + flights_->reader_name() + " io=" + (files_.direct() ? "direct" : "buffered");
    if (!files_.direct()) text += " (" + files_.why_buffered() + ")";
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
    shared_->thread_id.store(::gettid(), std::memory_order_relaxed);
    shared_->started.store(1, std::memory_order_release);
    shared_->started.notify_all();

    for (;;) {
        shared_->turns.fetch_add(1, std::memory_order_relaxed);
        seen_mail_ = shared_->mail.load(std::memory_order_seq_cst);
        starved_ = false;
        uint32_t fresh;
        while (pool_->take(&fresh)) {
            free_frames_.push_back(fresh);
            ++frames_;
        }
        take_budget();
        if (probe_waits_) answer_probe();
        take_messages();
        take_wants();
        const bool stopping = shared_->stop.load(std::memory_order_acquire);
        if (stopping && flights_->idle()) {
            shared_->thread_id.store(0, std::memory_order_release);  // acquire by the watchdog
            return;
        }
        if (!stopping && !shared_->failed.load(std::memory_order_relaxed)) {
            if (pool_->error() != 0 && (copies() || pool_->backed() < least_frames(shared_->workers.size(), holding_)))
                fail("memory for the frames cannot be had: %s", std::strerror(pool_->error()));
            retry_installs();
            shed();
            serve_demands();
            prefetch();
            flights_->pump();
            if (flights_->failed()) fail("%s", flights_->failure());
        }
        int timeout_us = stopping ? -1 : next_timeout();
        shared_->wake_at.store(wake_position(), std::memory_order_seq_cst);
        shared_->sleeping.store(true, std::memory_order_seq_cst);
        if (shared_->mail.load(std::memory_order_seq_cst) != seen_mail_ ||
            least_position() >= shared_->wake_at.load(std::memory_order_relaxed)) {
            timeout_us = 0;
        }
        const size_t reading = reading_ + groups_reading_;
        const bool groups = groups_reading_ > 0;
        const uint64_t since = monotonic_ns();
        shared_->reads_under_way.store(flights_->under_way(), std::memory_order_relaxed);
        const Wakeup w = flights_->wait(timeout_us, stopping);
        shared_->sleeping.store(false, std::memory_order_seq_cst);
        if (reading > 0) {
            const uint64_t waited = monotonic_ns() - since;
            add(shared_->counters.busy_ns, waited);
            add(shared_->counters.extent_ns, waited * reading);
            if (groups) add(shared_->counters.group_ns, waited);
        }
        if (w.error != 0) {
            fail("waiting for reads: %s", std::strerror(-w.error));
            on_unanswerable_(shared_->failure_text);  // nothing can be served without the queue
        }
        take_landings();
        if (w.fault) take_faults();
        if (uffd_.lost() || uffd_.restored() != restored_) look_after_uffd();
    }
}

// ---- inputs of a turn ----

void PagerLoop::take_messages() noexcept {
    Message m;
    while (flights_->takes_small() && shared_->messages.pop(&m)) {
        if (m.kind == Message::kSmallRead) {
            flights_->begin_small(m);
        } else if (m.kind == Message::kGroupRead) {
            flights_->begin(static_cast<uint32_t>(layout_.n_extents()) + m.first, m.into, false);
            ++groups_reading_;
        } else if (m.kind == Message::kForget) {
            forget(m.at);
        } else if (plan_.size() == kMaxPlanItems) {
            add(shared_->counters.lost_plans, 1);
        } else {
            // Mostly the last. What is announced late (experts, when their router has chosen) takes its place in the order,
            // and reads ahead begin there again.
            const auto place = std::upper_bound(plan_.begin(), plan_.end(), m.at,
                                                [](uint64_t at, const PlanItem& item) { return at < item.ordinal; });
            plan_.insert(place, {m.at, m.first, m.count});
            cursor_ = std::min(cursor_, m.at);
        }
    }
}

// What was read ahead already stays until it is behind.
void PagerLoop::forget(uint64_t from) noexcept {
    while (!plan_.empty() && plan_.back().ordinal >= from) plan_.pop_back();
    if (!plan_.empty() && plan_.back().end() > from) plan_.back().count = static_cast<uint32_t>(from - plan_.back().ordinal);
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
        if (address - reinterpret_cast<uintptr_t>(probe_page_.base()) < probe_page_.bytes()) {
            probe_waits_ = true;  // answered by the next turn, as all faults are
            continue;
        }
        add(shared_->counters.faults, 1);
        CHECK(!pool_->contains(address));  // a frame that has moved out was touched: our own fault
        CHECK(address - begin < layout_.n_extents() * layout_.extent_bytes);
        demand(extent_in((address - begin) / layout_.extent_bytes), true);
    }
}

// Where it cannot be answered now it is tried again each turn: whoever waits has the watchdog ping the loop.
void PagerLoop::answer_probe() noexcept {
    const Outcome outcome = uffd_.copy(probe_page_.base(), probe_bytes_.data(), probe_bytes_.size());
    if (outcome == Outcome::kExists) (void)uffd_.wake(probe_page_.base(), probe_page_.bytes());
    probe_waits_ = outcome != Outcome::kDone && outcome != Outcome::kExists;
}

void PagerLoop::take_landings() noexcept {
    if (flights_->failed()) fail("%s", flights_->failure());
    for (const Flights::Landing& landing : flights_->landings()) {
        if (shared_->failed.load(std::memory_order_relaxed)) return;
        if (landing.kind == Flights::Landing::kExtent && landing.extent < layout_.n_extents()) {
            install({landing.extent});
        } else if (landing.kind == Flights::Landing::kExtent) {  // a group, which lies where it was read to
            --groups_reading_;
            set_state(landing.extent, kPresent);
            shared_->tell_group_news();
        } else {
            shared_->small_done.fetch_add(1, std::memory_order_release);  // acquire in read_small()
            shared_->small_done.notify_all();
        }
    }
}

// Somebody closed a descriptor of ours. With the second one all is well again; without, absent pages read as zeros.
void PagerLoop::look_after_uffd() noexcept {
    if (uffd_.lost()) {
        fail("the userfaultfd was closed by another part of the process");
        on_unanswerable_(shared_->failure_text);
    }
    restored_ = uffd_.restored();
    shared_->counters.restored.store(restored_, std::memory_order_relaxed);
    flights_->watch(uffd_.fd());
}

void PagerLoop::demand(uint32_t extent, bool faulted) noexcept {
    const ExtentState s = state(extent);
    if (s == kPresent) {  // it came in between
        if (faulted) wake(extent);
        return;
    }
    if (faulted && faulted_[extent] == 0) {
        faulted_[extent] = 1;
        fault_since_ns_[extent] = monotonic_ns();
        shared_->faults_open.fetch_add(1, std::memory_order_relaxed);
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

void PagerLoop::wake(uint32_t extent) noexcept {
    int error = 0;
    for (int i = 0; i < kMaxWakes; ++i) {
        error = -uffd_.wake(slot(extent), layout_.extent_bytes);
        if (error == 0) return;
    }
    fail("waking who waits for Extent %u failed: %s", extent, std::strerror(error));
    on_unanswerable_(shared_->failure_text);
}

// ---- decisions ----

void PagerLoop::serve_demands() noexcept {
    size_t kept = 0;
    for (const uint32_t extent : demands_) {
        const uint64_t now = least_position();
        if (state(extent) == kAbsent && !begin_read(extent, next_use(extent).value_or(Use{false, now, now}), true)) {
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
    while (!plan_.empty() && plan_.front().end() + longest_use_ <= least) plan_.erase(plan_.begin());
    cursor_ = std::max(cursor_, least);
    for (const PlanItem& item : plan_) {
        if (item.end() <= cursor_) continue;
        cursor_ = std::max(cursor_, item.ordinal);
        for (; cursor_ < item.end(); ++cursor_) {
            const auto extent = static_cast<uint32_t>(item.first + (cursor_ - item.ordinal));
            const Use use = use_at(extent, cursor_);
            if (use.last < least) continue;  // a demand was served before, and is over
            if (state(extent) == kAbsent) {
                if (reading_ >= kMaxReading) return;
                if (!begin_read(extent, use, false)) {
                    starved_ = true;
                    return;
                }
            } else if (!residency_.pinned[extent]) {  // still here from the pass before, or demanded: it is of use again
                for (Resident& r : ring_)
                    if (r.extent == extent && (!r.use.planned || r.use.ordinal < cursor_)) r.use = use;
            }
        }
    }
}

bool PagerLoop::begin_read(uint32_t extent, const Use& use, bool demanded) noexcept {
    if (!residency_.pinned[extent] && !make_room(use, demanded)) return false;
    // After the budget shrank the ring may still hold what a pinned Extent's frame was to come from.
    if (free_frames_.empty() && demanded && ring_.size() > ring_cap_) (void)drop_farthest(use.planned ? use.ordinal : 0);
    if (free_frames_.empty()) return false;  // still being populated, or (by copy) all staging frames hold reads
    const uint32_t frame = free_frames_.back();
    free_frames_.pop_back();
    frame_of_[extent] = frame;
    if (!residency_.pinned[extent]) ring_.push_back({extent, use});
    ++reading_;
    shared_->counters.frames_in_use.store(++frames_in_use_, std::memory_order_relaxed);
    if (frames_in_use_ > shared_->counters.peak_frames.load(std::memory_order_relaxed))
        shared_->counters.peak_frames.store(frames_in_use_, std::memory_order_relaxed);
    set_state(extent, kReading);
    flights_->begin(extent, pool_->frame(frame), demanded);
    return true;
}

// A place in the ring for a streamed Extent. Prefetch leaves one for demands; a demand may take the place of what would
// be used last.
//
// Nobody waits for ever. Let the worker whose Position is the least wait for an Extent of the step that it is at. What is in
// the ring is there or is being read, and then comes. If all of it is there, and none is behind, planned for later or not
// planned at all, the step or one after it uses it, and it was begun with by now: that is what the walk holds at one time,
// less the one that is waited for, and the ring has place for more (least_frames()). So one of it goes, and that worker
// gets on; the others, once they are the last, as well. What nobody planned may take any place.
bool PagerLoop::make_room(const Use& use, bool demanded) noexcept {
    const size_t limit = demanded || ring_cap_ < 2 ? ring_cap_ : ring_cap_ - 1;
    while (ring_.size() >= limit) {
        if (evict_consumed()) continue;
        if (!demanded || !drop_farthest(use.planned ? use.ordinal : 0)) return false;
    }
    return true;
}

bool PagerLoop::evict_consumed() noexcept {
    const uint64_t least = least_position();
    size_t oldest = ring_.size();
    for (size_t i = 0; i < ring_.size(); ++i) {
        if (ring_[i].use.last >= least || state(ring_[i].extent) != kPresent) continue;
        if (oldest == ring_.size() || ring_[i].use.last < ring_[oldest].use.last) oldest = i;
    }
    if (oldest == ring_.size()) return false;
    const uint32_t extent = ring_[oldest].extent;
    ring_.erase(ring_.begin() + static_cast<ptrdiff_t>(oldest));
    evict(extent);
    return true;
}

// Gives up the present Extent whose use is farthest away, no nearer than `than`. Extents that nobody planned all count as
// the last that is in use: among equals the one that came first goes, so that workers without a plan always get on.
bool PagerLoop::drop_farthest(uint64_t than) noexcept {
    const uint64_t unplanned = beyond_use() - 1;
    const auto begins = [unplanned](const Resident& r) { return r.use.planned ? r.use.ordinal : unplanned; };
    size_t farthest = ring_.size();
    for (size_t i = 0; i < ring_.size(); ++i) {
        if (begins(ring_[i]) < than || state(ring_[i].extent) != kPresent) continue;
        if (farthest == ring_.size() || begins(ring_[i]) > begins(ring_[farthest])) farthest = i;
    }
    if (farthest == ring_.size()) return false;
    const Resident dropped = ring_[farthest];
    ring_.erase(ring_.begin() + static_cast<ptrdiff_t>(farthest));
    evict(dropped.extent);
    if (dropped.use.planned) cursor_ = std::min(cursor_, dropped.use.ordinal);
    add(shared_->counters.dropped, 1);
    return true;
}

// The first use by the plan that is not over.
std::optional<PagerLoop::Use> PagerLoop::next_use(uint32_t extent) const noexcept {
    const uint64_t least = least_position();
    for (const PlanItem& item : plan_) {
        if (extent < item.first || extent - item.first >= item.count) continue;
        const Use use = use_at(extent, item.ordinal + (extent - item.first));
        if (use.last >= least) return use;
    }
    return std::nullopt;
}

uint64_t PagerLoop::least_position() const noexcept {
    uint64_t least = UINT64_MAX;
    for (const WorkerSlot& worker : shared_->workers)
        least = std::min(least, worker.position.load(std::memory_order_seq_cst));
    return least;
}

uint64_t PagerLoop::greatest_position() const noexcept {
    uint64_t greatest = 0;
    for (const WorkerSlot& worker : shared_->workers) {
        const uint64_t position = worker.position.load(std::memory_order_seq_cst);
        if (position != Pager::kSitsOut) greatest = std::max(greatest, position);
    }
    return greatest;
}

// The Position at which the next streamed Extent is behind everybody; never where nobody waits for a frame.
uint64_t PagerLoop::wake_position() const noexcept {
    if (!starved_) return UINT64_MAX;
    const uint64_t least = least_position();
    uint64_t at = UINT64_MAX;
    for (const Resident& r : ring_)
        if (r.use.last >= least && state(r.extent) == kPresent) at = std::min(at, r.use.last + 1);
    return at;
}

// ---- what becomes of an Extent ----

void PagerLoop::install(Installer::Job job) noexcept {
    const uint32_t extent = job.extent;
    const uint32_t frame = frame_of_[extent];
    const Installer::Progress progress = installer_->install(&job, slot(extent), pool_->frame(frame));
    if (progress == Installer::Progress::kLater) {
        retries_.push_back(job);
        return;
    }
    --reading_;
    if (progress == Installer::Progress::kLost && ++losses_ <= kMaxLosses) {
        read_again(extent);
        return;
    }
    if (progress != Installer::Progress::kDone) {
        fail("installing Extent %u: %s failed: %s", extent, installer_->failed_step(), installer_->failed_reason());
        return;
    }
    if (installer_->copies()) {
        free_frames_.push_back(frame);
        frame_of_[extent] = kNoFrame;
    }
    if (faulted_[extent] != 0) {
        faulted_[extent] = 0;
        shared_->faults_open.fetch_sub(1, std::memory_order_relaxed);
        add(shared_->counters.fault_ns, monotonic_ns() - fault_since_ns_[extent]);
    }
    losses_ = 0;
    add(shared_->counters.installs, 1);
    set_state(extent, kPresent);
}

// Its frame lacks pages: the pool populates that one anew, and another one takes the Extent.
void PagerLoop::read_again(uint32_t extent) noexcept {
    add(shared_->counters.lost_frames, 1);
    std::erase_if(ring_, [extent](const Resident& r) { return r.extent == extent; });
    shared_->counters.frames_in_use.store(--frames_in_use_, std::memory_order_relaxed);
    pool_->give(frame_of_[extent]);
    --frames_;
    frame_of_[extent] = kNoFrame;
    set_state(extent, kAbsent);
    demand(extent, false);  // who sleeps in a fault on it sleeps on
}

void PagerLoop::retry_installs() noexcept {
    const size_t n = retries_.size();
    if (n == 0) return;
    const uint64_t now = monotonic_ns();
    for (size_t i = 0; i < n; ++i) {
        if (retries_[i].due_ns > now)
            retries_.push_back(retries_[i]);
        else
            install(retries_[i]);  // appends it where it has to wait again
    }
    retries_.erase(retries_.begin(), retries_.begin() + static_cast<ptrdiff_t>(n));
}

// Until the next install is to be tried again.
int PagerLoop::next_timeout() const noexcept {
    uint64_t due = UINT64_MAX;
    for (const Installer::Job& job : retries_) due = std::min(due, job.due_ns);
    if (due == UINT64_MAX) return -1;
    const uint64_t now = monotonic_ns();
    return due <= now ? 0 : static_cast<int>((due - now) / 1000 + 1);
}

void PagerLoop::evict(uint32_t extent) noexcept {
    // Absent before the pages go: a worker that looks now asks for it instead of walking into a fault.
    set_state(extent, kAbsent);
    shared_->counters.frames_in_use.store(--frames_in_use_, std::memory_order_relaxed);
    add(shared_->counters.evictions, 1);
    const uint32_t frame = frame_of_[extent];
    const auto outcome = installer_->evict(slot(extent), frame == kNoFrame ? nullptr : pool_->frame(frame));
    if (outcome == Installer::Eviction::kFailed) {
        fail("evicting Extent %u: %s failed: %s", extent, installer_->failed_step(), installer_->failed_reason());
        return;
    }
    if (frame == kNoFrame) return;
    frame_of_[extent] = kNoFrame;
    if (outcome == Installer::Eviction::kKept) {
        free_frames_.push_back(frame);
    } else {
        pool_->give(frame);  // which has it populated anew
        --frames_;
    }
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
    shared_->failed.store(true, std::memory_order_seq_cst);
    bool sleeper = false;
    for (uint32_t e = 0; e < reads_.n_extents(); ++e) {
        // in one order with a group that begins to be read, see GroupSlots::begin_read()
        if (state_of(shared_->states[e].load(std::memory_order_seq_cst)) != kPresent) set_state(e, kFailed);
        sleeper |= e < layout_.n_extents() && faulted_[e] != 0;
    }
    shared_->tell_group_news();
    shared_->small_done.fetch_or(kSmallReadsFailed, std::memory_order_release);
    shared_->small_done.notify_all();
    if (sleeper) on_unanswerable_(shared_->failure_text);
}

}  // namespace weir::pager
