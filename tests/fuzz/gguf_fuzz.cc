// Fuzz target of the GGUF reader: any bytes give an Error or a consistent index.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <variant>

#include "runtime/error.h"
#include "runtime/model/config.h"
#include "runtime/model/gguf.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}

void check(const weir::GgufFile& file) {
    uint64_t data_bytes = 0;
    for (const weir::GgufTensor& tensor : file.tensors()) {
        require(tensor.offset % file.alignment() == 0, "tensors are aligned");
        require(tensor.offset >= file.data_offset(), "tensors lie behind the header");
        require(tensor.offset <= file.file_size() && tensor.bytes <= file.file_size() - tensor.offset,
                "tensors lie inside the file");
        require(tensor.bytes == tensor.rows() * weir::kernels::row_bytes(tensor.type, tensor.dims[0]),
                "a tensor's bytes are those of its rows");
        require(file.find_tensor(tensor.name) == &tensor, "tensors are found by name");
        data_bytes += tensor.bytes;
    }
    require(data_bytes <= file.file_size(), "tensors do not overlap");
    for (const auto& [key, value] : file.metadata()) {
        require(file.find(key) == &value, "keys are found");
        if (const auto* array = std::get_if<weir::GgufArray>(&value)) {
            require(file.get_array(key)->size() == array->size(), "arrays keep their size");
        }
    }
}

void read(std::span<const std::byte> bytes, uint64_t file_size) {
    try {
        const weir::GgufFile file = weir::GgufFile::parse(bytes, file_size, "fuzz");
        check(file);
        const weir::ModelConfig config = weir::read_config(file);
        require(config.head_dim % 2 == 0 && config.n_heads % config.n_kv_heads == 0, "heads are even");
        require(config.rope_dims <= config.head_dim, "no more is rotated than there is");
    } catch (const weir::Error&) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
    read(bytes, size);
    // As the start of a larger file, whose tensors need not be there.
    read(bytes, size + (uint64_t{1} << 40));
    return 0;
}
