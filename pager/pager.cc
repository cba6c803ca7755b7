#include "pager/pager.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "pager/check.h"
#include "pager/pager_loop.h"
#include "pager/pager_shared.h"
#include "pager/watchdog.h"

namespace weir::pager {
namespace {

// The pager's threads take no signals that are meant for the program; those that name a bug of the thread itself stay.
class BlockSignals {
  public:
    BlockSignals() {
        sigset_t all;
        ::sigfillset(&all);
        for (const int s : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) ::sigdelset(&all, s);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

uint64_t thread_cpu_us(std::jthread& thread) {
    clockid_t clock;
    struct timespec t;
    if (!thread.joinable() || ::pthread_getcpuclockid(thread.native_handle(), &clock) != 0) return 0;
    if (::clock_gettime(clock, &t) != 0) return 0;
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000 + static_cast<uint64_t>(t.tv_nsec) / 1000;
}

}  // namespace

Pager::Pager() = default;

std::unique_ptr<Pager> Pager::start(FileParts files, Layout layout, PagerOptions options) {
    CHECK(options.on_unanswerable != nullptr && options.workers > 0 && layout.n_extents() > 0);
    const BlockSignals block;
    std::unique_ptr<Pager> pager(new Pager);
    pager->gates_ = options.gates;
    pager->shared_ = std::make_unique<PagerShared>(layout.n_extents(), options.groups.slots.n_extents(), options.workers);
    PagerShared* const shared = pager->shared_.get();
    shared->event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    shared->watch_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (shared->event_fd < 0 || shared->watch_fd < 0) throw std::runtime_error(std::string("eventfd: ") + std::strerror(errno));
    Pager* const self = pager.get();
    pager->on_notice_ = std::move(options.on_notice);
    Watchdog::Hooks hooks;
    hooks.ping = [self] { self->kick(); };
    hooks.uffd = [self] { return self->loop_->uffd(); };
    hooks.tick = [self] { self->look_after(); };
    hooks.on_stuck = options.on_unanswerable;
    hooks.on_notice = [self](const char* text) {
        if (self->on_notice_) self->on_notice_(text);
    };
    const Patience patience = options.patience;
    pager->worth_ = options.worth;
    pager->ring_needs_ = {options.workers, false, options.holding};
    pager->ring_needs_.worth = pager->worth_;
    pager->budget_frames_ = options.frames;
    const size_t n_extents = layout.n_extents(), frame_bytes = layout.extent_bytes, slot_frames = options.slot_frames;
    GroupLayout groups = options.groups;
    pager->loop_ = std::make_unique<PagerLoop>(files, std::move(layout), std::move(options), shared, [self] { self->kick(); });
    pager->ring_needs_.copies = pager->loop_->copies();
    pager->residency_ = pager->loop_->residency();
    pager->thread_ = std::jthread([loop = pager->loop_.get()] { loop->run(); });
    shared->started.wait(0, std::memory_order_acquire);
    if (shared->started.load(std::memory_order_acquire) < 0) throw std::runtime_error(shared->failure_text);
    if (groups.slots.n_extents() > 0) {
        pager->least_slot_frames_ = GroupSlots::least_frames(groups, frame_bytes);
        pager->all_slot_frames_ = GroupSlots::all_frames(groups, frame_bytes);
        pager->slots_ = std::make_unique<GroupSlots>(std::move(groups), slot_frames, frame_bytes, shared, n_extents,
                                                     [self] { self->kick(); });
    }
    pager->watchdog_ = std::make_unique<Watchdog>(shared, patience.stuck_ms, patience.slow_ms, std::move(hooks));
    return pager;
}

Pager::~Pager() {
    if (thread_.joinable()) {
        const Waiting waiting(shared_.get());
        shared_->stop.store(true, std::memory_order_release);
        kick();
        thread_.join();
    }
    watchdog_.reset();
    loop_.reset();
    slots_.reset();
    if (!shared_) return;
    for (const int fd : {shared_->event_fd, shared_->watch_fd})
        if (fd >= 0) ::close(fd);
}

const std::byte* Pager::region() const { return loop_->region(); }
size_t Pager::n_extents() const { return shared_->n_extents; }
bool Pager::pinned(size_t extent) const {
    const std::lock_guard lock(budget_mutex_);
    return residency_.pinned[extent];
}
std::vector<Whereabouts> Pager::look() const {
    const size_t extents = n_extents();
    std::vector<Whereabouts> found(extents + shared_->n_groups, Whereabouts::kAbsent);
    {
        const std::lock_guard lock(budget_mutex_);
        for (size_t e = 0; e < extents; ++e) {
            const ExtentState now = state_of(shared_->states[e].load(std::memory_order_relaxed));
            if (now == kReading) found[e] = Whereabouts::kReading;
            if (now == kPresent) found[e] = residency_.pinned[e] ? Whereabouts::kStays : Whereabouts::kPassing;
        }
    }
    if (slots_ != nullptr) slots_->look(std::span(found).subspan(extents));
    return found;
}
std::string Pager::rungs() const { return loop_->rungs(); }

void Pager::kick() noexcept {
    shared_->mail.fetch_add(1, std::memory_order_seq_cst);
    shared_->wake_watchdog();  // which looks after what becomes of it
    if (!shared_->sleeping.exchange(false, std::memory_order_seq_cst)) return;
    const uint64_t one = 1;
    (void)!::write(shared_->event_fd, &one, sizeof one);  // EAGAIN only where it is signalled already
}

void Pager::plan(uint64_t ordinal, size_t first, size_t count) noexcept {
    if (count == 0) return;
    const Message m = {Message::kPlan, static_cast<uint32_t>(first), static_cast<uint32_t>(count), ordinal, nullptr};
    if (!shared_->messages.push(m)) shared_->counters.lost_plans.fetch_add(1, std::memory_order_relaxed);
    kick();
}

void Pager::forget(uint64_t ordinal) noexcept {
    const Message m = {Message::kForget, 0, 0, ordinal, nullptr};
    if (!shared_->messages.push(m)) shared_->counters.lost_plans.fetch_add(1, std::memory_order_relaxed);
}

bool Pager::read_small(std::span<const SmallRead> reads) noexcept {
    CHECK(reads.size() <= MessageQueue::kCapacity / 4);
    const uint32_t target = shared_->small_done.load(std::memory_order_acquire) + static_cast<uint32_t>(reads.size());
    for (const SmallRead& r : reads) {
        const Message m = {Message::kSmallRead, 0, r.bytes, r.file_offset, r.into};
        while (!shared_->messages.push(m)) {
            if (failed()) return false;
            kick();
            ::usleep(100);  // plans that nobody took yet fill the queue: a moment
        }
    }
    kick();
    const Waiting waiting(shared_.get());
    for (;;) {
        const uint32_t done = shared_->small_done.load(std::memory_order_acquire);
        if (failed()) return false;
        if (done == target) return true;
        shared_->small_done.wait(done, std::memory_order_acquire);
    }
}

bool Pager::acquire(size_t worker, size_t first, size_t last) noexcept {
    if (!gates_) return !failed();
    for (size_t e = first; e <= last; ++e) {
        if (state_of(shared_->states[e].load(std::memory_order_acquire)) == kPresent) continue;
        if (!wait_present(worker, e)) return false;
    }
    return true;
}

bool Pager::wait_present(size_t worker, size_t extent) noexcept {
    WorkerSlot& slot = shared_->workers[worker];
    std::atomic<uint32_t>& word = shared_->states[extent];
    const Waiting waiting(shared_.get());
    slot.waits.fetch_add(1, std::memory_order_relaxed);
    const auto begin = std::chrono::steady_clock::now();
    bool present = false;
    for (;;) {
        const uint32_t now = word.load(std::memory_order_acquire);
        present = state_of(now) == kPresent;
        if (present || state_of(now) == kFailed) break;
        if (state_of(now) == kAbsent) {
            slot.wanted.store(static_cast<uint32_t>(extent) + 1, std::memory_order_seq_cst);
            kick();
        }
        word.wait(now, std::memory_order_acquire);
    }
    const auto waited = std::chrono::steady_clock::now() - begin;
    slot.wait_ns.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(waited).count()), std::memory_order_relaxed);
    return present;
}

// Looks again and again: a word has no sleepers that wake by a clock.
bool Pager::acquire_by(size_t worker, size_t extent, std::chrono::steady_clock::time_point deadline) noexcept {
    using Clock = std::chrono::steady_clock;
    constexpr Clock::duration kNap = std::chrono::microseconds(100);  // a small part of what a read takes
    if (!gates_) return !failed();
    std::atomic<uint32_t>& word = shared_->states[extent];
    uint32_t now = word.load(std::memory_order_acquire);
    if (state_of(now) == kPresent) return true;
    const Clock::time_point begin = Clock::now();
    if (begin >= deadline) return false;
    WorkerSlot& slot = shared_->workers[worker];
    const Waiting waiting(shared_.get());
    slot.waits.fetch_add(1, std::memory_order_relaxed);
    for (uint32_t asked = ~now; state_of(now) != kPresent && state_of(now) != kFailed;) {
        if (state_of(now) == kAbsent && asked != now) {  // once each time that it went
            asked = now;
            slot.wanted.store(static_cast<uint32_t>(extent) + 1, std::memory_order_seq_cst);
            kick();
        }
        const Clock::duration left = deadline - Clock::now();
        if (left <= Clock::duration::zero()) break;
        std::this_thread::sleep_for(std::min(left, kNap));
        now = word.load(std::memory_order_acquire);
    }
    if (state_of(now) != kPresent) {  // what the pager has not seen yet it need not read
        uint32_t asked = static_cast<uint32_t>(extent) + 1;
        slot.wanted.compare_exchange_strong(asked, 0, std::memory_order_relaxed);
    }
    slot.wait_ns.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count()), std::memory_order_relaxed);
    return state_of(now) == kPresent;
}

