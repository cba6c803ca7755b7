#include "runtime/engine/team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace weir {
namespace {

// A CPU that the process may use, and how many CPUs of the same core come before it.
struct Cpu {
    int number;
    size_t rank_in_core;
};

// First CPU of the core that `cpu` belongs to, as /sys lists it ("0,4" or "0-1"); the CPU itself where /sys is silent.
int first_sibling(int cpu) {
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    int first = cpu;
    return in >> first ? first : cpu;
}

// The CPUs that this process may use, those of different cores first.
std::vector<Cpu> usable_cpus() {
    // More CPUs than cpu_set_t has bits are rare; there sched_getaffinity fails and nothing is pinned.
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
    std::vector<Cpu> cpus;
    std::vector<int> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        const int core = first_sibling(cpu);
        cpus.push_back({cpu, static_cast<size_t>(std::count(cores.begin(), cores.end(), core))});
        cores.push_back(core);
    }
    std::stable_sort(cpus.begin(), cpus.end(),
                     [](const Cpu& a, const Cpu& b) { return a.rank_in_core < b.rank_in_core; });
    return cpus;
}

void relax_cpu() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Turns of `pause` before a waiting worker sleeps in the kernel: some 10 us. Barriers of a decode step are met within a
// few us of each other, and a futex wake-up costs 5 to 50 us in a VM; a much longer spin takes the core from the pager
// thread, which shares it with a worker on small machines. From those figures, not yet from a sweep.
constexpr int kSpinTurns = 1000;

}  // namespace

size_t default_thread_count() {
    const std::vector<Cpu> cpus = usable_cpus();
    const auto cores = std::count_if(cpus.begin(), cpus.end(), [](const Cpu& cpu) { return cpu.rank_in_core == 0; });
    return std::max<size_t>(1, static_cast<size_t>(cores));
}

Team::Team(size_t workers) : n_workers_(std::clamp<size_t>(workers, 1, kMostWorkers)), active_(n_workers_) {
    const std::vector<Cpu> cpus = usable_cpus();
    pinned_ = cpus.size() >= n_workers_;
    threads_.reserve(n_workers_);
    try {
        for (size_t worker = 0; worker < n_workers_; ++worker) {
            threads_.emplace_back([this, worker] { worker_loop(worker); });
            const pthread_t handle = threads_.back().native_handle();
            pthread_setname_np(handle, ("weir-w" + std::to_string(worker)).c_str());
            if (!pinned_) continue;
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpus[worker].number, &one);
            // A refusal (a CPU taken away since) costs speed, nothing else.
            pthread_setaffinity_np(handle, sizeof one, &one);
        }
    } catch (...) {
        stopping_ = true;
        start_run();
        throw;
    }
}

Team::~Team() {
    stopping_ = true;
    start_run();
    threads_.clear();  // joins, while the members that the workers read are still alive
}

void Team::resize(size_t n) { active_ = std::clamp<size_t>(n, 1, n_workers_); }

void Team::start_run() noexcept {
    const uint32_t number = (generation_.load(std::memory_order_relaxed) >> kWorkersBits) + 1;
    generation_.store(number << kWorkersBits | static_cast<uint32_t>(active_), std::memory_order_release);
    generation_.notify_all();
}

bool Team::run(const std::function<void(size_t)>& work) {
    work_ = &work;
    failed_.store(false, std::memory_order_relaxed);
    arrived_.store(0, std::memory_order_relaxed);
    running_.store(static_cast<uint32_t>(active_), std::memory_order_relaxed);
    start_run();
    for (uint32_t left = running_.load(std::memory_order_acquire); left != 0;
         left = running_.load(std::memory_order_acquire)) {
        running_.wait(left, std::memory_order_acquire);
    }
    work_ = nullptr;
    std::exception_ptr error;
    {
        const std::lock_guard lock(error_mutex_);
        std::swap(error, error_);
    }
    if (error) std::rethrow_exception(error);
    return !failed();
}

void Team::fail() noexcept {
    failed_.store(true, std::memory_order_release);
    phase_.fetch_add(1, std::memory_order_release);
    phase_.notify_all();
}

void Team::worker_loop(size_t worker) {
    for (uint32_t seen = 0;;) {
        wait_while(generation_, seen);
        seen = generation_.load(std::memory_order_acquire);
        if (stopping_) return;
        if (worker >= (seen & kWorkersMask)) continue;
        try {
            (*work_)(worker);
        } catch (...) {
            {
                const std::lock_guard lock(error_mutex_);
                if (!error_) error_ = std::current_exception();
            }
            fail();
        }
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
    }
}

void Team::wait_while(const std::atomic<uint32_t>& value, uint32_t old) const noexcept {
    // Workers that share cores would only keep the one they wait for from running.
    for (int turn = 0; pinned_ && turn < kSpinTurns; ++turn) {
        if (value.load(std::memory_order_acquire) != old) return;
        relax_cpu();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace weir
