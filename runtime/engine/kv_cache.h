// Keys and values of the tokens seen so far, for every layer. One anonymous mapping for the whole context: its size is
// known up front and belongs to the budget; the kernel hands out pages as positions are written.
//
// Values of a layer lie as [kv head][position][head_dim], keys as [kv head][position / 8][head_dim][position % 8]: as attention
// multiplies them, eight positions or eight elements of a head at a time (see multiply_add in kernels.h). Quantised ones have
// a scale for each 32 elements of a head (see kernels/panels.h for keys).
//
// A layer whose tokens see a window keeps no more than that and the tokens of one pass: its positions go round in a ring.
// A stretch of 64 positions that begins at a multiple of 64 is never broken by the ring's end.
//
// Threads: workers write and read rows of different heads or positions at the same time; begin_pass() and set_length() belong
// to the leader, outside the pass. Construction throws Error where the memory cannot be had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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
    // What a cache of n_ctx positions takes, of which passes write at most `batch` at a time. Throws Error where the product
    // does not fit, UsageError where no block divides the model's heads.
    static size_t bytes(const ModelConfig& config, KvType type, size_t n_ctx, size_t batch);
    // The largest context, up to `most`, whose cache takes no more than `bytes`.
    static size_t context_within(uint64_t bytes, const ModelConfig& config, KvType type, size_t most, size_t batch);

    KvCache(const ModelConfig& config, KvType type, size_t n_ctx, size_t batch);
    ~KvCache();
    KvCache(const KvCache&) = delete;
    KvCache& operator=(const KvCache&) = delete;

    KvType type() const { return type_; }
    size_t capacity() const { return n_ctx_; }
    size_t bytes() const { return bytes_; }

    // Positions that hold a token.
    size_t length() const { return length_; }
    // Throws Error beyond the context, and back to where not all of a window is kept any more.
    void set_length(size_t length);
    // Whether it can be set to `length`, up to what it is: always to 0; further back than a ring reaches not.
    bool holds(size_t length) const;

    // `tokens` positions behind length() are about to be written. Throws Error where they are more than a pass may have.
    void begin_pass(size_t tokens);

    // The panel of keys that `position` is in; panels of the following positions lie behind it, up to a multiple of 64.
    std::byte* keys(size_t layer, size_t kv_head, size_t position) {
        const Ring& ring = rings_[layer];
        return base_ + ring.keys_at + (kv_head * ring.slots + position % ring.slots / kPanel * kPanel) * key_bytes_;
    }
    // Row of `position`; rows of the following positions lie behind it, up to a multiple of 64.
    std::byte* value(size_t layer, size_t kv_head, size_t position) {
        const Ring& ring = rings_[layer];
        return base_ + ring.values_at + (kv_head * ring.slots + position % ring.slots) * value_bytes_;
    }

    static constexpr size_t kPanel = kernels::kPanelRows;
    static constexpr size_t kUnbroken = 64;

  private:
    struct Ring {
        size_t slots;      // positions of each head; the whole context where the layer sees all of it
        size_t keys_at;    // from base_
        size_t values_at;
    };

    const KvType type_;
    const size_t n_ctx_;
    const size_t batch_;
    const size_t key_bytes_;    // of one position of one head
    const size_t value_bytes_;
    const size_t bytes_;
    size_t window_ = 0;         // 0: no layer has a ring that is shorter than the context
    size_t shortest_ring_ = 0;
    std::vector<Ring> rings_;   // of each layer
    size_t length_ = 0;
    size_t reached_ = 0;        // positions up to here were written since the last set_length(0)
    std::byte* base_ = nullptr;
};

}  // namespace weir
