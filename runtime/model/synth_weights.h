// Random weights in their quantised form, as fast as memory takes them: the codes are random bits, only the
// scales are computed. Zero mean and a given standard deviation, every block another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/types.h"

namespace weir {

class WeightSource {
  public:
    // type: F32, F16, Q4_0, Q8_0, Q4_K, Q6_K, IQ*, TQ* or MXFP4, Error for another. deviation: above 0. Equal arguments give equal bytes;
    // another stream of the same seed gives others.
    static std::unique_ptr<WeightSource> make(kernels::Type type, double deviation, uint64_t seed,
                                              uint64_t stream);

    virtual ~WeightSource() = default;

    // The next out.size() bytes, whole blocks.
    virtual void fill(std::span<std::byte> out) = 0;
};

}  // namespace weir
