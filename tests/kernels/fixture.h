// What the tests of kernels share: memory that ends at a guard page, random weights of every type, all tables
// that run here.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/quantize_weights.h"

namespace weir::test {

using namespace kernels;

// `size` bytes whose last one lies `before_end` bytes before a page that may not be touched.
class GuardedBytes {
  public:
    explicit GuardedBytes(size_t size, size_t before_end = 0) {
        const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t pages = (size + before_end + page - 1) / page;
        mapped_ = (pages + 1) * page;
        void* base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<std::byte*>(base);
        if (mprotect(base_ + pages * page, page, PROT_NONE) != 0) throw std::bad_alloc();
        data_ = base_ + pages * page - before_end - size;
    }
    ~GuardedBytes() { munmap(base_, mapped_); }
    GuardedBytes(const GuardedBytes&) = delete;
    GuardedBytes& operator=(const GuardedBytes&) = delete;

    std::byte* data() const { return data_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    std::byte* base_ = nullptr;
    std::byte* data_ = nullptr;
    size_t mapped_ = 0;
};

// A copy of `v` that ends at a guard page.
template <class T>
class Guarded : public GuardedBytes {
  public:
    explicit Guarded(const std::vector<T>& v) : GuardedBytes(v.size() * sizeof(T)) {
        if (!v.empty()) std::memcpy(data(), v.data(), v.size() * sizeof(T));
    }
    T* get() const { return as<T>(); }
};

inline std::vector<const KernelSet*> runnable_sets() {
    std::vector<const KernelSet*> sets;
    for (const char* const* name = kernel_set_names(); *name != nullptr; ++name) {
        if (const KernelSet* set = select_kernels(*name)) sets.push_back(set);
    }
    return sets;
}

inline const KernelSet& scalar_set() {
    return *select_kernels("scalar");
}

constexpr Activation kActivations[] = {Activation::kF32, Activation::kInt8, Activation::kFine, Activation::kWhole};

inline std::string name_of(Activation a) {
    return a == Activation::kF32 ? "F32" : a == Activation::kInt8 ? "Int8" : a == Activation::kFine ? "Fine" : "Whole";
}

inline std::vector<float> random_floats(size_t n, float scale, std::mt19937& rng) {
    std::normal_distribution<float> normal;
    std::vector<float> v(n);
    for (float& x : v) x = normal(rng) * scale;
    return v;
}

// Where the half-precision scales lie in a type's block.
inline std::vector<size_t> half_offsets(Type type) {
    switch (type) {
        case Type::kQ4_1:
        case Type::kQ5_1:
        case Type::kQ4_K:
        case Type::kQ5_K:
            return {0, 2};
        case Type::kQ2_K:
            return {80, 82};
        case Type::kQ3_K:
            return {108};
        case Type::kQ6_K:
            return {208};
        case Type::kIQ1_M:
            return {48};
        case Type::kTQ1_0:
            return {52};
        case Type::kTQ2_0:
            return {64};
        default:
            return {0};
    }
}

// Puts a half there. IQ1_M has it in four parts, on top of four words; MXFP4 a power of two in its place.
inline void put_half(Type type, std::byte* block, size_t offset, uint16_t half) {
    if (type == Type::kIQ1_M) {
        for (size_t i = 0; i < 4; ++i) {
            std::byte& top = block[offset + 2 * i + 1];
            top = (top & std::byte{0x0f}) | static_cast<std::byte>((half >> (4 * i) & 15) << 4);
        }
    } else if (type == Type::kMXFP4) {
        const float value = half_to_float(half);
        block[offset] = static_cast<std::byte>(value == 0.0f ? 0 : std::ilogb(value) + 128);
    } else {
        std::memcpy(block + offset, &half, sizeof half);
    }
}

// n weights: random bits in every field (so that all codes and integer scales occur), sane scales.
inline std::vector<std::byte> random_weights(Type type, size_t n, std::mt19937& rng) {
    const TypeTraits& t = traits(type);
    std::vector<std::byte> w(row_bytes(type, n));
    if (t.block_elements == 1) {
        quantize_weights(type, random_floats(n, 0.02f, rng).data(), w.data(), n);
        return w;
    }
    for (std::byte& b : w) b = static_cast<std::byte>(rng());
    std::normal_distribution<float> normal;
    for (size_t at = 0; at < w.size(); at += t.block_bytes) {
        for (const size_t offset : half_offsets(type)) {
            put_half(type, w.data() + at, offset, float_to_half(normal(rng) * 0.01f));
        }
    }
    return w;
}

// Row lengths for a type: the awkward ones it permits.
inline std::vector<size_t> row_lengths(Type type) {
    switch (traits(type).block_elements) {
        case 1:
            return {0, 1, 7, 8, 31, 32, 33, 253, 256, 257, 1000, 4096};
        case 32:
            return {0, 32, 64, 96, 224, 256, 288, 576, 1024, 1056, 4096};
        default:
            return {0, 256, 512, 1024, 1280, 4096};
    }
}

inline std::vector<std::byte> pack(const KernelSet& set, Activation a, const std::vector<float>& x, size_t k,
                                   size_t tokens) {
    const size_t stride = activation_bytes(a, k);
    std::vector<std::byte> packed(tokens * stride);
    for (size_t t = 0; t < tokens; ++t) set.quantize(a, x.data() + t * k, k, packed.data() + t * stride);
    return packed;
}

// What a packed row stands for, in double.
inline std::vector<double> unpack_activations(Activation a, const std::byte* packed, size_t k) {
    std::vector<double> x(k);
    for (size_t i = 0; i < k; ++i) {
        const size_t super = i / kSuperElements, b = i % kSuperElements / kCellElements,
                     e = i % kCellElements;
        if (a == Activation::kF32) {
            float v;
            std::memcpy(&v, packed + i * sizeof v, sizeof v);
            x[i] = static_cast<double>(v);
            continue;
        }
        Super s;
        std::memcpy(&s, packed + super * sizeof s, sizeof s);
        int code = s.codes[int8_place(b, e)];
        if (a == Activation::kFine || a == Activation::kWhole) {
            const size_t supers = (k + kSuperElements - 1) / kSuperElements;
            code = kHighUnit * code +
                   static_cast<int8_t>(packed[low_at(supers) + super * kSuperElements + int8_place(b, e)]);
        }
        x[i] = static_cast<double>(s.scale[b]) * code;
    }
    return x;
}

}  // namespace weir::test
