// Keys and values of the tokens seen so far, for every layer. One anonymous mapping for the whole context: its size is
// known up front and belongs to the budget; the kernel hands out pages as positions are written.
//
// Values lie as [layer][kv head][position][head_dim], keys as [layer][kv head][position / 8][head_dim][position % 8]: as
// attention multiplies them, eight positions or eight elements of a head at a time (see multiply_add in kernels.h).
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

    size_t element_bytes() const { return type_ == KvType::kF16 ? 2 : 4; }
    // Keys of positions 8 * panel and on; element d of position p is at [d * 8 + p % 8].
    std::byte* keys(size_t layer, size_t kv_head, size_t panel) {
        return base_ + (layer * n_kv_heads_ + kv_head) * head_bytes_ + panel * kPanel * head_dim_ * element_bytes();
    }
    // Row of `position`; rows of the following positions lie behind it.
    std::byte* value(size_t layer, size_t kv_head, size_t position) {
        return base_ + bytes_ / 2 + (layer * n_kv_heads_ + kv_head) * head_bytes_ + position * head_dim_ * element_bytes();
    }

    static constexpr size_t kPanel = 8;

  private:
    const KvType type_;
    const size_t n_kv_heads_;
    const size_t n_ctx_;
    const size_t head_dim_;
    const size_t head_bytes_;  // of one head's keys, or values, of one layer
    const size_t bytes_;
    size_t length_ = 0;
    std::byte* base_ = nullptr;
};

}  // namespace weir
