// How the parts of a split GGUF model are called, as llama.cpp's gguf-split has it: NAME-00001-of-00003.gguf and so on. Keys in
// each say its number (split.no, from 0 on), how many there are (split.count) and how many tensors all have
// (split.tensors.count). Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace weir {

constexpr size_t kMostParts = 1000;

struct PartName {
    std::string stem;   // folders included
    size_t number = 0;  // from 1 on
    size_t count = 0;

    std::string path() const;
};

// Nothing where the path is no part's.
std::optional<PartName> parse_part_name(const std::string& path);

}  // namespace weir
