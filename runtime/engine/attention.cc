#include "runtime/engine/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace weir {
namespace {

// Positions of a tile: 64 keys or values of 64 halves are 8 KiB, a quarter of a first-level cache.
constexpr size_t kTile = 64;

kernels::Type type_of(const KvCache& cache) {
    return cache.type() == KvType::kF16 ? kernels::Type::kF16 : kernels::Type::kF32;
}

}  // namespace

size_t attention_scratch(size_t head_dim, size_t group) { return kAttentionTokens * group * (2 * head_dim + kTile + 2); }

void append_to_cache(const kernels::KernelSet& kernels, KvCache& cache, size_t layer, size_t kv_head, size_t position,
                     size_t head_dim, const float* key, const float* value) {
    constexpr size_t kPanel = KvCache::kPanel;
    std::byte* const keys = cache.keys(layer, kv_head, position / kPanel);
    std::byte* const values = cache.value(layer, kv_head, position);
    if (cache.type() == KvType::kF32) {
        for (size_t d = 0; d < head_dim; ++d) reinterpret_cast<float*>(keys)[d * kPanel + position % kPanel] = key[d];
        std::memcpy(values, value, head_dim * sizeof(float));
        return;
    }
    kernels.f32_to_f16(value, head_dim, reinterpret_cast<uint16_t*>(values));
    for (size_t d = 0; d < head_dim; d += kPanel) {
        uint16_t halves[kPanel];
        const size_t n = std::min(kPanel, head_dim - d);
        kernels.f32_to_f16(key + d, n, halves);
        for (size_t i = 0; i < n; ++i) {
            reinterpret_cast<uint16_t*>(keys)[(d + i) * kPanel + position % kPanel] = halves[i];
        }
    }
}

void attend(const kernels::KernelSet& kernels, KvCache& cache, size_t layer, size_t kv_head, const AttentionShape& shape,
            size_t first, size_t tokens, float* q, size_t q_stride, float* scratch) {
    const size_t head_dim = shape.head_dim;
    const size_t rows = tokens * shape.group;
    float* const query = scratch;                   // [rows, head_dim] scaled
    float* const out = query + rows * head_dim;     // [rows, head_dim] sums of weights times values
    float* const scores = out + rows * head_dim;    // [rows, kTile]
    float* const largest = scores + rows * kTile;   // [rows]
    float* const sum = largest + rows;              // [rows] of weights

    for (size_t t = 0; t < tokens; ++t) {
        const float* const from = q + t * q_stride;
        for (size_t i = 0; i < shape.group * head_dim; ++i) query[t * shape.group * head_dim + i] = from[i] * shape.scale;
    }
    std::fill_n(out, rows * head_dim, 0.0f);
    std::fill_n(largest, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, rows, 0.0f);

    // The first position that a token sees.
    const auto window_begin = [&](size_t token) { return first + token + 1 - std::min(first + token + 1, shape.window); };

    const kernels::Type type = type_of(cache);
    for (size_t tile = window_begin(0) / kTile * kTile; tile < first + tokens; tile += kTile) {
        const size_t positions = std::min(kTile, first + tokens - tile);
        const size_t columns = (positions + KvCache::kPanel - 1) / KvCache::kPanel * KvCache::kPanel;
        // Rows of tokens that lie before the tile have nothing in it.
        const size_t begin = tile > first ? (tile - first) * shape.group : 0;
        const size_t count = rows - begin;
        for (size_t r = begin; r < rows; ++r) std::fill_n(scores + r * kTile, columns, 0.0f);
        kernels.multiply_add(type, query + begin * head_dim, head_dim, count, cache.keys(layer, kv_head, tile / KvCache::kPanel),
                             KvCache::kPanel, KvCache::kPanel * head_dim, head_dim, columns, scores + begin * kTile, kTile);
        for (size_t r = begin; r < rows; ++r) {
            const size_t token = r / shape.group;
            const size_t seen = std::min(positions, first + token + 1 - tile);
            const size_t hidden = std::min(seen, window_begin(token) - std::min(window_begin(token), tile));
            float* const row = scores + r * kTile;
            std::fill(row, row + hidden, 0.0f);
            std::fill(row + seen, row + positions, 0.0f);
            if (hidden == seen) continue;
            if (shape.soft_cap != 0) kernels.soft_cap(row + hidden, seen - hidden, shape.soft_cap);
            const float factor = kernels.softmax_piece(row + hidden, seen - hidden, &largest[r], &sum[r]);
            if (factor == 1.0f) continue;
            for (size_t d = 0; d < head_dim; ++d) out[r * head_dim + d] *= factor;
        }
        kernels.multiply_add(type, scores + begin * kTile, kTile, count, cache.value(layer, kv_head, tile), head_dim,
                             KvCache::kPanel, positions, head_dim, out + begin * head_dim, head_dim);
    }
    for (size_t r = 0; r < rows; ++r) {
        float* const to = q + r / shape.group * q_stride + r % shape.group * head_dim;
        const float inverse = 1.0f / sum[r];
        for (size_t d = 0; d < head_dim; ++d) to[d] = out[r * head_dim + d] * inverse;
    }
}

}  // namespace weir
