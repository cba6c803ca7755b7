#include "runtime/engine/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/error.h"

namespace weir {
namespace {

// Positions that whole panels hold; n_ctx itself where there is no such number.
size_t whole_panels(size_t n_ctx) {
    const size_t missing = (KvCache::kPanel - n_ctx % KvCache::kPanel) % KvCache::kPanel;
    return n_ctx > SIZE_MAX - missing ? n_ctx : n_ctx + missing;
}

// Positions that a layer keeps. For a pass of `batch` tokens the first still sees window - 1 before itself when the last is
// written.
size_t slots_of(const ModelConfig& config, size_t layer, size_t n_ctx, size_t batch) {
    const size_t whole = whole_panels(n_ctx);
    size_t ring = 0;
    if (!config.has_window(layer) || __builtin_add_overflow(config.window - 1, batch, &ring) ||
        __builtin_add_overflow(ring, KvCache::kUnbroken - 1, &ring)) {
        return whole;
    }
    return std::min(whole, ring / KvCache::kUnbroken * KvCache::kUnbroken);
}

// Of a head, in one layer and position.
size_t row_bytes(const char* what, kernels::Type type, size_t head_dim) {
    const size_t block = kernels::traits(type).block_elements;
    if (head_dim % block != 0) {
        throw UsageError("a KV cache with " + std::string(what) + " of " + cache_type_name(type) + " wants heads of a multiple of " +
                         std::to_string(block) + " elements, and this model's have " + std::to_string(head_dim) + "; use f16");
    }
    return kernels::row_bytes(type, head_dim);
}

}  // namespace

std::string cache_type_name(kernels::Type type) {
    std::string name = kernels::traits(type).name;
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return name;
}

std::string kv_type_name(KvType type) {
    const std::string keys = cache_type_name(type.keys);
    return type.keys == type.values ? keys : keys + "/" + cache_type_name(type.values);
}

size_t KvCache::bytes(const ModelConfig& config, KvType type, size_t n_ctx, size_t batch) {
    size_t total = 0;
    bool fits = true;
    for (size_t layer = 0; layer < config.n_layers; ++layer) {
        fits = fits && !__builtin_add_overflow(total, slots_of(config, layer, n_ctx, batch), &total);
    }
    for (const size_t factor : {row_bytes("keys", type.keys, config.head_dim) + row_bytes("values", type.values, config.head_dim),
                                config.n_kv_heads}) {
        fits = fits && !__builtin_mul_overflow(total, factor, &total);
    }
    if (!fits) throw Error("KV cache for a context of " + std::to_string(n_ctx) + " tokens does not fit an address space");
    return total;
}

size_t KvCache::context_within(uint64_t bytes, const ModelConfig& config, KvType type, size_t most, size_t batch) {
    size_t least = 0;
    while (least < most) {
        const size_t middle = most - (most - least) / 2;
        if (KvCache::bytes(config, type, middle, batch) <= bytes) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    return least;
}

KvCache::KvCache(const ModelConfig& config, KvType type, size_t n_ctx, size_t batch)
    : type_(type), n_ctx_(n_ctx), batch_(batch), key_bytes_(row_bytes("keys", type.keys, config.head_dim)),
      value_bytes_(row_bytes("values", type.values, config.head_dim)), bytes_(bytes(config, type, n_ctx, batch)) {
    size_t at = 0;
    for (size_t layer = 0; layer < config.n_layers; ++layer) {
        const size_t slots = slots_of(config, layer, n_ctx, batch);
        const size_t values_at = at + config.n_kv_heads * slots * key_bytes_;
        rings_.push_back({slots, at, values_at});
        at = values_at + config.n_kv_heads * slots * value_bytes_;
        if (slots >= n_ctx) continue;
        window_ = config.window;
        shortest_ring_ = slots;
    }
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        throw Error("KV cache: cannot map " + std::to_string(bytes_) + " bytes for a context of " +
                    std::to_string(n_ctx) + " tokens: " + std::strerror(errno) + "; try a smaller context (-c)");
    }
    base_ = static_cast<std::byte*>(base);
}

KvCache::~KvCache() { munmap(base_, bytes_); }

bool KvCache::holds(size_t length) const {
    if (length == 0 || window_ == 0) return true;
    const size_t oldest_seen = length + 1 - std::min(length + 1, window_);  // by the token that comes next
    const size_t oldest_kept = reached_ - std::min(reached_, shortest_ring_);
    return oldest_seen >= oldest_kept;
}

void KvCache::set_length(size_t length) {
    if (length > n_ctx_) throw Error("KV cache: length " + std::to_string(length) + " beyond the context");
    if (!holds(length)) {
        throw Error("KV cache: " + std::to_string(reached_) + " positions were written, and layers with a window of " +
                    std::to_string(window_) + " keep the last " + std::to_string(shortest_ring_) +
                    ": it cannot be set back to " + std::to_string(length));
    }
    length_ = length;
    if (length == 0) reached_ = 0;
}

void KvCache::begin_pass(size_t tokens) {
    if (window_ != 0 && tokens > batch_) {
        throw Error("KV cache: a pass of " + std::to_string(tokens) + " tokens, and it was made for " + std::to_string(batch_));
    }
    reached_ = std::max(reached_, length_ + tokens);
}

}  // namespace weir
