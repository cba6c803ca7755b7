// Writes GGUF v3 files: test models, synthetic models. Metadata and the tensor table first, then data in the order of
// the table, streamed by the caller.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/types.h"
#include "runtime/model/gguf.h"

namespace weir {

class GgufWriter {
  public:
    explicit GgufWriter(uint64_t alignment = 32);

    void add(const std::string& key, uint16_t value);
    void add(const std::string& key, uint32_t value);
    void add(const std::string& key, int32_t value);
    void add(const std::string& key, float value);
    void add(const std::string& key, bool value);
    void add(const std::string& key, const std::string& value);
    void add(const std::string& key, const char* value) { add(key, std::string(value)); }
    void add(const std::string& key, const std::vector<std::string>& values);
    void add(const std::string& key, const std::vector<float>& values);
    void add(const std::string& key, const std::vector<int32_t>& values);

    // dims[0] is the row length. Returns the tensor's index.
    size_t add_tensor(const std::string& name, kernels::Type type, const std::vector<uint64_t>& dims);
    uint64_t tensor_bytes(size_t index) const;
    size_t tensor_count() const { return tensors_.size(); }

    // Part `number` of `count` of this file, with `n` of its tensors from `first` on and the keys that say so. The first part
    // has the other keys.
    GgufWriter part(uint16_t number, uint16_t count, size_t first, size_t n) const;

    // Total size of the file that will be written, the padding behind the last tensor included.
    uint64_t file_size() const;

    // Header bytes up to the start of the data, alignment padding included.
    std::vector<std::byte> header() const;
    // Length of header().
    uint64_t data_offset() const;
    // Offset of a tensor's data from the start of the file.
    uint64_t tensor_offset(size_t index) const;

  private:
    struct Tensor {
        std::string name;
        kernels::Type type;
        std::vector<uint64_t> dims;
        uint64_t offset;  // from the start of the data
        uint64_t bytes;
    };
    void begin(const std::string& key);

    uint64_t alignment_;
    uint64_t n_keys_ = 0;
    std::vector<std::byte> metadata_;
    std::vector<Tensor> tensors_;
    uint64_t data_bytes_ = 0;
};

}  // namespace weir
