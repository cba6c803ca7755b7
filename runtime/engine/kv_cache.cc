#include "runtime/engine/kv_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/error.h"

namespace weir {
namespace {

size_t bytes_of(KvType type) { return type == KvType::kF16 ? 2 : 4; }

// Positions that whole panels hold; n_ctx itself where there is no such number.
size_t whole_panels(size_t n_ctx) {
    const size_t missing = (KvCache::kPanel - n_ctx % KvCache::kPanel) % KvCache::kPanel;
    return n_ctx > SIZE_MAX - missing ? n_ctx : n_ctx + missing;
}

}  // namespace

const char* kv_type_name(KvType type) { return type == KvType::kF16 ? "f16" : "f32"; }

size_t KvCache::bytes(const ModelConfig& config, KvType type, size_t n_ctx) {
    size_t total = 2 * bytes_of(type);
    for (const size_t factor : {config.n_layers, config.n_kv_heads, config.head_dim, whole_panels(n_ctx)}) {
        if (__builtin_mul_overflow(total, factor, &total)) {
            throw Error("KV cache for a context of " + std::to_string(n_ctx) + " tokens does not fit an address space");
        }
    }
    return total;
}

KvCache::KvCache(const ModelConfig& config, KvType type, size_t n_ctx)
    : type_(type), n_kv_heads_(config.n_kv_heads), n_ctx_(n_ctx), head_dim_(config.head_dim),
      head_bytes_(whole_panels(n_ctx) * config.head_dim * bytes_of(type)), bytes_(bytes(config, type, n_ctx)) {
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        throw Error("KV cache: cannot map " + std::to_string(bytes_) + " bytes for a context of " +
                    std::to_string(n_ctx) + " tokens: " + std::strerror(errno) + "; try a smaller context (-c)");
    }
    base_ = static_cast<std::byte*>(base);
}

KvCache::~KvCache() { munmap(base_, bytes_); }

void KvCache::set_length(size_t length) {
    if (length > n_ctx_) throw Error("KV cache: length " + std::to_string(length) + " beyond the context");
    length_ = length;
}

}  // namespace weir
