#include "runtime/model/gguf.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <type_traits>
#include <utility>

#include "runtime/error.h"
#include "runtime/model/byte_reader.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

// Value types as the format numbers them.
enum ValueType : uint32_t {
    kUint8 = 0,
    kInt8 = 1,
    kUint16 = 2,
    kInt16 = 3,
    kUint32 = 4,
    kInt32 = 5,
    kFloat32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kUint64 = 10,
    kInt64 = 11,
    kFloat64 = 12,
};

// All that a parsed index may take. The largest vocabulary in use (262,144 tokens with merges) takes 40 MB;
// sixfold that leaves room, and a forged header cannot ask for more.
constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
constexpr uint64_t kMaxKeyLength = 65535;  // both as the specification has them
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 30;

// Least bytes that an entry takes in the file: what counts are checked against before anything is stored.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Rough cost of a map node and the allocator's own bytes, for the sum that kMaxIndexBytes bounds.
constexpr uint64_t kNodeBytes = 96;

// Types that files in circulation hold and that we do not decode, so that the message can name them.
struct ForeignType {
    uint32_t number;
    const char* name;
};
constexpr ForeignType kForeignTypes[] = {
    {9, "Q8_1"}, {15, "Q8_K"}, {24, "I8"},    {25, "I16"},  {26, "I32"},
    {27, "I64"}, {28, "F64"},  {40, "NVFP4"}, {41, "Q1_0"},
};

std::string foreign_type(uint32_t number) {
    for (const ForeignType& t : kForeignTypes) {
        if (t.number == number) return std::string(" (") + t.name + ")";
    }
    return {};
}

std::string known_types() {
    std::string names;
    for (const kernels::TypeTraits& t : kernels::all_traits()) {
        if (!names.empty()) names += ' ';
        names += t.name;
    }
    return names;
}

// One pass over the header.
class Parser {
  public:
    explicit Parser(ByteReader& reader) : reader_(reader) {}

    // Called with the memory that things will take, before it is taken.
    void charge(uint64_t count, uint64_t each) {
        const uint64_t bytes = reader_.mul(count, each, "the index");
        if (bytes > kMaxIndexBytes - charged_) {
            reader_.fail("metadata and tensor table would take more than " +
                         std::to_string(kMaxIndexBytes >> 20) +
                         " MiB of memory; no usable model has that much");
        }
        charged_ += bytes;
    }

    uint32_t version() {
        char magic[4];
        for (char& c : magic) c = reader_.number<char>();
        const std::string_view text(magic, 4);
        if (text == "FUGG") reader_.fail_at(0, "a big-endian GGUF file; only little endian is supported");
        if (text != "GGUF") reader_.fail_at(0, "not a GGUF file: it begins with " + quoted(text));
        const auto version = reader_.number<uint32_t>();
        if (version == 2 || version == 3) return version;
        if ((version & 0xffff) == 0 && version != 0) {
            reader_.fail_at(4, "a big-endian GGUF file; only little endian is supported");
        }
        reader_.fail_at(4, "GGUF version " + std::to_string(version) +
                               " is not supported (2 and 3 are); convert the model anew");
    }

    uint64_t count(uint64_t least_bytes, const char* what) {
        const uint64_t at = reader_.position();
        const auto n = reader_.number<uint64_t>();
        if (n > reader_.remaining() / least_bytes) {
            reader_.fail_at(at, std::to_string(n) + " " + what + " cannot be in the " +
                                    std::to_string(reader_.remaining()) +
                                    " bytes that remain; the file is truncated or damaged");
        }
        return n;
    }

    std::string string(uint64_t max_length, const char* what) {
        const uint64_t at = reader_.position();
        const auto length = reader_.number<uint64_t>();
        if (length > max_length || length > reader_.remaining()) {
            reader_.fail_at(at, std::string(what) + " of " + std::to_string(length) + " bytes: " +
                                    (length > max_length ? "more than " + std::to_string(max_length)
                                                         : std::to_string(reader_.remaining()) + " remain"));
        }
        charge(1, length);
        return reader_.text(length);
    }

    std::string name(const char* what) {
        const uint64_t at = reader_.position();
        std::string out = string(kMaxKeyLength, what);
        if (out.empty()) reader_.fail_at(at, std::string(what) + " is empty");
        return out;
    }

    bool boolean() {
        const uint64_t at = reader_.position();
        const auto byte = reader_.number<uint8_t>();
        if (byte > 1) reader_.fail_at(at, "a bool of value " + std::to_string(byte));
        return byte == 1;
    }

