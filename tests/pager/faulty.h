// Doubles of the pager's two seams, the read queue and the ioctl, that do what the real ones do until the N-th call.
#pragma once

#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "pager/read_queue.h"
#include "pager/system.h"
#include "pager/uffd.h"

namespace weir::test {

// When something goes wrong: at the N-th call, or from it on.
struct Nth {
    uint64_t nth = 1;
    bool for_good = false;
    bool hits(uint64_t count) const { return count == nth || (count > nth && for_good); }
};

enum class ReadFault {
    kNone,
    kShort,      // half of the bytes, whole pages
    kEio,
    kEioDirect,  // by the descriptor that direct_fd names; through the page cache it works
    kEagain,
    kEnomem,
    kEnd,        // the file ends here
    kReorder,    // completions are held back and come in another order
    kSlow,       // all come 30 or 60 ms late
    kLate,       // comes 700 ms late
    kNoRoom,     // push() refuses
    kStuck,      // wait() never returns
    kSpin,       // likewise, busily
    kExit,       // the thread that waits ends
    kBroken,     // wait() reports that the queue is broken
    kVanished,   // what it read last has no memory any more
};

// The real queue, with results changed on their way back.
class FaultyQueue : public pager::ReadQueue {
  public:
    FaultyQueue(ReadFault fault, Nth when, int direct_fd = -1)
        : inner_(pager::make_read_queue(pager::ReaderRung::kAuto)), fault_(fault), when_(when), direct_fd_(direct_fd) {
        reads_.resize(inner_->capacity());
    }

    const char* name() const override { return "faulty"; }
    size_t capacity() const override { return inner_->capacity(); }
    int start(int uffd, int event_fd) noexcept override { return inner_->start(uffd, event_fd); }
    void watch(int uffd) noexcept override { inner_->watch(uffd); }

    int push(const pager::Read& read) noexcept override {
        reads_[read.tag] = read;
        if (fault_ == ReadFault::kNoRoom && when_.hits(++count_)) return -EBUSY;
        return inner_->push(read);
    }

    pager::Wakeup wait(std::span<pager::ReadDone> done, int timeout_us) noexcept override {
        if (fault_ == ReadFault::kReorder || fault_ == ReadFault::kSlow || fault_ == ReadFault::kLate)
            return wait_and_hold(done, timeout_us);
        pager::Wakeup w = inner_->wait(done, timeout_us);
        for (size_t i = 0; i < w.n_done; ++i)
            if (done[i].result > 0 && concerns(done[i]) && when_.hits(++count_)) spoil(&done[i], &w);
        return w;
    }

  private:
    bool concerns(const pager::ReadDone& done) const {
        return fault_ != ReadFault::kNone && fault_ != ReadFault::kNoRoom &&
               (fault_ != ReadFault::kEioDirect || reads_[done.tag].fd == direct_fd_);
    }

    void spoil(pager::ReadDone* done, pager::Wakeup* w) const noexcept {
        switch (fault_) {
            case ReadFault::kShort: {
                // Never nothing: that would be the end of the file.
                const size_t pages = static_cast<size_t>(done->result) / pager::page_size();
                if (pages > 1) done->result = static_cast<int32_t>(pages / 2 * pager::page_size());
                break;
            }
            case ReadFault::kEio:
            case ReadFault::kEioDirect: done->result = -EIO; break;
            case ReadFault::kEagain: done->result = -EAGAIN; break;
            case ReadFault::kEnomem: done->result = -ENOMEM; break;
            case ReadFault::kEnd: done->result = 0; break;
            case ReadFault::kStuck:
                for (;;) ::pause();
            case ReadFault::kSpin:
                for (volatile bool always = true; always;) continue;
                break;
            case ReadFault::kExit: ::syscall(SYS_exit, 0); break;
            case ReadFault::kBroken: w->error = -EBADF; break;
            case ReadFault::kVanished: {
                const pager::Read& read = reads_[done->tag];
                (void)::madvise(read.into + read.bytes - pager::page_size(), pager::page_size(), MADV_DONTNEED);
                break;
            }
            default: break;
        }
    }

    // Takes completions in and lets them out later, the newest first.
    pager::Wakeup wait_and_hold(std::span<pager::ReadDone> done, int timeout_us) noexcept {
        pager::ReadDone got[64];
        if (!held_.empty()) timeout_us = timeout_us < 0 ? 2000 : std::min(timeout_us, 2000);
        pager::Wakeup w = inner_->wait(got, timeout_us);
        const uint64_t now = pager::monotonic_ns();
        for (size_t i = 0; i < w.n_done; ++i) {
            uint64_t late_ms = fault_ == ReadFault::kSlow ? (held_.size() % 2 + 1) * 30 : 0;
            if (fault_ == ReadFault::kLate && when_.hits(++count_)) late_ms = 700;
            held_.push_back({got[i], now + late_ms * 1'000'000});
        }
        const bool out = fault_ != ReadFault::kReorder || held_.size() > 2 || w.n_done == 0;
        w.n_done = 0;
        for (size_t i = held_.size(); out && i-- > 0 && w.n_done < done.size();) {  // the newest first
            if (held_[i].second > now) continue;
            done[w.n_done++] = held_[i].first;
            held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
        }
        return w;
    }

    std::unique_ptr<pager::ReadQueue> inner_;
    ReadFault fault_;
    Nth when_;
    int direct_fd_;
    std::vector<pager::Read> reads_;  // by tag
    std::vector<std::pair<pager::ReadDone, uint64_t>> held_;
    uint64_t count_ = 0;
};

// Requests by their number in linux/userfaultfd.h.
enum class Call : unsigned { kRegister = 0, kUnregister = 1, kWake = 2, kCopy = 3, kMove = 5 };

// An ioctl that fails with `error` where a call hits; part: half of the bytes are moved or copied all the same. stuck: it
// does not return at all instead.
struct IoctlFault {
    Call call = Call::kMove;
    int error = EINVAL;
    Nth when;
    bool part = false;
    bool stuck = false;
};

inline pager::IoctlCall faulty_ioctl(IoctlFault fault, std::atomic<uint64_t>* count) {
    return [fault, count](int fd, unsigned long request, void* argument) -> int {
        if (_IOC_NR(request) != static_cast<unsigned>(fault.call) || !fault.when.hits(++*count))
            return ::ioctl(fd, request, argument);
        if (fault.stuck) {
            for (;;) ::pause();
        }
        // uffdio_copy and uffdio_move: dst, src, len, mode, result.
        auto* const words = static_cast<uint64_t*>(argument);
        if (fault.part && words[2] >= 2 * pager::page_size()) {
            words[2] = words[2] / 2 / pager::page_size() * pager::page_size();
            if (::ioctl(fd, request, argument) != 0) return -1;
        }
        errno = fault.error;
        return -1;
    };
}

}  // namespace weir::test
