// Every quantised block format as integers, scales and minima.
#include <cstdlib>
#include <cstring>

#include "kernels/grid_blocks.h"
#include "kernels/half.h"
#include "kernels/scalar.h"

namespace weir::kernels::scalar {
namespace {

void set_scales(Cell& cell, float scale, float min) {
    cell.scale[0] = cell.scale[1] = scale;
    cell.min[0] = cell.min[1] = min;
}

void unpack_block(const BlockQ4_0& b, Cell* cell) {
    set_scales(*cell, load_half(b.d), 0.0f);
    for (size_t j = 0; j < 16; ++j) {
        cell->code[j] = static_cast<int8_t>((b.qs[j] & 15) - 8);
        cell->code[j + 16] = static_cast<int8_t>((b.qs[j] >> 4) - 8);
    }
}

void unpack_block(const BlockQ4_1& b, Cell* cell) {
    set_scales(*cell, load_half(b.d), load_half(b.m));
    for (size_t j = 0; j < 16; ++j) {
        cell->code[j] = static_cast<int8_t>(b.qs[j] & 15);
        cell->code[j + 16] = static_cast<int8_t>(b.qs[j] >> 4);
    }
}

int fifth_bit(const uint8_t qh[4], size_t i) {
    return (qh[i / 8] >> (i % 8) & 1) << 4;
}

void unpack_block(const BlockQ5_0& b, Cell* cell) {
    set_scales(*cell, load_half(b.d), 0.0f);
    for (size_t j = 0; j < 16; ++j) {
        cell->code[j] = static_cast<int8_t>(((b.qs[j] & 15) | fifth_bit(b.qh, j)) - 16);
        cell->code[j + 16] = static_cast<int8_t>(((b.qs[j] >> 4) | fifth_bit(b.qh, j + 16)) - 16);
    }
}

void unpack_block(const BlockQ5_1& b, Cell* cell) {
    set_scales(*cell, load_half(b.d), load_half(b.m));
    for (size_t j = 0; j < 16; ++j) {
        cell->code[j] = static_cast<int8_t>((b.qs[j] & 15) | fifth_bit(b.qh, j));
        cell->code[j + 16] = static_cast<int8_t>((b.qs[j] >> 4) | fifth_bit(b.qh, j + 16));
    }
}

void unpack_block(const BlockQ8_0& b, Cell* cell) {
    set_scales(*cell, load_half(b.d), 0.0f);
    std::memcpy(cell->code, b.qs, sizeof b.qs);
}

void unpack_block(const BlockQ2_K& b, Cell* cells) {
    const float d = load_half(b.d);
    const float dmin = load_half(b.dmin);
    for (size_t g = 0; g < 16; ++g) {
        cells[g / 2].scale[g % 2] = d * static_cast<float>(b.scales[g] & 15);
        cells[g / 2].min[g % 2] = -(dmin * static_cast<float>(b.scales[g] >> 4));
    }
    for (size_t e = 0; e < kSuperElements; ++e) {
        const int q = b.qs[e / 128 * 32 + e % 32] >> (e / 32 % 4 * 2) & 3;
        cells[e / 32].code[e % 32] = static_cast<int8_t>(q);
    }
}

void unpack_block(const BlockQ3_K& b, Cell* cells) {
    const float d = load_half(b.d);
    for (size_t g = 0; g < 16; ++g) {
        cells[g / 2].scale[g % 2] = d * (static_cast<float>(q3_k_scale(b.scales, g)) - 32.0f);
        cells[g / 2].min[g % 2] = 0.0f;
    }
    for (size_t e = 0; e < kSuperElements; ++e) {
        const int low = b.qs[e / 128 * 32 + e % 32] >> (e / 32 % 4 * 2) & 3;
        const int high = b.hmask[e % 32] >> (e / 32) & 1;
        cells[e / 32].code[e % 32] = static_cast<int8_t>((low | high << 2) - 4);
    }
}

// Q4_K and Q5_K have the same scales.
template <class Block>
void set_k_scales(const Block& b, Cell* cells) {
    const float d = load_half(b.d);
    const float dmin = load_half(b.dmin);
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        set_scales(cells[g], d * static_cast<float>(q4_k_scale(b.scales, g)),
                   -(dmin * static_cast<float>(q4_k_min(b.scales, g))));
    }
}

void unpack_block(const BlockQ4_K& b, Cell* cells) {
    set_k_scales(b, cells);
    for (size_t e = 0; e < kSuperElements; ++e) {
        const int q = b.qs[e / 64 * 32 + e % 32] >> (e / 32 % 2 * 4) & 15;
        cells[e / 32].code[e % 32] = static_cast<int8_t>(q);
    }
}

void unpack_block(const BlockQ5_K& b, Cell* cells) {
    set_k_scales(b, cells);
    for (size_t e = 0; e < kSuperElements; ++e) {
        const int low = b.qs[e / 64 * 32 + e % 32] >> (e / 32 % 2 * 4) & 15;
        const int high = b.qh[e % 32] >> (e / 32) & 1;
        cells[e / 32].code[e % 32] = static_cast<int8_t>(low | high << 4);
    }
}

void unpack_block(const BlockQ6_K& b, Cell* cells) {
    const float d = load_half(b.d);
    for (size_t g = 0; g < 16; ++g) {
        cells[g / 2].scale[g % 2] = d * static_cast<float>(b.scales[g]);
        cells[g / 2].min[g % 2] = 0.0f;
    }
    for (size_t e = 0; e < kSuperElements; ++e) {
        const size_t n = e / 128, j = e / 32 % 4, l = e % 32;
        const int low = b.ql[64 * n + 32 * (j % 2) + l] >> (j / 2 * 4) & 15;
        const int high = b.qh[32 * n + l] >> (2 * j) & 3;
        cells[e / 32].code[l] = static_cast<int8_t>((low | high << 4) - 32);
    }
}

void look_up(const uint8_t qs[16], const int8_t (&values)[16], Cell* cell) {
    for (size_t j = 0; j < 16; ++j) {
        cell->code[j] = values[qs[j] & 15];
        cell->code[j + 16] = values[qs[j] >> 4];
    }
}

void unpack_block(const BlockIQ4_NL& b, Cell* cell) {
    set_scales(*cell, load_half(b.d), 0.0f);
    look_up(b.qs, kIq4Values, cell);
}

void unpack_block(const BlockIQ4_XS& b, Cell* cells) {
    const float d = load_half(b.d);
    for (size_t g = 0; g < kCellsPerSuper; ++g) {
        set_scales(cells[g], d * (static_cast<float>(iq4_xs_scale(b, g)) - 32.0f), 0.0f);
        look_up(b.qs + 16 * g, kIq4Values, cells + g);
    }
}

void unpack_block(const BlockMXFP4& b, Cell* cell) {
    set_scales(*cell, mxfp4_scale(b.e), 0.0f);
    look_up(b.qs, kE2m1Doubled, cell);
}

void unpack_block(const BlockTQ2_0& b, Cell* cells) {
    for (size_t g = 0; g < kCellsPerSuper; ++g) set_scales(cells[g], load_half(b.d), 0.0f);
    for (size_t e = 0; e < kSuperElements; ++e) {
        const int q = b.qs[e / 128 * 32 + e % 32] >> (e / 32 % 4 * 2) & 3;
        cells[e / 32].code[e % 32] = static_cast<int8_t>(q - 1);
    }
}

template <NeedsDecoding Block>
void unpack_block(const Block& b, Cell* cells) {
    Decoded decoded;
    decode(b, decoded);
    for (size_t g = 0; g < 16; ++g) {
        cells[g / 2].scale[g % 2] = decoded.d * static_cast<float>(decoded.scales[g]);
        cells[g / 2].min[g % 2] = 0.0f;
    }
    for (size_t c = 0; c < kCellsPerSuper; ++c) {
        std::memcpy(cells[c].code, decoded.codes + kCellElements * c, sizeof cells[c].code);
    }
}

template <class Block, size_t kElements>
void unpack_row(const uint8_t* src, size_t n, Cell* cells) {
    for (size_t i = 0; i < n; i += kElements) {
        Block block;
        std::memcpy(&block, src, sizeof block);
        unpack_block(block, cells);
        src += sizeof block;
        cells += kElements / kCellElements;
    }
}

}  // namespace