void Pager::publish(size_t worker, uint64_t position) noexcept {
    WorkerSlot& slot = shared_->workers[worker];
    if (slot.position.load(std::memory_order_relaxed) == position) return;
    slot.position.store(position, std::memory_order_seq_cst);
    if (shared_->sleeping.load(std::memory_order_seq_cst) && position >= shared_->wake_at.load(std::memory_order_seq_cst))
        kick();
}

size_t Pager::set_budget(size_t frames) {
    const std::lock_guard lock(budget_mutex_);
    const size_t spare = ring_needs_.copies ? 2 : 0;
    const size_t all = n_extents() + spare;
    const size_t least = least_frames(ring_needs_.workers, ring_needs_.holding) + spare;
    // What every pass touches comes first, groups get what it leaves.
    const size_t extents = std::min(std::max(frames - std::min(frames, least_slot_frames_), least), all);
    const size_t slots = std::clamp(frames - std::min(frames, extents), least_slot_frames_, all_slot_frames_);
    if (extents == budget_frames_ && (slots_ == nullptr || slots == slots_->frames())) return extents + slots;
    budget_frames_ = extents;
    ++budget_changes_;
    if (slots_ != nullptr) slots_->set_frames(slots);
    order_residency();
    return extents + slots;
}

void Pager::set_ring(size_t frames) {
    const std::lock_guard lock(budget_mutex_);
    ring_needs_.length = frames;
    order_residency();
}

