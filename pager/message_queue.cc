#include "pager/message_queue.h"

#include <boost/lockfree/spsc_queue.hpp>

namespace weir::pager {

struct MessageQueue::Queue {
    boost::lockfree::spsc_queue<Message, boost::lockfree::capacity<MessageQueue::kCapacity>> queue;
};

MessageQueue::MessageQueue() : queue_(std::make_unique<Queue>()) {}
MessageQueue::~MessageQueue() = default;

bool MessageQueue::push(const Message& message) noexcept { return queue_->queue.push(message); }
bool MessageQueue::pop(Message* message) noexcept { return queue_->queue.pop(*message); }

}  // namespace weir::pager
