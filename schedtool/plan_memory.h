// Which rung the prompts of the past ended with, so that the next one of their kind begins there. Prompts are known by a
// signature of 64 bits in which prompts of the same words differ little (Charikar 2002), never by their words.
//
// Plain data; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weir::sched {

uint64_t prompt_signature(std::span<const int32_t> ids);

class PlanMemory {
  public:
    static constexpr size_t kLeast = 50, kUsual = 128, kMost = 200;  // prompts that are remembered
    // Bits that may differ between prompts of a kind. Of unrelated ones 32 do on average, with a deviation of 4.
    static constexpr int kNear = 12;

    explicit PlanMemory(size_t capacity = kUsual) : capacity_(capacity) {}

    // Of the nearest prompt of the kind, the youngest where several are as near.
    std::optional<size_t> find(uint64_t signature) const;
    // In the place of the nearest of the kind, else of the one that was not met for the longest time.
    void remember(uint64_t signature, size_t rung);
    size_t size() const { return entries_.size(); }

    // As a file has it: a line for each prompt, oldest first. parse() throws std::runtime_error that begins with `name`.
    std::string text() const;
    static PlanMemory parse(const std::string& text, const std::string& name, size_t capacity = kUsual);

  private:
    struct Entry {
        uint64_t signature;
        size_t rung;
    };
    std::optional<size_t> nearest(uint64_t signature) const;

    size_t capacity_;
    std::vector<Entry> entries_;  // oldest first
};

}  // namespace weir::sched
