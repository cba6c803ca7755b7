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
    // Workers are pinned, one to a core, where the process may use at least as many; threads of one core are shared
    // out last. Otherwise the kernel places them. Throws std::system_error where a thread cannot be had.
    explicit Team(size_t workers);
    // Joins the workers. No run() may be in progress.
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    size_t size() const { return n_workers_; }
    bool pinned() const { return pinned_; }

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

    const size_t n_workers_;
    bool pinned_ = false;

    // Written by the owner before it moves generation_ on; read by the workers after they have seen it move.
    const std::function<void(size_t)>* work_ = nullptr;
    bool stopping_ = false;

    alignas(64) std::atomic<uint32_t> generation_{0};  // owner: +1 starts a run; workers acquire
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
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_workers_) {
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
