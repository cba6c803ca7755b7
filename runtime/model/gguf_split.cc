#include "runtime/model/gguf_split.h"

#include <cstdint>
#include <cstdio>

#include "runtime/error.h"
#include "runtime/model/gguf.h"
#include "runtime/model/printable.h"

namespace weir {
namespace {

// Distance of parts in their common space of offsets: a multiple of the huge pages of all kernels (512 MiB at most), so that
// mappings and aligned reads of two parts never meet. Address space is all it costs.
constexpr uint64_t kPartAlignment = uint64_t{512} << 20;
// The largest model in use has a few thousand.
constexpr uint64_t kMostTensors = 1 << 20;

std::string part_text(size_t number, size_t count) { return "part " + std::to_string(number) + " of " + std::to_string(count); }

uint64_t begin_behind(const GgufPart& last) {
    return (last.begin + last.bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment + kPartAlignment;
}

// What the file is called, where that fits its keys.
PartName name_of(const GgufFile& file) {
    const uint64_t no = file.require_uint("split.no"), count = file.require_uint("split.count");
    if (count > kMostParts || no >= count) {
        throw Error(file.path() + ": split.no is " + std::to_string(no) + " and split.count " + std::to_string(count) +
                    ": no such part can be, of " + std::to_string(kMostParts) + " at most");
    }
    const auto name = parse_part_name(file.path());
    if (name && name->count == count && name->number == no + 1) return *name;
    PartName wanted{"NAME", no + 1, count};
    throw Error(file.path() + ": is " + part_text(no + 1, count) + " of a split model by its keys, but is not called " +
                wanted.path() + ": the other parts cannot be found; give all their names back, in one folder");
}

}  // namespace

std::string PartName::path() const {
    char tail[64];
    std::snprintf(tail, sizeof tail, "-%05zu-of-%05zu.gguf", number, count);
    return stem + tail;
}

std::optional<PartName> parse_part_name(const std::string& path) {
    constexpr size_t kTail = sizeof "-00001-of-00003.gguf" - 1;
    if (path.size() < kTail) return std::nullopt;
    PartName name;
    name.stem = path.substr(0, path.size() - kTail);
    const std::string tail = path.substr(path.size() - kTail);
    if (std::sscanf(tail.c_str(), "-%5zu-of-%5zu.gguf", &name.number, &name.count) != 2) return std::nullopt;
    return name.path() == path ? std::optional(name) : std::nullopt;
}

// Takes in the tensors of the part that comes next.
void GgufFile::take_tensors(GgufFile part) {
    const std::string& path = part.path();
    part.parts_.front().begin = begin_behind(parts_.back());
    for (GgufTensor& tensor : part.tensors_) {
        tensor.offset += part.parts_.front().begin;
        if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
            const GgufTensor& other = this->tensor(tensor.name);
            throw Error(path + ": tensor " + quoted(tensor.name) + " is in " + part_of(other).path + " already");
        }
        tensors_.push_back(std::move(tensor));
    }
    file_size_ += part.file_size_;
    parts_.push_back(std::move(part.parts_.front()));
}

GgufFile GgufFile::open_all_parts(GgufFile named) {
    PartName name = name_of(named);
    const size_t given = name.number;
    const std::string given_path = named.path();
    const auto open_number = [&](size_t number) {
        name.number = number;
        try {
            GgufFile part = number == given ? std::move(named) : open_part(name.path());
            const uint64_t no = part.require_uint("split.no"), count = part.require_uint("split.count");
            if (no + 1 != number || count != name.count) {
                throw Error(part.path() + ": is " + part_text(no + 1, count) + " by its keys, not " +
                            part_text(number, name.count) + " as its name says");
            }
            return part;
        } catch (const Error& error) {
            throw Error(std::string(error.what()) + " (" + part_text(number, name.count) + " of the model that " + given_path +
                        " belongs to)");
        }
    };
    GgufFile whole = open_number(1);
    const uint64_t tensors = whole.require_uint("split.tensors.count");
    if (tensors > kMostTensors) {
        throw Error(whole.path() + ": split.tensors.count is " + std::to_string(tensors) + ": no model has so many");
    }
    for (size_t number = 2; number <= name.count; ++number) {
        GgufFile part = open_number(number);
        if (part.get_uint("split.tensors.count").value_or(tensors) != tensors) {
            throw Error(part.path() + ": split.tensors.count is another one than in " + whole.path() +
                        ": a part of another model");
        }
        whole.take_tensors(std::move(part));
        if (whole.tensors_.size() > tensors) break;
    }
    if (whole.tensors_.size() != tensors) {
        throw Error(whole.path() + ": split.tensors.count is " + std::to_string(tensors) + ", and the parts have " +
                    (whole.tensors_.size() > tensors ? "more" : std::to_string(whole.tensors_.size())));
    }
    return whole;
}

}  // namespace weir
