#include "runtime/engine/kv_cache.h"

#include <sys/mman.h>

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

size_t KvCache::bytes(const ModelConfig& config, KvType type, size_t n_ctx) {
    size_t total = row_bytes("keys", type.keys, config.head_dim) + row_bytes("values", type.values, config.head_dim);
    for (const size_t factor : {config.n_layers, config.n_kv_heads, whole_panels(n_ctx)}) {
        if (__builtin_mul_overflow(total, factor, &total)) {
            throw Error("KV cache for a context of " + std::to_string(n_ctx) + " tokens does not fit an address space");
        }
    }
    return total;
}

KvCache::KvCache(const ModelConfig& config, KvType type, size_t n_ctx)
    : type_(type), n_kv_heads_(config.n_kv_heads), n_ctx_(n_ctx), positions_(whole_panels(n_ctx)),
      key_bytes_(row_bytes("keys", type.keys, config.head_dim)), value_bytes_(row_bytes("values", type.values, config.head_dim)),
      bytes_(bytes(config, type, n_ctx)), values_at_(config.n_layers * n_kv_heads_ * positions_ * key_bytes_) {
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
