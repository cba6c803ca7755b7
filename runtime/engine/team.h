// The decode team: N threads that run one function together, over and over, each with its own index. They are the
// only threads that touch weights; the thread that owns the Team only starts them and sleeps until all are back.
//
// Threads: the constructor, run() and the destructor belong to the owner; barrier(), fail() and failed() to the workers
// inside run(). Failure: an exception that leaves a worker's function, or a call to fail(), opens every barrier: it
// answers false from then on, the workers leave, and run() throws the first exception again. So nobody is left waiting
// for a worker that will not come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weir {

// Physical cores that this process may use (affinity respected), at least 1.
size_t default_thread_count();

class Team {
  public:
    static constexpr size_t kMostWorkers = 256;

    // 1 <= workers <= kMostWorkers. Workers are pinned, one to a core, where the process may use at least as many; threads of one core are shared
    // out last. Otherwise the kernel places them. Throws std::system_error where a thread cannot be had.
    explicit Team(size_t workers);
    // Joins the workers. No run() may be in progress.
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Workers that the next run() has: all at first.
    size_t size() const { return active_; }
    size_t capacity() const { return n_workers_; }
    bool pinned() const { return pinned_; }
    // Owner, between runs: the next ones have 1 <= n <= capacity() workers, numbers 0 to n - 1; the others sleep.
    void resize(size_t n);

    // Calls work(worker) on every worker, worker = 0 .. size() - 1, and returns when all are back. Throws what the
    // first failing worker threw. True where nobody called fail().
    bool run(const std::function<void(size_t worker)>& work);

    // Waits until all workers have arrived. The last to arrive calls last() before the others go on: the place to
    // reset what they share. False where the run has failed: the caller must leave, and `last` may not have run.
    template <typename Last>
    bool barrier(Last&& last);
    bool barrier() { return barrier([] {}); }

    // The run cannot go on; opens the barrier for everybody.
    void fail() noexcept;
    bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  private:
    void worker_loop(size_t worker);
    void wait_while(const std::atomic<uint32_t>& value, uint32_t old) const noexcept;

    // The word that starts a run: its number, and how many workers take part. A worker that is left out may wake up late,
    // when the next run is being prepared: it looks at this word alone.
    static constexpr uint32_t kWorkersBits = 9;
    static constexpr uint32_t kWorkersMask = (1u << kWorkersBits) - 1;
    static_assert(kMostWorkers <= kWorkersMask);
    void start_run() noexcept;

    const size_t n_workers_;
    size_t active_;  // written by the owner between runs
    bool pinned_ = false;

    // Written by the owner before it moves generation_ on; read by the workers after they have seen it move.
    const std::function<void(size_t)>* work_ = nullptr;
    std::atomic<bool> stopping_{false};

    alignas(64) std::atomic<uint32_t> generation_{0};  // owner: a new word starts a run; workers acquire
    alignas(64) std::atomic<uint32_t> running_{0};     // workers still inside; the last one wakes the owner
    alignas(64) std::atomic<uint32_t> arrived_{0};     // at the current barrier
    alignas(64) std::atomic<uint32_t> phase_{0};       // last arriver or fail(): +1 opens the barrier
    std::atomic<bool> failed_{false};

    std::mutex error_mutex_;
    std::exception_ptr error_;  // guarded by error_mutex_

    std::vector<std::jthread> threads_;
};

template <typename Last>
bool Team::barrier(Last&& last) {
    // Read before arriving: once this worker has arrived the phase may move on at any moment.
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (failed()) return false;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == active_) {
        last();
        arrived_.store(0, std::memory_order_relaxed);
        phase_.fetch_add(1, std::memory_order_release);
        phase_.notify_all();
    } else {
        wait_while(phase_, phase);
    }
    return !failed();
}

}  // namespace weir