    GgufValue value(const std::string& key) {
        const uint64_t at = reader_.position();
        const auto type = reader_.number<uint32_t>();
        switch (type) {
            case kUint8:
                return uint64_t{reader_.number<uint8_t>()};
            case kInt8:
                return int64_t{reader_.number<int8_t>()};
            case kUint16:
                return uint64_t{reader_.number<uint16_t>()};
            case kInt16:
                return int64_t{reader_.number<int16_t>()};
            case kUint32:
                return uint64_t{reader_.number<uint32_t>()};
            case kInt32:
                return int64_t{reader_.number<int32_t>()};
            case kFloat32:
                return double{reader_.number<float>()};
            case kBool:
                return boolean();
            case kString:
                return string(UINT64_MAX, "a string");
            case kArray:
                return array(key);
            case kUint64:
                return reader_.number<uint64_t>();
            case kInt64:
                return reader_.number<int64_t>();
            case kFloat64:
                return reader_.number<double>();
            default:
                break;
        }
        reader_.fail_at(at, "key " + quoted(key) + " has the unknown value type " + std::to_string(type));
    }

    GgufArray array(const std::string& key) {
        const uint64_t at = reader_.position();
        GgufArray out;
        out.element_type = reader_.number<uint32_t>();
        switch (out.element_type) {
            case kUint8:
                integers<uint8_t>(out);
                break;
            case kInt8:
                integers<int8_t>(out);
                break;
            case kUint16:
                integers<uint16_t>(out);
                break;
            case kInt16:
                integers<int16_t>(out);
                break;
            case kUint32:
                integers<uint32_t>(out);
                break;
            case kInt32:
                integers<int32_t>(out);
                break;
            case kUint64:
                integers<uint64_t>(out);
                break;
            case kInt64:
                integers<int64_t>(out);
                break;
            case kFloat32:
                floats<float>(out);
                break;
            case kFloat64:
                floats<double>(out);
                break;
            case kBool: {
                const uint64_t n = count(1, "array elements");
                charge(n, sizeof(int64_t));
                out.integers.reserve(n);
                for (uint64_t i = 0; i < n; ++i) out.integers.push_back(boolean() ? 1 : 0);
                break;
            }
            case kString: {
                const uint64_t n = count(sizeof(uint64_t), "strings");
                charge(n, sizeof(std::string));
                out.strings.reserve(n);
                for (uint64_t i = 0; i < n; ++i) out.strings.push_back(string(UINT64_MAX, "a string"));
                break;
            }
            case kArray:
                reader_.fail_at(at, "key " + quoted(key) + " holds an array of arrays, which no model uses");
            default:
                reader_.fail_at(at, "key " + quoted(key) + " holds an array of the unknown value type " +
                                        std::to_string(out.element_type));
        }
        return out;
    }

    GgufTensor tensor() {
        GgufTensor t;
        t.name = name("a tensor name");
        const uint64_t at = reader_.position();
        t.n_dims = reader_.number<uint32_t>();
        if (t.n_dims == 0 || t.n_dims > kMaxDims) {
            reader_.fail_at(at, "tensor " + quoted(t.name) + " has " + std::to_string(t.n_dims) +
                                    " dimensions; 1 to 4 are possible");
        }
        for (uint32_t d = 0; d < t.n_dims; ++d) {
            t.dims[d] = reader_.number<uint64_t>();
            if (t.dims[d] == 0) reader_.fail_at(at, "tensor " + quoted(t.name) + " has a dimension of 0");
        }
        const uint64_t type_at = reader_.position();
        const auto number = reader_.number<uint32_t>();
        const kernels::TypeTraits* traits = kernels::find_traits(number);
        if (traits == nullptr) {
            reader_.fail_at(type_at, "tensor " + quoted(t.name) + " has type " + std::to_string(number) +
                                         foreign_type(number) +
                                         ", which is not supported; these are: " + known_types());
        }
        t.type = traits->type;
        if (t.dims[0] % traits->block_elements != 0) {
            reader_.fail_at(at, "tensor " + quoted(t.name) + " has rows of " + std::to_string(t.dims[0]) +
                                    ", which blocks of " + std::to_string(traits->block_elements) + " (" +
                                    traits->name + ") do not divide");
        }
        t.bytes = reader_.mul(t.dims[0] / traits->block_elements, traits->block_bytes, "a tensor");
        for (uint32_t d = 1; d < t.n_dims; ++d) t.bytes = reader_.mul(t.bytes, t.dims[d], "a tensor");
        t.offset = reader_.number<uint64_t>();
        return t;
    }

