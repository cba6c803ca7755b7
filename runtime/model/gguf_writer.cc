#include "runtime/model/gguf_writer.h"

#include <cstring>
#include <type_traits>

#include "runtime/error.h"

namespace weir {
namespace {

constexpr uint64_t kDefaultAlignment = 32;

// Value types as the format numbers them.
enum ValueType : uint32_t {
    kUint16 = 2,
    kUint32 = 4,
    kInt32 = 5,
    kFloat32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
};

template <typename T>
requires std::is_arithmetic_v<T>
void put(std::vector<std::byte>& out, T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof(T));
}

void put(std::vector<std::byte>& out, const std::string& text) {
    put(out, static_cast<uint64_t>(text.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    out.insert(out.end(), bytes, bytes + text.size());
}

template <typename T>
void put_array(std::vector<std::byte>& out, uint32_t element_type, const std::vector<T>& values) {
    put(out, uint32_t{kArray});
    put(out, element_type);
    put(out, static_cast<uint64_t>(values.size()));
    for (const T& value : values) put(out, value);
}

uint64_t align_up(uint64_t n, uint64_t alignment) {
    return (n + alignment - 1) / alignment * alignment;
}

}  // namespace

GgufWriter::GgufWriter(uint64_t alignment) : alignment_(alignment) {
    if (alignment != kDefaultAlignment) add("general.alignment", static_cast<uint32_t>(alignment));
}

void GgufWriter::begin(const std::string& key) {
    put(metadata_, key);
    ++n_keys_;
}

void GgufWriter::add(const std::string& key, uint16_t value) {
    begin(key);
    put(metadata_, uint32_t{kUint16});
    put(metadata_, value);
}

void GgufWriter::add(const std::string& key, int32_t value) {
    begin(key);
    put(metadata_, uint32_t{kInt32});
    put(metadata_, value);
}

void GgufWriter::add(const std::string& key, uint32_t value) {
    begin(key);
    put(metadata_, uint32_t{kUint32});
    put(metadata_, value);
}

void GgufWriter::add(const std::string& key, float value) {
    begin(key);
    put(metadata_, uint32_t{kFloat32});
    put(metadata_, value);
}

void GgufWriter::add(const std::string& key, bool value) {
    begin(key);
    put(metadata_, uint32_t{kBool});
    put(metadata_, static_cast<uint8_t>(value ? 1 : 0));
}

void GgufWriter::add(const std::string& key, const std::string& value) {
    begin(key);
    put(metadata_, uint32_t{kString});
    put(metadata_, value);
}

void GgufWriter::add(const std::string& key, const std::vector<std::string>& values) {
    begin(key);
    put_array(metadata_, kString, values);
}

void GgufWriter::add(const std::string& key, const std::vector<float>& values) {
    begin(key);
    put_array(metadata_, kFloat32, values);
}

void GgufWriter::add(const std::string& key, const std::vector<int32_t>& values) {
    begin(key);
    put_array(metadata_, kInt32, values);
}

size_t GgufWriter::add_tensor(const std::string& name, kernels::Type type,
                              const std::vector<uint64_t>& dims) {
    const kernels::TypeTraits& traits = kernels::traits(type);
    if (dims.empty() || dims.size() > 4) throw Error("tensor " + name + ": 1 to 4 dimensions are possible");
    if (dims[0] % traits.block_elements != 0) {
        throw Error("tensor " + name + ": rows of " + std::to_string(dims[0]) + " are no whole blocks of " +
                    traits.name);
    }
    uint64_t bytes = dims[0] / traits.block_elements * traits.block_bytes;
    for (size_t d = 1; d < dims.size(); ++d) bytes *= dims[d];
    const uint64_t offset = align_up(data_bytes_, alignment_);
    tensors_.push_back({name, type, dims, offset, bytes});
    data_bytes_ = offset + bytes;
    return tensors_.size() - 1;
}

uint64_t GgufWriter::tensor_bytes(size_t index) const {
    return tensors_.at(index).bytes;
}

GgufWriter GgufWriter::part(uint16_t number, uint16_t count, size_t first, size_t n) const {
    GgufWriter part(alignment_);
    if (number == 1) {
        part.metadata_ = metadata_;
        part.n_keys_ = n_keys_;
    }
    part.add("split.no", static_cast<uint16_t>(number - 1));
    part.add("split.count", count);
    part.add("split.tensors.count", static_cast<int32_t>(tensors_.size()));
    for (size_t i = first; i < first + n; ++i) part.add_tensor(tensors_[i].name, tensors_[i].type, tensors_[i].dims);
    return part;
}

uint64_t GgufWriter::data_offset() const {
    uint64_t bytes = 4 + 4 + 8 + 8 + metadata_.size();
    for (const Tensor& t : tensors_) bytes += 8 + t.name.size() + 4 + 8 * t.dims.size() + 4 + 8;
    return align_up(bytes, alignment_);
}

uint64_t GgufWriter::tensor_offset(size_t index) const {
    return data_offset() + tensors_.at(index).offset;
}

uint64_t GgufWriter::file_size() const {
    return data_offset() + align_up(data_bytes_, alignment_);
}

std::vector<std::byte> GgufWriter::header() const {
    std::vector<std::byte> out;
    out.reserve(static_cast<size_t>(data_offset()));
    for (const char c : {'G', 'G', 'U', 'F'}) put(out, c);
    put(out, uint32_t{3});
    put(out, static_cast<uint64_t>(tensors_.size()));
    put(out, n_keys_);
    out.insert(out.end(), metadata_.begin(), metadata_.end());
    for (const Tensor& t : tensors_) {
        put(out, t.name);
        put(out, static_cast<uint32_t>(t.dims.size()));
        for (const uint64_t dim : t.dims) put(out, dim);
        put(out, static_cast<uint32_t>(t.type));
        put(out, t.offset);
    }
    out.resize(static_cast<size_t>(data_offset()));
    return out;
}

}  // namespace weir