// With budget_mutex_ held: what budget and ring come to goes to the pager thread.
void Pager::order_residency() {
    residency_ = change_residency(residency_, budget_frames_, ring_needs_);
    residency_changes_.fetch_add(1, std::memory_order_release);
    std::erase_if(orders_, [](const auto& order) { return order->taken.load(std::memory_order_acquire); });
    orders_.push_back(std::make_unique<BudgetOrder>());
    orders_.back()->residency = residency_;
    BudgetOrder* const unseen = shared_->order.exchange(orders_.back().get(), std::memory_order_acq_rel);
    if (unseen != nullptr) unseen->taken.store(true, std::memory_order_relaxed);
    kick();
}

// The watchdog's thread, each time it looks: fallbacks that were taken since, once each; and memory that the pool did not get.
void Pager::look_after() {
    const Counters& c = shared_->counters;
    const auto say = [&](unsigned bit, uint64_t count, const std::string& text) {
        if (count == 0 || (said_ & bit) != 0) return;
        said_ |= bit;
        if (on_notice_) on_notice_(text.c_str());
    };
    constexpr auto relaxed = std::memory_order_relaxed;
    say(1, c.buffered_rereads.load(relaxed),
        "a read failed twice and is repeated through the page cache: the storage may be failing");
    say(2, c.copied_moves.load(relaxed) + c.hollow_frames.load(relaxed),
        std::string("pages could not be moved (") + std::strerror(c.move_error.load(relaxed)) + "): going on by copying them");
    say(4, c.restored.load(relaxed),
        "the userfaultfd was closed by another part of the process: going on with a second descriptor");
    say(32, c.lost_frames.load(relaxed),
        "an Extent was read once more: pages of its frame were gone before they could be installed (" +
            std::string(std::strerror(c.move_error.load(relaxed))) + ")");
    const int error = loop_->pool().error();
    if (error != 0 && !failed() && !loop_->copies()) {
        const size_t had = loop_->pool().backed();
        say(8, 1, "memory for " + std::to_string(had) + " frames only can be had (" + std::strerror(error) +
                      "): going on with that");
        set_budget(had + (slots_ == nullptr ? 0 : slots_->frames()));
    }
    if (const int no_slots = slots_ == nullptr ? 0 : slots_->look_after(); no_slots != 0 && !failed()) {
        const size_t had = slots_->stats().held_frames;
        say(16, 1, "memory for " + std::to_string(had) + " frames of slots only can be had (" + std::strerror(no_slots) +
                       "): going on with that");
        const std::lock_guard lock(budget_mutex_);
        slots_->set_frames(std::max(had, least_slot_frames_));
    }
}

