// `weir convert`: a GGUF model into the native format, by the nearest code, or by learned rounding. Memory is bounded: each
// thread holds a band of a few MiB and a row, or some rows. The file appears whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/nested_learn.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"

namespace weir {

struct ConvertOptions {
    size_t threads = 1;
    uint64_t page = 0;        // of flash; 0: 16 KiB, or 4 KiB where the planes are less than 1 GiB
    uint64_t band_bytes = 0;  // at most, stored; 0: a 64th of all planes, from 64 KiB to 4 MiB
    // Learned rounding, where it is there: kernels::feedback_of() a tensor's inputs. Asked for in execution order, by one
    // thread at a time.
    std::function<std::shared_ptr<const kernels::Feedback>(const std::string& tensor)> feedback;
    kernels::LearnFor learn_for = kernels::LearnFor::kAllLevels;
};

struct Conversion {
    uint64_t file_bytes = 0;
    uint64_t plane_bytes = 0;   // padding included
    uint64_t kept_bytes = 0;
    uint64_t weights = 0;       // in planes
    size_t kept_matrices = 0;   // whose rows 32 does not divide
};

// Throws Error that names the file and the tensor: a model that is not supported, weights that are not finite or too large,
// a source that is native already, no room. go_on is called by one thread at a time with bytes of planes done; where it
// returns false the conversion ends with an Error and leaves nothing.
Conversion convert_to_native(const GgufFile& source, const ModelConfig& config, const std::string& path, const ConvertOptions& options,
                             const std::function<bool(uint64_t done, uint64_t total)>& go_on);

// `weir verify`: reads everything and holds it against its checksums. Throws Error that names the first place that is wrong.
void verify_native(const GgufFile& file, const std::function<bool(uint64_t done, uint64_t total)>& go_on);

}  // namespace weir
