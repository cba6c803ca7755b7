// A GGUF file's index: metadata and tensor table, v2 and v3, little endian, of one file or of all parts of a split one
// (NAME-00001-of-00003.gguf and so on). Reading it is one bounded pass over the header of each; no tensor data is touched.
// Every number from the file goes through checked arithmetic, and memory is bounded: counts are checked against the bytes
// that remain, and an index of more than 256 MiB is refused.
// Source: the GGUF specification in ggml's docs/gguf.md.
//
// Files of the native format (runtime/model/native_format.h) carry such an index and are opened here as well; native() then
// says where their planes are.
//
// Immutable once read; any thread may look.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "kernels/types.h"

namespace weir {

class ByteReader;
class NativeReader;
struct NativeTable;

// A metadata array keeps its element type; strings and numbers are held apart so that 262,144 tokens stay small.
struct GgufArray {
    uint32_t element_type = 0;          // GGUF value type number
    std::vector<std::string> strings;   // element_type 8
    std::vector<double> floats;         // element types 6 and 12
    std::vector<int64_t> integers;      // every integer type and bool; a uint64 above int64 is refused
    size_t size() const { return strings.size() + floats.size() + integers.size(); }
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string, GgufArray>;

struct GgufTensor {
    std::string name;
    kernels::Type type = kernels::Type::kF32;
    uint32_t n_dims = 0;
    uint64_t dims[4] = {1, 1, 1, 1};  // dims[0] is the row length
    uint64_t offset = 0;              // from the start of the file; of several parts, in the space they share (see GgufPart)
    uint64_t bytes = 0;

    uint64_t rows() const { return dims[1] * dims[2] * dims[3]; }
};

// Parts of a split model lie one behind the other in one space of offsets, far apart: no page, and no huge page, holds bytes of
// two. A file that is not split is its only part, from 0 on.
struct GgufPart {
    std::string path;
    uint64_t begin = 0;        // in that space
    uint64_t bytes = 0;        // of the file
    uint64_t data_offset = 0;  // from the file's start
    size_t tensors = 0;
};

class GgufFile {
  public:
    // Opens and reads the index. Throws Error naming file, offset and reason: not a regular file, wrong magic,
    // unsupported version, duplicate keys or tensors, unknown types, a row that its type's blocks do not divide, an
    // offset that is misaligned or past the end, overlapping tensors, absurd counts, truncation. With any part of a split
    // model all of them are opened: one that is missing, another model's or out of order is named. Metadata are the first
    // part's.
    static GgufFile open(const std::string& path);

    // The same from bytes in memory that stand for the start of a file of file_size bytes (tests, fuzzers).
    static GgufFile parse(std::span<const std::byte> bytes, uint64_t file_size, const std::string& name);

    const std::string& path() const { return path_; }         // of the first part
    uint64_t file_size() const { return file_size_; }         // of all parts
    const std::vector<GgufPart>& parts() const { return parts_; }
    const GgufPart& part_of(const GgufTensor& tensor) const;
    uint32_t version() const { return version_; }
    uint64_t alignment() const { return alignment_; }
    uint64_t data_offset() const { return data_offset_; }

    // nullptr where this is plain GGUF. Else tensors kept whole have the type, offset and bytes that they have in this file;
    // those in planes have their source's type, the offset of the first plane, and the bytes of all.
    const NativeTable* native() const { return native_.get(); }

    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const GgufTensor* find_tensor(std::string_view name) const;
    // Throws Error that names the file and the tensor.
    const GgufTensor& tensor(std::string_view name) const;

    // Keys in file order, and a value by key; nullptr where there is none.
    const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }
    const GgufValue* find(std::string_view key) const;

    // Typed look-ups: nullopt (nullptr) where the key is absent; Error where it is there with another type or a
    // value that does not fit.
    std::optional<uint64_t> get_uint(std::string_view key) const;
    std::optional<double> get_float(std::string_view key) const;
    std::optional<bool> get_bool(std::string_view key) const;
    const std::string* get_string(std::string_view key) const;
    const GgufArray* get_array(std::string_view key) const;

    // The same, where the key must be there: Error that names the file and the key.
    uint64_t require_uint(std::string_view key) const;
    const std::string& require_string(std::string_view key) const;

  private:
    friend class NativeReader;
    using ReadAt = std::function<size_t(uint64_t offset, std::span<std::byte> out)>;  // as ByteReader's

    static GgufFile read(ByteReader& reader, uint64_t file_size, const std::string& name);
    static GgufFile open_part(const std::string& path);
    static GgufFile open_all_parts(GgufFile named);
    void take_tensors(GgufFile part);
    // By the magic: plain or native.
    static GgufFile read_any(const ReadAt& read_at, uint64_t file_size, const std::string& name);

    std::string path_;
    uint64_t file_size_ = 0;
    uint32_t version_ = 0;
    uint64_t alignment_ = 32;
    uint64_t data_offset_ = 0;
    std::vector<GgufPart> parts_;
    std::vector<std::pair<std::string, GgufValue>> metadata_;
    std::unordered_map<std::string, size_t> key_index_;
    std::vector<GgufTensor> tensors_;
    std::unordered_map<std::string, size_t> tensor_index_;
    std::shared_ptr<const NativeTable> native_;
};

}  // namespace weir