void unpack(Type type, const uint8_t* src, size_t n, Cell* cells) {
    switch (type) {
        case Type::kQ4_0:
            return unpack_row<BlockQ4_0, 32>(src, n, cells);
        case Type::kQ4_1:
            return unpack_row<BlockQ4_1, 32>(src, n, cells);
        case Type::kQ5_0:
            return unpack_row<BlockQ5_0, 32>(src, n, cells);
        case Type::kQ5_1:
            return unpack_row<BlockQ5_1, 32>(src, n, cells);
        case Type::kQ8_0:
            return unpack_row<BlockQ8_0, 32>(src, n, cells);
        case Type::kQ2_K:
            return unpack_row<BlockQ2_K, 256>(src, n, cells);
        case Type::kQ3_K:
            return unpack_row<BlockQ3_K, 256>(src, n, cells);
        case Type::kQ4_K:
            return unpack_row<BlockQ4_K, 256>(src, n, cells);
        case Type::kQ5_K:
            return unpack_row<BlockQ5_K, 256>(src, n, cells);
        case Type::kQ6_K:
            return unpack_row<BlockQ6_K, 256>(src, n, cells);
        case Type::kIQ4_NL:
            return unpack_row<BlockIQ4_NL, 32>(src, n, cells);
        case Type::kIQ4_XS:
            return unpack_row<BlockIQ4_XS, 256>(src, n, cells);
        case Type::kMXFP4:
            return unpack_row<BlockMXFP4, 32>(src, n, cells);
        case Type::kTQ2_0:
            return unpack_row<BlockTQ2_0, 256>(src, n, cells);
        case Type::kIQ2_XXS:
            return unpack_row<BlockIQ2_XXS, 256>(src, n, cells);
        case Type::kIQ2_XS:
            return unpack_row<BlockIQ2_XS, 256>(src, n, cells);
        case Type::kIQ3_XXS:
            return unpack_row<BlockIQ3_XXS, 256>(src, n, cells);
        case Type::kIQ1_S:
            return unpack_row<BlockIQ1_S, 256>(src, n, cells);
        case Type::kIQ3_S:
            return unpack_row<BlockIQ3_S, 256>(src, n, cells);
        case Type::kIQ2_S:
            return unpack_row<BlockIQ2_S, 256>(src, n, cells);
        case Type::kIQ1_M:
            return unpack_row<BlockIQ1_M, 256>(src, n, cells);
        case Type::kTQ1_0:
            return unpack_row<BlockTQ1_0, 256>(src, n, cells);
        case Type::kF32:
        case Type::kF16:
        case Type::kBF16:
            break;
    }
    std::abort();  // float types have no codes; the callers in this room never ask
}

}  // namespace weir::kernels::scalar