void Pager::probe_faults() noexcept {
    const Mapping& page = loop_->probe_page();
    const Waiting waiting(shared_.get());
    if (::madvise(page.base(), page.bytes(), MADV_DONTNEED) != 0) return;  // it stays, and nothing is asked
    (void)*static_cast<const volatile std::byte*>(page.base());
}

uint64_t Pager::huge_bytes() const { return loop_->huge_bytes(); }

bool Pager::failed() const noexcept { return shared_->failed.load(std::memory_order_acquire); }
std::string Pager::failure() const { return failed() ? shared_->failure_text : ""; }

uint64_t Pager::stall_us() const noexcept {
    constexpr auto relaxed = std::memory_order_relaxed;
    return (shared_->workers[0].wait_ns.load(relaxed) + shared_->counters.fault_ns.load(relaxed)) / 1000;
}

uint64_t Pager::bytes_read() const noexcept { return shared_->counters.bytes_read.load(std::memory_order_relaxed); }

PagerStats Pager::stats() const {
    const Counters& c = shared_->counters;
    constexpr auto relaxed = std::memory_order_relaxed;
    PagerStats s;
    s.bytes_read = c.bytes_read.load(relaxed);
    s.reads = c.reads.load(relaxed);
    s.faults = c.faults.load(relaxed);
    s.installs = c.installs.load(relaxed);
    s.evictions = c.evictions.load(relaxed);
    s.dropped = c.dropped.load(relaxed);
    s.busy_retries = c.busy_retries.load(relaxed);
    s.lost_plans = c.lost_plans.load(relaxed);
    s.read_retries = c.read_retries.load(relaxed);
    s.buffered_rereads = c.buffered_rereads.load(relaxed);
    s.read_pauses = c.read_pauses.load(relaxed);
    s.restored = c.restored.load(relaxed);
    s.copied_moves = c.copied_moves.load(relaxed);
    s.hollow_frames = c.hollow_frames.load(relaxed);
    s.lost_frames = c.lost_frames.load(relaxed);
    s.peak_frames = c.peak_frames.load(relaxed);
    for (const WorkerSlot& worker : shared_->workers) s.waits += worker.waits.load(relaxed);
    s.stall_us = stall_us();
    s.groups_busy_us = c.group_ns.load(relaxed) / 1000;
    s.busy_us = c.busy_ns.load(relaxed) / 1000;
    if (s.busy_us > 0)
        s.extents_in_flight = static_cast<double>(c.extent_ns.load(relaxed)) / static_cast<double>(c.busy_ns.load(relaxed));
    s.cpu_us = thread_cpu_us(thread_);
    s.held_frames = loop_->pool().backed() + (loop_->copies() ? c.frames_in_use.load(relaxed) : 0);
    const std::lock_guard lock(budget_mutex_);
    s.pinned_extents = residency_.n_pinned;
    s.ring_frames = residency_.ring;
    s.budget_frames = budget_frames_;
    if (slots_ != nullptr) {
        s.groups = slots_->stats();
        s.budget_frames += s.groups.frames;
        s.held_frames += s.groups.held_frames;
    }
    s.budget_changes = budget_changes_;
    return s;
}

}  // namespace weir::pager
