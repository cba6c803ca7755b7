// Attention of a batch over the keys and values of one layer and one KV head, in tiles of positions with a running softmax
// (Milakov & Gimelshein 2018; Dao et al. 2022): work memory does not grow with the context.
//
// Tiles begin at fixed positions, and every sum runs in ascending order of positions, so that a token's result depends on
// what is in the cache before it and on nothing else: not on the tokens computed with it, nor on how a prompt is cut.
//
// Called by workers, each with scratch of its own; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "runtime/engine/kv_cache.h"

namespace weir {

// Tokens that a call of attend() takes at most: enough to use what a tile brings into the first-level cache for many rows.
constexpr size_t kAttentionTokens = 16;

// What a query head needs to know of its model.
struct AttentionShape {
    size_t head_dim;
    size_t group;  // query heads that share a KV head
    float scale;   // of query times key
    float soft_cap = 0;        // c: scores become c * tanh(score / c); 0: none
    size_t window = SIZE_MAX;  // a token sees itself and the window - 1 tokens before it
};

// Floats of scratch that attend() wants.
size_t attention_scratch(size_t head_dim, size_t group);

// Puts a rotated key and a value, [head_dim] each, into the cache.
void append_to_cache(const kernels::KernelSet& kernels, KvCache& cache, size_t layer, size_t kv_head, size_t position,
                     size_t head_dim, const float* key, const float* value);

// softmax(soft_cap(scale * q K^T)) V for `tokens` tokens from position `first` on, each over the positions of its window, up
// to its own, which are in the cache. q: the token's rotated heads of this group, [group, head_dim] at every q_stride; replaced by the result.
void attend(const kernels::KernelSet& kernels, KvCache& cache, size_t layer, size_t kv_head, const AttentionShape& shape,
            size_t first, size_t tokens, float* q, size_t q_stride, float* scratch);

}  // namespace weir
