#include "runtime/engine/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/panels.h"
#include "kernels/quantize_weights.h"

namespace weir {
namespace {

// Positions of a tile, whose softmax is computed at once. They lie together, also in a ring.
constexpr size_t kTile = 64;
static_assert(KvCache::kUnbroken % kTile == 0);

bool is_quantised(kernels::Type type) { return kernels::traits(type).block_elements != 1; }

// Floats of the piece of a tile that is unpacked at a time, half a first-level cache; 16 positions at least, so that kernels
// have enough sums to keep going at once.
constexpr size_t kPieceFloats = 4 << 10;
constexpr size_t kLeastPiece = 16;
size_t piece_positions(kernels::Type type, size_t head_dim) {
    if (!is_quantised(type)) return kTile;
    return std::clamp(kPieceFloats / head_dim / kLeastPiece * kLeastPiece, kLeastPiece, kTile);
}

// Elements of a row that are brought into the cache's type at a time.
constexpr size_t kRowPiece = 32;

void pack_row(const kernels::KernelSet& kernels, kernels::Type type, const float* row, size_t n, void* out) {
    if (type == kernels::Type::kF32) {
        std::memcpy(out, row, n * sizeof(float));
    } else if (type == kernels::Type::kF16) {
        kernels.f32_to_f16(row, n, static_cast<uint16_t*>(out));
    } else {
        kernels::quantize_weights(type, row, out, n);
    }
}

// Keys or values of some positions as multiply_add() takes them: as they lie, or unpacked where they are quantised.
struct Piece {
    kernels::Type type;
    const void* data;
};
using Unpack = void (*)(kernels::Type type, const void* packed, float* unpacked, size_t n);
Piece piece_of(Unpack unpack, kernels::Type type, const void* packed, float* unpacked, size_t n) {
    if (!is_quantised(type)) return {type, packed};
    unpack(type, packed, unpacked, n);
    return {kernels::Type::kF32, unpacked};
}

}  // namespace

size_t attention_scratch(size_t head_dim, size_t group) {
    return kAttentionTokens * group * (2 * head_dim + kTile + 2) + std::max(kPieceFloats, kLeastPiece * head_dim);
}

void append_to_cache(const kernels::KernelSet& kernels, KvCache& cache, size_t layer, size_t kv_head, size_t position,
                     size_t head_dim, const float* key, const float* value) {
    pack_row(kernels, cache.type().values, value, head_dim, cache.value(layer, kv_head, position));
    const kernels::Type type = cache.type().keys;
    std::byte* panel = cache.keys(layer, kv_head, position);
    for (size_t d = 0; d < head_dim; d += kRowPiece) {
        alignas(float) std::byte packed[kRowPiece * sizeof(float)];
        const size_t n = std::min(kRowPiece, head_dim - d);
        pack_row(kernels, type, key + d, n, packed);
        kernels::place_in_panel(type, packed, n, position % KvCache::kPanel, panel);
        panel += KvCache::kPanel * kernels::row_bytes(type, n);
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
    float* const unpacked = sum + rows;             // [piece, head_dim]

    for (size_t t = 0; t < tokens; ++t) {
        const float* const from = q + t * q_stride;
        for (size_t i = 0; i < shape.group * head_dim; ++i) query[t * shape.group * head_dim + i] = from[i] * shape.scale;
    }
    std::fill_n(out, rows * head_dim, 0.0f);
    std::fill_n(largest, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, rows, 0.0f);

    // The first position that a token sees.
    const auto window_begin = [&](size_t token) { return first + token + 1 - std::min(first + token + 1, shape.window); };

    const KvType type = cache.type();
    const size_t keys_at_once = piece_positions(type.keys, head_dim), values_at_once = piece_positions(type.values, head_dim);
    for (size_t tile = window_begin(0) / kTile * kTile; tile < first + tokens; tile += kTile) {
        const size_t positions = std::min(kTile, first + tokens - tile);
        const size_t columns = (positions + KvCache::kPanel - 1) / KvCache::kPanel * KvCache::kPanel;
        // Rows of tokens that lie before the tile have nothing in it.
        const size_t begin = tile > first ? (tile - first) * shape.group : 0;
        const size_t count = rows - begin;
        for (size_t r = begin; r < rows; ++r) std::fill_n(scores + r * kTile, columns, 0.0f);
        for (size_t at = 0; at < columns; at += keys_at_once) {
            const size_t n = std::min(keys_at_once, columns - at);
            const Piece keys = piece_of(kernels.unpack_panels, type.keys, cache.keys(layer, kv_head, tile + at), unpacked,
                                        n * head_dim);
            kernels.multiply_add(keys.type, query + begin * head_dim, head_dim, count, keys.data, KvCache::kPanel,
                                 KvCache::kPanel * head_dim, head_dim, n, scores + begin * kTile + at, kTile);
        }
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
        for (size_t at = 0; at < positions; at += values_at_once) {
            const size_t n = std::min(values_at_once, positions - at);
            const Piece values = piece_of(kernels.dequantize, type.values, cache.value(layer, kv_head, tile + at), unpacked,
                                          n * head_dim);
            kernels.multiply_add(values.type, scores + begin * kTile + at, kTile, count, values.data, head_dim, KvCache::kPanel,
                                 n, head_dim, out + begin * head_dim, head_dim);
        }
    }
    for (size_t r = 0; r < rows; ++r) {
        float* const to = q + r / shape.group * q_stride + r % shape.group * head_dim;
        const float inverse = 1.0f / sum[r];
        for (size_t d = 0; d < head_dim; ++d) to[d] = out[r * head_dim + d] * inverse;
    }
}

}  // namespace weir
