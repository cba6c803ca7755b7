// Keys and values of the tokens seen so far, for every layer. One anonymous mapping for the whole context: its size is
// known up front and belongs to the budget; the kernel hands out pages as positions are written.
//
// Values lie as [layer][kv head][position][head_dim], keys as [layer][kv head][position / 8][head_dim][position % 8]: as
// attention multiplies them, eight positions or eight elements of a head at a time (see multiply_add in kernels.h). Quantised
// ones have a scale for each 32 elements of a head (see kernels/panels.h for keys).
//
// Threads: workers write and read rows of different heads or positions at the same time; set_length() belongs to the
// leader, outside the pass. Construction throws Error where the memory cannot be had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/panels.h"
#include "kernels/types.h"
#include "runtime/model/config.h"

namespace weir {

// How keys and values are held: F32, F16, Q8_0 or Q4_0.
struct KvType {
    kernels::Type keys = kernels::Type::kF16;
    kernels::Type values = kernels::Type::kF16;

    static const KvType kF16, kF32, kQ8_0, kQ4_0;  // both alike
};
inline constexpr KvType KvType::kF16{kernels::Type::kF16, kernels::Type::kF16};
inline constexpr KvType KvType::kF32{kernels::Type::kF32, kernels::Type::kF32};
inline constexpr KvType KvType::kQ8_0{kernels::Type::kQ8_0, kernels::Type::kQ8_0};
inline constexpr KvType KvType::kQ4_0{kernels::Type::kQ4_0, kernels::Type::kQ4_0};

// The types in question, for options and their messages.
constexpr kernels::Type kCacheTypes[] = {kernels::Type::kF16, kernels::Type::kF32, kernels::Type::kQ8_0, kernels::Type::kQ4_0};
std::string cache_type_name(kernels::Type type);  // "q8_0"
std::string kv_type_name(KvType type);            // "q8_0", or "q8_0/f16" where keys and values differ

class KvCache {
  public:
    // What a cache of n_ctx positions takes. Throws Error where the product does not fit, UsageError where no block divides
    // the model's heads.
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

    // The panel of keys that `position` is in; panels of the following positions lie behind it.
    std::byte* keys(size_t layer, size_t kv_head, size_t position) {
        return base_ + (layer * n_kv_heads_ + kv_head) * positions_ * key_bytes_ + position / kPanel * kPanel * key_bytes_;
    }
    // Row of `position`; rows of the following positions lie behind it.
    std::byte* value(size_t layer, size_t kv_head, size_t position) {
        return base_ + values_at_ + ((layer * n_kv_heads_ + kv_head) * positions_ + position) * value_bytes_;
    }

    static constexpr size_t kPanel = kernels::kPanelRows;

  private:
    const KvType type_;
    const size_t n_kv_heads_;
    const size_t n_ctx_;
    const size_t positions_;    // of a layer: n_ctx in whole panels
    const size_t key_bytes_;    // of one position of one head
    const size_t value_bytes_;
    const size_t bytes_;
    const size_t values_at_;    // where they begin
    size_t length_ = 0;
    std::byte* base_ = nullptr;
};

}  // namespace weir
