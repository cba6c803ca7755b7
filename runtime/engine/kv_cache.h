// Keys and values of the tokens seen so far, for every layer. One anonymous mapping for the whole context: its size is
// known up front and belongs to the budget; the kernel hands out pages as positions are written.
//
// Layout [layer][kv head][position][head_dim], keys and values in two halves: attention streams the positions of one
// head without a gap.
//
// Threads: workers write and read rows of different heads or positions at the same time; set_length() and clear()
// belong to the leader, outside the pass. Construction throws Error where the memory cannot be had.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/model/config.h"

namespace weir {

enum class KvType : uint8_t { kF16, kF32 };
const char* kv_type_name(KvType type);

class KvCache {
  public:
    // What a cache of n_ctx positions takes. Throws Error where the product does not fit.
    static size_t bytes(const ModelConfig& config, KvType type, size_t n_ctx);

    KvCache(const ModelConfig& config, KvType type, size_t n_ctx);
    ~KvCache();
    KvCache(const KvCache&) = delete;
    KvCache& operator=(const KvCache&) = delete;

    KvType type() const { return type_; }
    size_t capacity() const { return n_ctx_; }
    size_t bytes() const { return bytes_; }

    // Positions that hold a token.
    size_t length() const { return length_; }
    void set_length(size_t length);

    // Bytes of one head's row of one position.
    size_t row_bytes() const { return row_bytes_; }
    // Row of `position`; rows of the following positions lie behind it.
    std::byte* key(size_t layer, size_t kv_head, size_t position) {
        return base_ + ((layer * n_kv_heads_ + kv_head) * n_ctx_ + position) * row_bytes_;
    }
    std::byte* value(size_t layer, size_t kv_head, size_t position) {
        return key(layer, kv_head, position) + bytes_ / 2;
    }

  private:
    const KvType type_;
    const size_t n_kv_heads_;
    const size_t n_ctx_;
    const size_t row_bytes_;
    const size_t bytes_;
    size_t length_ = 0;
    std::byte* base_ = nullptr;
};

}  // namespace weir
