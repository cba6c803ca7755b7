// Finds small integers by a key that lives elsewhere: open addressing with linear probing over 4-byte slots, at most
// half full. 262,144 tokens take 2 MiB, where a node-based map takes 12 MiB: the tokenizer lives within the memory
// budget of the whole process. Filled once, then any thread may look.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weir {

class HashIndex {
  public:
    // Room for n entries.
    explicit HashIndex(size_t n) : slots_(std::bit_ceil(2 * n + 1), kEmpty), mask_(slots_.size() - 1) {}

    // The entry with that hash for which same(entry) holds; -1 where there is none.
    template <class Same>
    int32_t find(uint64_t hash, Same same) const {
        for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
            if (slots_[i] == kEmpty || same(slots_[i])) return slots_[i];
        }
    }

    // Adds an entry unless there is one for which same(entry) holds: the first of two equals stays.
    template <class Same>
    void insert(uint64_t hash, int32_t entry, Same same) {
        size_t i = hash & mask_;
        while (slots_[i] != kEmpty && !same(slots_[i])) i = (i + 1) & mask_;
        if (slots_[i] == kEmpty) slots_[i] = entry;
    }

  private:
    static constexpr int32_t kEmpty = -1;
    std::vector<int32_t> slots_;
    size_t mask_;
};

}  // namespace weir
