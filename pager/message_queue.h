// What the decode leader tells the pager thread, in order, through a lock-free single-producer single-consumer queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace weir::pager {

struct Message {
    enum Kind : uint32_t {
        kPlan,       // Extents [first, first + count) will be touched at ordinals from `at` on
        kForget,     // what was planned at ordinals from `at` on is void
        kSmallRead,  // `count` bytes of the file from offset `at` into `into`
        kGroupRead,  // group `first` into the slot at `into`
    };
    Kind kind;
    uint32_t first;
    uint32_t count;
    uint64_t at;
    std::byte* into;
};

class MessageQueue {
  public:
    MessageQueue();
    ~MessageQueue();

    // Leader. False where the queue is full.
    bool push(const Message& message) noexcept;
    // Pager thread. False where the queue is empty.
    bool pop(Message* message) noexcept;

    static constexpr size_t kCapacity = 1024;

  private:
    struct Queue;  // Boost's header costs seconds of compile time: it stays in one .cc
    std::unique_ptr<Queue> queue_;
};

}  // namespace weir::pager
