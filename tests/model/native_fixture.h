// Small native files, made by the converter from small models with random weights.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/error.h"
#include "runtime/model/native_convert.h"
#include "runtime/model/native_format.h"
#include "tests/model/small_model.h"

namespace weir::test {

inline std::vector<std::byte> bytes_of(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::vector<std::byte> out(std::filesystem::file_size(path));
    in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
    return out;
}

inline void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// A folder that is gone with the object.
class Folder {
  public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "weir-native-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::bad_alloc();
        path_ = name;
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

inline SmallModel planed_model() {
    SmallModel model;
    model.layers = 1;
    model.dim = 64;
    model.heads = 2;
    model.ffn = 96;
    model.vocab = 40;
    return model;
}

// The model as GGUF with normally distributed F32 weights.
inline std::vector<std::byte> with_weights(const SmallModel& model) {
    std::vector<std::byte> bytes = model.bytes();
    const GgufFile file = GgufFile::parse(bytes, bytes.size(), "source.gguf");
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (const GgufTensor& t : file.tensors()) {
        if (t.type != kernels::Type::kF32) continue;
        for (uint64_t at = 0; at < t.bytes; at += sizeof(float)) {
            const float value = 0.02f * normal(rng);
            std::memcpy(bytes.data() + t.offset + at, &value, sizeof value);
        }
    }
    return bytes;
}

inline bool always(uint64_t, uint64_t) { return true; }

struct NativeFixture {
    explicit NativeFixture(const SmallModel& model, ConvertOptions options = {}) {
        write_bytes(folder / "in.gguf", with_weights(model));
        source = GgufFile::open(folder / "in.gguf");
        result = convert_to_native(source, read_config(source), folder / "out.weir", options, always);
        path = folder / "out.weir";
    }
    Folder folder;
    GgufFile source;
    Conversion result;
    std::string path;
};

// Of a native file's first bytes: how many are head, as its header has it; UINT64_MAX where that overflows.
inline uint64_t stated_head(std::span<const std::byte> bytes) {
    const auto number = [&](size_t at, size_t size) {
        uint64_t value = 0;
        std::memcpy(&value, bytes.data() + at, size);
        return value;
    };
    const uint64_t index = number(16, 8), checksums = number(40, 8);
    if (index > UINT32_MAX || checksums > UINT32_MAX) return UINT64_MAX;
    return native_head_bytes(index, number(32, 4), number(36, 4), checksums);
}

// Makes the head's checksum right again, where all of the head is there: what is behind it gets tested then.
inline void repair_checksum(std::span<std::byte> bytes) {
    if (bytes.size() < kNativeHeaderBytes) return;
    const uint64_t head = stated_head(bytes);
    if (head > bytes.size()) return;
    uint64_t checksum = 0;
    std::memcpy(bytes.data() + 56, &checksum, sizeof checksum);
    checksum = native_checksum(bytes.first(head));
    std::memcpy(bytes.data() + 56, &checksum, sizeof checksum);
}

}  // namespace weir::test
