// Nested blocks: weights of 8 bits each, cut into planes of bits so that a reader takes as many bits as it wants to read.
// A row is one stretch of bytes in each plane; the planes of a matrix are apart, and NestedRows says where. What lies in
// which file, and which level a matrix is read at, is not known here.
//
// A group is 32 weights, a super-block 256; a row whose length 256 does not divide ends in a short super-block of 1 to 7
// groups. A weight's code has a high half, 0 to 15, and a low half, 0 to 15:
//
//   P1     high bits 3 and 2                    2 bits a weight
//   P2     high bit 1                           1
//   P3     high bit 0                           1
//   P4a    low bits 3 and 2                     2
//   P4b    low bits 1 and 0                     2
//   S2 S3 S4   scale s and min m of each group, for the levels 2, 3 and 4    0.5 each
//
// and the weight at a level is, with f steps of level 6 in a step of level 4 (4; or 3, 2 or 1, where the low half reaches over
// more than one step of level 4 since the high half was not rounded to the nearest),
//
//   2      s * (high >> 2) + m                              s, m of S2: 2.5 bits a weight are read
//   3      s * (high >> 1) + m                              of S3: 3.5
//   4      s * high + m                                     of S4: 4.5
//   6      s * (high + ((low >> 2) - 1.5) / f) + m     of S4: 6.5
//   8      s * (high + (low - 7.5) / (4 f)) + m            of S4: 8.5
//
// Bytes of a super-block: element e = 32 * c + 16 * h + i, i < 16, of group c. Of a full one,
//   two-bit plane, 64 bytes:  bits 2 * (c % 4) and up of byte 32 * h + 16 * (c / 4) + i
//   one-bit plane, 32 bytes:  bit 2 * (c % 4) + h of byte 16 * (c / 4) + i
//   scales, 16 bytes:         half d, half dmin, then Q4_K's 12 bytes of 6-bit scales and minima (kernels/blocks.h);
//                             s = d * scale, m = -dmin * min
// (32 bytes are a register, in which group c lies in the low lane and c + 4 in the high one, as kernels/activation.h has
// them), and of a short one of n groups, whose element is j = e % 32 of group c,
//   two-bit plane, 8 n bytes: bits 2 * (j / 8) and up of byte 8 * c + j % 8
//   one-bit plane, 4 n bytes: bit j / 4 of byte 4 * c + j % 4
//   scales, 4 + ceil(1.5 n):  d, dmin, then 12 bits for each group, the scale in the low six; little endian
//
// Pure functions, any thread. Numbers are little endian; pointers have any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::kernels {

enum class Level : uint8_t { k2 = 2, k3 = 3, k4 = 4, k6 = 6, k8 = 8 };
constexpr Level kLevels[] = {Level::k2, Level::k3, Level::k4, Level::k6, Level::k8};

// In the order in which a file is wise to have them: each level reads one or two runs.
enum class Plane : uint8_t { kS3, kP2, kP1, kS2, kS4, kP3, kP4a, kP4b };
constexpr size_t kPlanes = 8;
const char* plane_name(Plane plane) noexcept;

// Whether a level needs the plane.
bool reads_plane(Level level, Plane plane) noexcept;

// Bytes of a row of k weights in the plane; k a multiple of 32.
size_t plane_row_bytes(Plane plane, size_t k) noexcept;
// The same of all planes that the level reads.
size_t level_row_bytes(Level level, size_t k) noexcept;

constexpr uint8_t kMostFineSteps = 4;  // the low half reaches over one step of level 4

// Where rows lie: row r of plane p at plane[p] + r * plane_row_bytes(p, k). nullptr for planes that the level in use does
// not read.
struct NestedRows {
    const std::byte* plane[kPlanes] = {};
    uint8_t fine_steps = kMostFineSteps;  // f: steps of level 6 in one of level 4, 1 to 4

    const std::byte* at(Plane p) const { return plane[static_cast<size_t>(p)]; }
    // The same rows without the first n.
    NestedRows from(size_t n, size_t k) const noexcept;
};

// A super-block as integers: how quantisers hand it over.
struct NestedBlock {
    struct Scales {
        uint16_t d = 0, dmin = 0;          // halves
        uint8_t scale[8] = {}, min[8] = {};  // 0 to 63
    };
    uint8_t code[256] = {};  // high << 4 | low
    Scales s2, s3, s4;
};

// Writes super-block `block` of a row (its number, from 0) of k weights into the row's planes, all of which must be there.
void pack_nested(const NestedBlock& in, size_t block, size_t k, std::byte* const (&row)[kPlanes]) noexcept;

// The scales of super-block `block` of a row of k weights as they lie in the row's S2, S3 or S4, and back.
void unpack_scales(const std::byte* row, size_t block, size_t k, NestedBlock::Scales* out) noexcept;
void pack_scales(const NestedBlock::Scales& in, size_t block, size_t k, std::byte* row) noexcept;

// What a group's scale and min stand for.
struct GroupScale {
    float scale, min;
};
GroupScale group_scale(const NestedBlock::Scales& scales, size_t group) noexcept;

// The scales that can be stored next to these: scale[groups] >= 0; and of these scales, the minima that bring s * centre + m
// next to middle[groups]. False where a scale is too large for half precision.
bool nearest_scales(const float* scale, const float* middle, float centre, size_t groups, NestedBlock::Scales* out) noexcept;

// The nearest code: the grid of level 4 reaches from the least to the greatest weight of each group, with the 6-bit scale
// and min of the least error at level 4 among those that do; the low half takes what is left within a span of 1; scales
// and minima of levels 2 and 3 are the least squares for the codes that result. n: 32 to 256 finite weights, whole groups.
// False where a scale is too large for half precision.
bool fit_nested(const float* weights, size_t n, NestedBlock* out) noexcept;

}  // namespace weir::kernels
