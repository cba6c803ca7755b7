// Which table of kernels runs: best first, scalar last, the first one whose features the CPU has.
#include <cstring>
#include <iterator>

#include "kernels/activation.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"

namespace weir::kernels {
namespace {

struct Row {
    const KernelSet* kernels;
    bool (*cpu_can)();
};

const Row kRows[] = {
    {&scalar::kKernels, [] { return true; }},
};

const char* const kNames[] = {"scalar", nullptr};
static_assert(std::size(kNames) == std::size(kRows) + 1);

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

const KernelSet* select_kernels(const char* forced) noexcept {
    const bool any = forced == nullptr || *forced == '\0';
    for (const Row& row : kRows) {
        if (!any && std::strcmp(forced, row.kernels->name) != 0) continue;
        if (row.cpu_can()) return row.kernels;
    }
    return nullptr;
}

const char* const* kernel_set_names() noexcept { return kNames; }

Activation activation_for(Type type, size_t k, Activation wanted) noexcept {
    const bool floats = traits(type).block_elements == 1;
    return floats || k % kCellElements != 0 ? Activation::kF32 : wanted;
}

size_t activation_bytes(Activation a, size_t k) noexcept {
    const size_t supers = round_up(k, kSuperElements) / kSuperElements;
    switch (a) {
        case Activation::kInt8: return supers * sizeof(Int8Super);
        case Activation::kInt16: return supers * sizeof(Int16Super);
        case Activation::kF32: break;
    }
    return round_up(k * sizeof(float), 64);
}

}  // namespace weir::kernels
