#include "runtime/service/generation.h"

namespace weir {
namespace {

double seconds_since(Generation::Clock::time_point then) {
    return std::chrono::duration<double>(Generation::Clock::now() - then).count();
}

}  // namespace

Generation::Next Generation::next(GeneratedToken* token, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return !waiting_.empty() || ended_; });
    if (!waiting_.empty()) {
        *token = std::move(waiting_.front());
        waiting_.pop_front();
        return Next::kToken;
    }
    return ended_ ? Next::kEnd : Next::kNothing;
}

Generation::Outcome Generation::outcome() const {
    const std::lock_guard lock(mutex_);
    return outcome_;
}

void Generation::started(size_t cached_tokens) {
    const std::lock_guard lock(mutex_);
    started_ = Clock::now();
    outcome_.queued_s = std::chrono::duration<double>(started_ - submitted_).count();
    outcome_.prompt_tokens = request_.prompt.size();
    outcome_.cached_tokens = cached_tokens;
}

void Generation::adapts(bool remembered, size_t rungs) {
    const std::lock_guard lock(mutex_);
    outcome_.remembered = remembered;
    outcome_.tokens_at.assign(rungs, 0);
}

void Generation::computed_at(size_t rung) {
    const std::lock_guard lock(mutex_);
    ++outcome_.tokens_at[rung];
}

void Generation::add(GeneratedToken token) {
    const std::lock_guard lock(mutex_);
    if (outcome_.tokens++ == 0) {
        first_ = Clock::now();
        outcome_.prompt_s = seconds_since(started_);
    }
    outcome_.decode_s = seconds_since(first_);
    waiting_.push_back(std::move(token));
    changed_.notify_one();
}

void Generation::end(FinishReason finish, std::string error, std::vector<float> embedding) {
    const std::lock_guard lock(mutex_);
    outcome_.embedding = std::move(embedding);
    outcome_.finish = finish;
    outcome_.error = std::move(error);
    ended_ = true;
    changed_.notify_one();
}

}  // namespace weir
