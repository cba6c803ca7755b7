// Tiny models in the native format: converted from the GGUF files that tiny_model.h writes.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/model/native_convert.h"
#include "schedtool/plan.h"
#include "tests/engine/tiny_model.h"

namespace weir::test {

class TinyNativeFile {
  public:
    // band_bytes: see ConvertOptions; small ones give matrices of several bands.
    explicit TinyNativeFile(const TinyShape& shape, uint64_t band_bytes = 16 << 10) : source_(shape), path_(source_.path() + ".weir") {
        const GgufFile file = GgufFile::open(source_.path());
        ConvertOptions options;
        options.band_bytes = band_bytes;
        convert_to_native(file, read_config(file), path_, options, [](uint64_t, uint64_t) { return true; });
    }
    ~TinyNativeFile() {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    TinyNativeFile(const TinyNativeFile&) = delete;
    TinyNativeFile& operator=(const TinyNativeFile&) = delete;

    std::string path() const { return path_; }
    std::string source() const { return source_.path(); }

  private:
    TinyModelFile source_;
    std::string path_;
};

// Levels that differ from shard to shard, the same for the same seed.
inline sched::Plan mixed_plan(size_t n_layers, uint32_t seed) {
    sched::Plan plan = sched::uniform_plan(n_layers, 8);
    for (size_t i = 0; i < plan.levels.size(); ++i) plan.levels[i] = sched::kLevels[(seed + 3 * i + i / 2) % sched::kLevels.size()];
    return plan;
}

}  // namespace weir::test