    // Offsets become absolute; each must be aligned and its data inside the file and its own.
    void place(std::vector<GgufTensor>& tensors, uint64_t data_offset, uint64_t alignment,
               uint64_t file_size) {
        for (GgufTensor& t : tensors) {
            if (t.offset % alignment != 0) {
                reader_.fail("tensor " + quoted(t.name) + " lies at offset " + std::to_string(t.offset) +
                             " of the data, which is no multiple of the alignment of " +
                             std::to_string(alignment));
            }
            t.offset = reader_.add(t.offset, data_offset, "a tensor's offset");
            const uint64_t end = reader_.add(t.offset, t.bytes, "a tensor's end");
            if (end > file_size) {
                reader_.fail_at(t.offset, "tensor " + quoted(t.name) + " ends at byte " +
                                              std::to_string(end) + " but the file has " +
                                              std::to_string(file_size) +
                                              "; the file is truncated, fetch it again");
            }
        }
        std::vector<size_t> order(tensors.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::sort(order.begin(), order.end(),
                  [&](size_t a, size_t b) { return tensors[a].offset < tensors[b].offset; });
        for (size_t i = 1; i < order.size(); ++i) {
            const GgufTensor& before = tensors[order[i - 1]];
            const GgufTensor& after = tensors[order[i]];
            if (before.offset + before.bytes > after.offset) {
                reader_.fail_at(after.offset,
                                "tensors " + quoted(before.name) + " and " + quoted(after.name) + " overlap");
            }
        }
    }

  private:
    template <typename T>
    void integers(GgufArray& out) {
        const uint64_t n = count(sizeof(T), "array elements");
        charge(n, sizeof(int64_t));
        out.integers.reserve(n);
        for (uint64_t i = 0; i < n; ++i) {
            const uint64_t at = reader_.position();
            const T value = reader_.number<T>();
            if constexpr (std::is_same_v<T, uint64_t>) {
                if (value > static_cast<uint64_t>(INT64_MAX)) {
                    reader_.fail_at(at, "an array element of " + std::to_string(value) + " is too large");
                }
            }
            out.integers.push_back(static_cast<int64_t>(value));
        }
    }

    template <typename T>
    void floats(GgufArray& out) {
        const uint64_t n = count(sizeof(T), "array elements");
        charge(n, sizeof(double));
        out.floats.reserve(n);
        for (uint64_t i = 0; i < n; ++i) out.floats.push_back(reader_.number<T>());
    }

    ByteReader& reader_;
    uint64_t charged_ = 0;
};

}  // namespace

GgufFile GgufFile::read(ByteReader& reader, uint64_t file_size, const std::string& name) {
    GgufFile file;
    file.path_ = name;
    file.file_size_ = file_size;
    Parser parser(reader);
    file.version_ = parser.version();
    const uint64_t n_tensors = parser.count(kMinTensorBytes, "tensors");
    const uint64_t n_keys = parser.count(kMinKeyBytes, "keys");

    for (uint64_t i = 0; i < n_keys; ++i) {
        const uint64_t at = reader.position();
        std::string key = parser.name("a key");
        parser.charge(1, 2 * sizeof(file.metadata_[0]) + kNodeBytes + key.size());
        if (!file.key_index_.emplace(key, file.metadata_.size()).second) {
            reader.fail_at(at, "key " + quoted(key) + " is there twice");
        }
        GgufValue value = parser.value(key);
        file.metadata_.emplace_back(std::move(key), std::move(value));
    }
    if (const auto alignment = file.get_uint("general.alignment")) {
        if (*alignment < 8 || *alignment > kMaxAlignment || !std::has_single_bit(*alignment)) {
            reader.fail("general.alignment is " + std::to_string(*alignment) +
                        "; it must be a power of two from 8 to " + std::to_string(kMaxAlignment));
        }
        file.alignment_ = *alignment;
    }

    for (uint64_t i = 0; i < n_tensors; ++i) {
        const uint64_t at = reader.position();
        GgufTensor tensor = parser.tensor();
        parser.charge(1, 2 * sizeof(GgufTensor) + kNodeBytes + tensor.name.size());
        if (!file.tensor_index_.emplace(tensor.name, file.tensors_.size()).second) {
            reader.fail_at(at, "tensor " + quoted(tensor.name) + " is there twice");
        }
        file.tensors_.push_back(std::move(tensor));
    }
    file.data_offset_ = reader.align_up(reader.position(), file.alignment_, "the header");
    parser.place(file.tensors_, file.data_offset_, file.alignment_, file_size);
    file.parts_ = {{name, 0, file_size, file.data_offset_, file.tensors_.size()}};
    return file;
}

}  // namespace weir
