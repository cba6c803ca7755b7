// Quantised weights of any type out of their blocks: as Unpacked, and from there to floats. The floats have the scalar
// kernels' bits: scale * code is exact or rounded once with the min, in both.
#include "kernels/avx2.h"
#include "kernels/avx2_expand.h"
#include "kernels/avx2_unpacked.h"

namespace weir::kernels::avx2 {
namespace {

template <class W>
void unpack(const char* blocks, size_t cells, Unpacked& out) {
    using Block = typename W::Block;
    const auto* at = reinterpret_cast<const Block*>(blocks);
    LastBlocks<Block> last;
    if (W::kBlocks != 1 && cells < kCellsPerSuper) at = last.fill(blocks, cells);
    unpack_whole<W>(Blocks<Block>{at}, out);
}

template <bool kSigned>
void expand_sixteen(__m128i codes, float scale, float min, float* dst) {
    for (size_t i = 0; i < 2; ++i) {
        const __m128i eight = i == 0 ? codes : _mm_srli_si128(codes, 8);
        const __m256i wide = kSigned ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
        _mm256_storeu_ps(dst + 8 * i,
                         _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(scale), _mm256_set1_ps(min)));
    }
}

template <bool kSigned, bool kGroups>
void expand(const Unpacked& s, float* dst) {
    alignas(32) float scale[2][8], min[2][8];  // of low and of high halves of the cells
    const __m256 d = _mm256_set1_ps(s.group.d);
    _mm256_store_ps(scale[0], kGroups ? _mm256_mul_ps(d, low_halves(s.group.scale)) : s.scale);
    _mm256_store_ps(scale[1], kGroups ? _mm256_mul_ps(d, high_halves(s.group.scale)) : s.scale);
    _mm256_store_ps(min[0], kGroups ? s.group.min_low : s.min);
    _mm256_store_ps(min[1], kGroups ? s.group.min_high : s.min);
    for (size_t p = 0; p < 4; ++p) {
        for (size_t h = 0; h < 2; ++h) {
            const __m256i codes = s.code[2 * p + h];
            expand_sixteen<kSigned>(_mm256_castsi256_si128(codes), scale[h][p], min[h][p], dst + 32 * p + 16 * h);
            expand_sixteen<kSigned>(_mm256_extracti128_si256(codes, 1), scale[h][p + 4], min[h][p + 4],
                                    dst + 32 * (p + 4) + 16 * h);
        }
    }
}

template <bool kSigned, bool kGroups>
void expand_row(Unpack unpack, size_t super_bytes, const char* src, float* dst, size_t n) {
    Unpacked s{};
    for (; n >= kSuperElements; n -= kSuperElements, src += super_bytes, dst += kSuperElements) {
        unpack(src, kCellsPerSuper, s);
        expand<kSigned, kGroups>(s, dst);
    }
    if (n == 0) return;
    alignas(32) float last[kSuperElements];
    unpack(src, n / kCellElements, s);
    expand<kSigned, kGroups>(s, last);
    std::memcpy(dst, last, n * sizeof(float));
}

}  // namespace

Unpack unpacker(Type type) {
    return with_blocks_of(type, []<class W>() -> Unpack { return unpack<W>; });
}

void dequantize(Type type, const void* src, float* dst, size_t n) {
    const auto* const from = static_cast<const char*>(src);
    switch (type) {
        case Type::kF32: return expand_floats<LoadF32>(from, dst, n);
        case Type::kF16: return expand_floats<LoadF16>(from, dst, n);
        case Type::kBF16: return expand_floats<LoadBF16>(from, dst, n);
        default: break;
    }
    with_blocks_of(type, [&]<class W>() {
        expand_row<W::kSigned, W::kGroups>(unpack<W>, row_bytes(type, kSuperElements), from, dst, n);
    });
}

}  // namespace weir::kernels::avx2
