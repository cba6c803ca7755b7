// Which table of kernels runs: best first, scalar last, the first one whose features the CPU has.
#include <cstring>
#include <iterator>

#include "kernels/activation.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"

#ifdef WEIR_KERNELS_AVX2
#include <cpuid.h>

#include "kernels/avx2.h"
#endif

#ifdef WEIR_KERNELS_NEON
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "kernels/neon.h"
#endif

namespace weir::kernels {
namespace {

enum CpuFlags : uint32_t {
    kNone = 0,
    kAvx2 = 1,
    kFma = 2,
    kF16c = 4,
    kDotprod = 8,
    kI8mm = 16,
    kAvxVnni = 32,
    kAvx512 = 64,
};

struct Row {
    const KernelSet* kernels;
    const char* name;
    uint32_t needs;
};

// Best first.
const Row kRows[] = {
#ifdef WEIR_KERNELS_AVX2
    {&avx2::kAvx512Kernels, "avx512", kAvx2 | kFma | kF16c | kAvx512},
    {&avx2::kAvxVnniKernels, "avx_vnni", kAvx2 | kFma | kF16c | kAvxVnni},
    {&avx2::kKernels, "avx2", kAvx2 | kFma | kF16c},
#endif
#ifdef WEIR_KERNELS_NEON
    {&neon::kI8mmKernels, "neon_i8mm", kDotprod | kI8mm},
    {&neon::kDotprodKernels, "neon_dotprod", kDotprod},
    {&neon::kKernels, "neon", kNone},
#endif
    {&scalar::kKernels, "scalar", kNone},
};

const char* const kNames[] = {
#ifdef WEIR_KERNELS_AVX2
    "avx512",
    "avx_vnni",
    "avx2",
#endif
#ifdef WEIR_KERNELS_NEON
    "neon_i8mm",
    "neon_dotprod",
    "neon",
#endif
    "scalar",
    nullptr,
};
static_assert(std::size(kNames) == std::size(kRows) + 1);

// AVX2, FMA and AVX-512 as the compiler's runtime sees them, which includes that the operating system saves the wide
// registers; F16C and AVX-VNNI lie in the same as AVX2. On ARM what the kernel says.
#ifdef WEIR_KERNELS_AVX2
constexpr unsigned kAvxVnniBit = 1u << 4;  // of EAX of leaf 7, subleaf 1
#endif

uint32_t cpu_flags() {
    uint32_t flags = kNone;
#ifdef WEIR_KERNELS_AVX2
    if (__builtin_cpu_supports("avx2")) flags |= kAvx2;
    if (__builtin_cpu_supports("fma")) flags |= kFma;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0) flags |= kF16c;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnniBit) != 0) flags |= kAvxVnni;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")) {
        flags |= kAvx512;
    }
#endif
#ifdef WEIR_KERNELS_NEON
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) flags |= kDotprod;
    if ((getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0) flags |= kI8mm;
#endif
    return flags;
}

size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

const KernelSet* select_kernels(const char* forced) noexcept {
    const bool any = forced == nullptr || *forced == '\0';
    const uint32_t flags = cpu_flags();
    for (const Row& row : kRows) {
        if (!any && std::strcmp(forced, row.name) != 0) continue;
        if ((flags & row.needs) == row.needs) return row.kernels;
    }
    return nullptr;
}

const char* const* kernel_set_names() noexcept {
    return kNames;
}

Activation activation_for(Type type, size_t k, Activation wanted) noexcept {
    const bool floats = traits(type).block_elements == 1;
    return floats || k % kCellElements != 0 ? Activation::kF32 : wanted;
}

size_t activation_bytes(Activation a, size_t k) noexcept {
    const size_t supers = round_up(k, kSuperElements) / kSuperElements;
    switch (a) {
        case Activation::kInt8:
            return supers * sizeof(Super);
        case Activation::kFine:
        case Activation::kWhole:
            return fine_row_bytes(supers);
        case Activation::kF32:
            break;
    }
    return round_up(k * sizeof(float), 64);
}

}  // namespace weir::kernels
