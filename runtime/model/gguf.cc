#include "runtime/model/gguf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/error.h"
#include "runtime/model/byte_reader.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
};

std::string error_text(int error) {
    return std::strerror(error);
}

size_t read_at(int fd, const std::string& path, uint64_t offset, std::span<std::byte> out) {
    while (true) {
        const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
        if (n >= 0) return static_cast<size_t>(n);
        if (errno == EINTR) continue;
        throw Error(path + ": at byte " + std::to_string(offset) + ": cannot read: " + error_text(errno));
    }
}

[[noreturn]] void wrong_type(const std::string& path, std::string_view key, const char* wanted) {
    throw Error(path + ": key " + quoted(key) + " is not " + wanted);
}

}  // namespace

GgufFile GgufFile::open_part(const std::string& path) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (fd.get() < 0) throw Error(path + ": cannot open: " + error_text(errno));
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw Error(path + ": cannot look at it: " + error_text(errno));
    if (S_ISDIR(status.st_mode)) throw Error(path + ": is a directory; name the model file in it");
    if (!S_ISREG(status.st_mode)) throw Error(path + ": is no regular file; a model must be one");
    if (status.st_size == 0) throw Error(path + ": the file is empty");
    const auto size = static_cast<uint64_t>(status.st_size);
    return read_any([&](uint64_t offset, std::span<std::byte> out) { return read_at(fd.get(), path, offset, out); }, size, path);
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, uint64_t file_size, const std::string& name) {
    const auto read_at = [&](uint64_t offset, std::span<std::byte> out) {
        if (offset >= bytes.size()) return size_t{0};
        const auto from = bytes.subspan(static_cast<size_t>(offset));
        const size_t n = std::min(from.size(), out.size());
        std::memcpy(out.data(), from.data(), n);
        return n;
    };
    return read_any(read_at, file_size, name);
}

GgufFile GgufFile::open(const std::string& path) {
    GgufFile file = open_part(path);
    // A native file is whole, whatever the keys of its source say.
    const bool split = file.native() == nullptr && file.get_uint("split.count").value_or(1) > 1;
    return split ? open_all_parts(std::move(file)) : std::move(file);
}

const GgufPart& GgufFile::part_of(const GgufTensor& tensor) const {
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), tensor.offset,
                                        [](uint64_t offset, const GgufPart& part) { return offset < part.begin; });
    return *std::prev(after);
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto it = tensor_index_.find(std::string(name));
    return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
    const GgufTensor* found = find_tensor(name);
    if (found == nullptr) throw Error(path_ + ": tensor " + quoted(name) + " is missing");
    return *found;
}

const GgufValue* GgufFile::find(std::string_view key) const {
    const auto it = key_index_.find(std::string(key));
    return it == key_index_.end() ? nullptr : &metadata_[it->second].second;
}

std::optional<uint64_t> GgufFile::get_uint(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (const auto* number = std::get_if<uint64_t>(value)) return *number;
    const auto* number = std::get_if<int64_t>(value);
    if (number == nullptr || *number < 0) wrong_type(path_, key, "a whole number of 0 or more");
    return static_cast<uint64_t>(*number);
}

std::optional<double> GgufFile::get_float(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* number = std::get_if<double>(value);
    if (number == nullptr) wrong_type(path_, key, "a floating-point number");
    return *number;
}

std::optional<bool> GgufFile::get_bool(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* flag = std::get_if<bool>(value);
    if (flag == nullptr) wrong_type(path_, key, "a bool");
    return *flag;
}

const std::string* GgufFile::get_string(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return nullptr;
    const auto* text = std::get_if<std::string>(value);
    if (text == nullptr) wrong_type(path_, key, "a string");
    return text;
}

const GgufArray* GgufFile::get_array(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return nullptr;
    const auto* array = std::get_if<GgufArray>(value);
    if (array == nullptr) wrong_type(path_, key, "an array");
    return array;
}

uint64_t GgufFile::require_uint(std::string_view key) const {
    const auto number = get_uint(key);
    if (!number) throw Error(path_ + ": key " + quoted(key) + " is missing");
    return *number;
}

const std::string& GgufFile::require_string(std::string_view key) const {
    const std::string* text = get_string(key);
    if (text == nullptr) throw Error(path_ + ": key " + quoted(key) + " is missing");
    return *text;
}

}  // namespace weir
