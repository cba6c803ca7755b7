#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace weir::kernels {
namespace {

TEST(Select, NoWishGivesTheFirstThatRuns) {
    const KernelSet* best = select_kernels(nullptr);
    ASSERT_NE(best, nullptr);
    EXPECT_EQ(select_kernels(""), best);
    for (const char* const* name = kernel_set_names(); *name != nullptr; ++name) {
        if (const KernelSet* set = select_kernels(*name)) {
            EXPECT_EQ(set, best);
            break;
        }
    }
    // Whoever runs this on an emulated CPU says what it must come to, lest a table go untested.
    if (const char* announced = std::getenv("WEIR_BEST_KERNELS")) {
        EXPECT_STREQ(best->name, announced);
    }
}

TEST(Select, EveryNameGivesItsTableOrNothing) {
    size_t runnable = 0;
    for (const char* const* name = kernel_set_names(); *name != nullptr; ++name) {
        const KernelSet* set = select_kernels(*name);
        if (set == nullptr) continue;  // compiled in, but not for this CPU
        ++runnable;
        EXPECT_STREQ(set->name, *name);
        EXPECT_TRUE(set->quantize && set->matmul && set->dequantize && set->rms_norm && set->swiglu &&
                    set->add);
        EXPECT_TRUE(set->dot_f32 && set->axpy_f32 && set->f32_to_f16);
        EXPECT_TRUE(set->f16_to_f32 && set->softmax && set->geglu && set->soft_cap);
    }
    EXPECT_GE(runnable, 1u);
}

TEST(Select, ScalarIsLastAndAlwaysRuns) {
    std::string last;
    for (const char* const* name = kernel_set_names(); *name != nullptr; ++name) last = *name;
    EXPECT_EQ(last, "scalar");
    ASSERT_NE(select_kernels("scalar"), nullptr);
}

TEST(Select, UnknownNamesGiveNothing) {
    EXPECT_EQ(select_kernels("avx"), nullptr);
    EXPECT_EQ(select_kernels("AVX2"), nullptr);
    EXPECT_EQ(select_kernels("scalar "), nullptr);
    EXPECT_EQ(select_kernels("neon9"), nullptr);
}

#if defined(__x86_64__)
TEST(Select, Avx2RunsWhereTheCpuHasIt) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    ASSERT_NE(__get_cpuid(1, &a, &b, &c, &d), 0);
    const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (c & bit_F16C) != 0;
    EXPECT_EQ(select_kernels("avx2") != nullptr, can);
    if (can && select_kernels("avx512") == nullptr && select_kernels("avx_vnni") == nullptr) {
        EXPECT_STREQ(select_kernels(nullptr)->name, "avx2");
    }
}

// Bits of leaf 7 and its subleaf 1; whether the system saves the registers is asked by others.
TEST(Select, VnniTablesRunOnlyWhereTheCpuHasThem) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0;
    const bool avx512 = known && (b >> 16 & 1) != 0 && (c >> 11 & 1) != 0;
    const bool avx_vnni = known && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
    if (!avx512) {
        EXPECT_EQ(select_kernels("avx512"), nullptr);
    }
    EXPECT_EQ(select_kernels("avx_vnni") != nullptr, avx_vnni && select_kernels("avx2") != nullptr);
}
#elif defined(__aarch64__)
// Against the CPU's own registers, which the kernel lets programs read.
TEST(Select, NeonTablesRunWhereTheCpuHasThem) {
    EXPECT_NE(select_kernels("neon"), nullptr);
    if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0) GTEST_SKIP() << "this kernel does not show the registers";
    uint64_t isar0 = 0, isar1 = 0;
    asm("mrs %0, ID_AA64ISAR0_EL1" : "=r"(isar0));
    asm("mrs %0, ID_AA64ISAR1_EL1" : "=r"(isar1));
    const bool dotprod = (isar0 >> 44 & 15) != 0;
    const bool i8mm = dotprod && (isar1 >> 52 & 15) != 0;
    EXPECT_EQ(select_kernels("neon_dotprod") != nullptr, dotprod);
    EXPECT_EQ(select_kernels("neon_i8mm") != nullptr, i8mm);
    EXPECT_STREQ(select_kernels(nullptr)->name, i8mm ? "neon_i8mm" : dotprod ? "neon_dotprod" : "neon");
}
#endif

}  // namespace
}  // namespace weir::kernels
