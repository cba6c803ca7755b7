// 256 weights of any type as whole bytes and floats in registers' order: what is made of them from here on knows no type, and
// is compiled for a few classes of types instead of for each. Internal to kernels/.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx2_blocks.h"

namespace weir::kernels::avx2 {

// 256 elements of one row, unpacked.
struct Unpacked {
    __m256i code[kCellsPerSuper];  // [2 * P + H], see codes<P, H>()
    __m256 scale, min;             // of types without groups
    Groups group;                  // of types with groups
};

// Unpacks 256 elements, or the `cells` times 32 that are left of a row; nothing behind them is read.
using Unpack = void (*)(const char* blocks, size_t cells, Unpacked& out);

// For a type with blocks.
Unpack unpacker(Type type);

namespace {

// By the codes() of a type W.
template <class W, class S>
[[gnu::always_inline]] inline void unpack_codes(const S& s, Unpacked& out) {
    out.code[0] = W::template codes<0, 0>(s);
    out.code[1] = W::template codes<0, 1>(s);
    out.code[2] = W::template codes<1, 0>(s);
    out.code[3] = W::template codes<1, 1>(s);
    out.code[4] = W::template codes<2, 0>(s);
    out.code[5] = W::template codes<2, 1>(s);
    out.code[6] = W::template codes<3, 0>(s);
    out.code[7] = W::template codes<3, 1>(s);
}

template <class W, class S>
[[gnu::always_inline]] inline void unpack_whole(const S& s, Unpacked& out) {
    unpack_codes<W>(s, out);
    if constexpr (W::kGroups) {
        out.group = W::groups(s);
    } else {
        W::scales(s, out.scale, out.min);
    }
}

// What the parts that begin with Unpacked know of a type: a few classes, each with the largest code of all its types.
template <int kLargestCode, bool kIsSigned, bool kHasGroups>
struct Ready {
    static constexpr int kMaxCode = kLargestCode;
    static constexpr bool kSigned = kIsSigned, kGroups = kHasGroups;

    template <int P, int H>
    [[gnu::always_inline]] static __m256i codes(const Unpacked& s) {
        return s.code[2 * P + H];
    }
    [[gnu::always_inline]] static void scales(const Unpacked& s, __m256& scale, __m256& min) {
        scale = s.scale;
        min = s.min;
    }
    [[gnu::always_inline]] static Groups groups(const Unpacked& s) { return s.group; }
};

constexpr int largest_of_class(int code, bool groups) {
    if (groups) return code <= 7 ? 7 : 63;
    return code <= 15 ? 15 : code <= 31 ? 31 : 128;
}

template <class W>
using ReadyOf = Ready<largest_of_class(W::kMaxCode, W::kGroups), W::kSigned, W::kGroups>;

}  // namespace
}  // namespace weir::kernels::avx2
